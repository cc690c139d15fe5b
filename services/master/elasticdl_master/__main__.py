"""``python -m elasticdl_master``."""

from elasticdl.extras import require_service

if __name__ == "__main__":
    require_service("master")
    from elasticdl_master.main import main

    raise SystemExit(main())
