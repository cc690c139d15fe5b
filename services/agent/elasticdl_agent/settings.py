"""The settings of the agent."""

from __future__ import annotations

from pathlib import Path

from elasticdl_runtime.settings import ProcessSettings


class AgentSettings(ProcessSettings):
    """The settings of an agent.

    Attributes:
        data_dir: ``ELASTICDL_DATA_DIR``, files of jobs and logs.
        run_dir: ``ELASTICDL_RUN_DIR``, sockets.
        cluster_secret: ``ELASTICDL_CLUSTER_SECRET``, derives the secrets that sign job tokens.
        api_url: ``ELASTICDL_API_URL``, told to masters.
        ca_file: ``ELASTICDL_CA_FILE``, certificates that the api is verified by, told to masters.
        redis_url: ``ELASTICDL_REDIS_URL``, told to masters.
        node_token: ``ELASTICDL_NODE_TOKEN``, what callers of the agent must show.
        slots: ``ELASTICDL_SLOTS``, how many workers the machine holds.
        headroom: ``ELASTICDL_HEADROOM``, slots that are kept free.
        zygote: ``ELASTICDL_ZYGOTE``, ``auto``, ``on`` or ``off``: whether workers are forked from one.
        isolation: ``ELASTICDL_ISOLATION``, ``auto``, ``uid``, ``landlock`` or ``off``: what keeps jobs apart.
        uids: ``ELASTICDL_UIDS``, the user ids that namespaces get where the agent may change users.
    """

    data_dir: Path
    run_dir: Path
    cluster_secret: str
    api_url: str
    redis_url: str
    node_token: str
    slots: int
    headroom: int = 0
    zygote: str = "auto"
    isolation: str = "auto"
    uids: str = "200000-265535"
    ca_file: str = ""
