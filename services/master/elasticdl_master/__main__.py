"""``python -m elasticdl_master``."""

from elasticdl_master.main import main

if __name__ == "__main__":
    raise SystemExit(main())
