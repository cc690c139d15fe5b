"""``elasticdl backup`` and ``elasticdl restore``: the agent adds them, as it does ``up``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasticdl.cli.cluster import DataDirOption, data_directory
from elasticdl.extras import require

DatabaseOption = Annotated[
    str,
    typer.Option(envvar="ELASTICDL_DATABASE_URL", help="The cluster's Postgres, if it is not the embedded one."),
]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command line; named as an entry point of the distribution."""
    app.command("backup", rich_help_panel="Cluster")(backup)
    app.command("restore", rich_help_panel="Cluster")(restore)


def backup(
    file: Annotated[Path, typer.Argument(help="The backup to write.")],
    files: Annotated[bool, typer.Option("--files", help="With the checkpoints and artifacts of all jobs.")] = False,
    data_dir: DataDirOption = None,
    database_url: DatabaseOption = "",
) -> None:
    """Write a backup of the cluster into one file, while it runs or when it is down.

    It holds jobs, events, plans, tokens (as hashes) and bundles as they are in one moment; not the cluster's secrets.
    """
    import asyncio

    require("`elasticdl backup`", "local")
    from elasticdl_agent.cluster.backup import back_up
    from elasticdl_agent.cluster.postgres import forget_client_settings
    from elasticdl_runtime.home import expand_home

    forget_client_settings()
    target, directory = expand_home(file).absolute(), data_directory(data_dir)
    asyncio.run(back_up(target, directory, database_url, files=files, tell=typer.echo))


def restore(
    file: Annotated[Path, typer.Argument(help="The backup to restore.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the jobs and tokens that are there.")] = False,
    data_dir: DataDirOption = None,
    database_url: DatabaseOption = "",
) -> None:
    """Restore a backup into the data directory of a cluster that does not run; the next `up` upgrades its schema."""
    import asyncio

    require("`elasticdl restore`", "local")
    from elasticdl_agent.cluster.backup import restore as put_back
    from elasticdl_agent.cluster.postgres import forget_client_settings
    from elasticdl_runtime.home import expand_home

    forget_client_settings()
    source, directory = expand_home(file).absolute(), data_directory(data_dir)
    asyncio.run(put_back(source, directory, database_url, force=force, tell=typer.echo))
