"""``python -m elasticdl_scheduler``."""

import sys

from elasticdl_scheduler.main import main

if __name__ == "__main__":
    sys.exit(main())
