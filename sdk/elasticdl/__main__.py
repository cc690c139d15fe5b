"""Runs the command line: ``python -m elasticdl``."""

from elasticdl.cli.main import main

if __name__ == "__main__":
    main()
