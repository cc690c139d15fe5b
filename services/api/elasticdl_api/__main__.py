"""``python -m elasticdl_api [migrate]``: serves by default."""

from __future__ import annotations

import argparse
import sys

from elasticdl.extras import require_service

UNKNOWN_REVISION = 3


def main() -> int:
    """Runs what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m elasticdl_api", description="The REST API of ElasticDL.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("serve", help="serve the api (the default)")
    schema = commands.add_parser("migrate", help="bring the database's schema up to date")
    schema.add_argument("--to", default="head", metavar="REVISION", help="only up to that revision")
    schema.add_argument("--knows", metavar="REVISION", help="change nothing; exit with 3 if it is unknown here")
    arguments = parser.parse_args()
    require_service("api")
    from elasticdl_api.main import migrate_only, serve
    from elasticdl_runtime.lifecycle import run_service

    if arguments.command == "migrate":
        from elasticdl_api.store.migrate import knows

        if arguments.knows is not None:
            return 0 if knows(arguments.knows) else UNKNOWN_REVISION
        if arguments.to != "head" and not knows(arguments.to):
            return UNKNOWN_REVISION
        return run_service(lambda stop: migrate_only(stop, arguments.to))
    return run_service(serve)


if __name__ == "__main__":
    sys.exit(main())
