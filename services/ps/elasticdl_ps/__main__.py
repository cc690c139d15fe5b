"""``python -m elasticdl_ps``."""

from elasticdl.extras import require_service

if __name__ == "__main__":
    require_service("ps")
    from elasticdl_ps.main import main

    raise SystemExit(main())
