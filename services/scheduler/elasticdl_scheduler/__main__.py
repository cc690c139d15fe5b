"""``python -m elasticdl_scheduler``."""

from elasticdl.extras import require_service

if __name__ == "__main__":
    require_service("scheduler")
    from elasticdl_scheduler.main import main

    raise SystemExit(main())
