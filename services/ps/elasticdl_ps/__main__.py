"""``python -m elasticdl_ps``."""

from elasticdl_ps.main import main

if __name__ == "__main__":
    raise SystemExit(main())
