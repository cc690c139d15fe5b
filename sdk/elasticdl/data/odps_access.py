"""The access to MaxCompute, from variables of the environment that the original project had."""

from __future__ import annotations

import os
from dataclasses import dataclass

from elasticdl.data.errors import ReaderParamsError

DEFAULT_ENDPOINT = "http://service.odps.aliyun.com/api"


class MaxComputeConfig:
    """Names of the environment variables that say how to reach MaxCompute."""

    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"
    TUNNEL_ENDPOINT = "MAXCOMPUTE_TUNNEL_ENDPOINT"


@dataclass(frozen=True)
class Access:
    """The access key of whoever asks, and where that is.

    Attributes:
        project: the project that pays; that of the table, if no other is named.
        access_id: id of the access key.
        access_key: the access key.
        endpoint: address of the service.
        tunnel_endpoint: that of its tunnel; asked of the service where it is empty.
    """

    project: str
    access_id: str
    access_key: str
    endpoint: str = ""
    tunnel_endpoint: str = ""

    @classmethod
    def from_environment(cls, what: str) -> Access:
        """The access that the environment names.

        Args:
            what: what is to be read, for errors.

        Raises:
            ReaderParamsError: the environment names none.
        """
        names = MaxComputeConfig
        given = {name: os.environ.get(name, "") for name in (names.PROJECT_NAME, names.ACCESS_ID, names.ACCESS_KEY)}
        missing = [name for name in (names.ACCESS_ID, names.ACCESS_KEY) if not given[name]]
        if missing:
            raise ReaderParamsError(
                f"{what}: a table of MaxCompute needs {' and '.join(missing)} in the environment",
                fix="set them where the master and the workers run (`elasticdl up` hands on what its "
                f"ELASTICDL_STORE_VARIABLES names), and {names.ENDPOINT} if that is not {DEFAULT_ENDPOINT}",
            )
        return cls(*given.values(), *(os.environ.get(name, "") for name in (names.ENDPOINT, names.TUNNEL_ENDPOINT)))
