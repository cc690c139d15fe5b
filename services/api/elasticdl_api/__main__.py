"""``python -m elasticdl_api [migrate]``: serves by default."""

from __future__ import annotations

import argparse
import sys

from elasticdl_runtime.lifecycle import run_service


def main() -> int:
    """Runs what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m elasticdl_api", description="The REST API of ElasticDL.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("serve", help="serve the api (the default)")
    commands.add_parser("migrate", help="bring the database's schema up to date")
    arguments = parser.parse_args()
    from elasticdl_api.main import migrate_only, serve

    if arguments.command == "migrate":
        return run_service(migrate_only)
    return run_service(serve)


if __name__ == "__main__":
    sys.exit(main())
