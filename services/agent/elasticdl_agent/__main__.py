"""``python -m elasticdl_agent``."""

import sys

from elasticdl_agent.main import main

if __name__ == "__main__":
    sys.exit(main())
