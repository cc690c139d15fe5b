"""``python -m elasticdl_agent``."""

from elasticdl.extras import require_service

if __name__ == "__main__":
    require_service("agent")
    from elasticdl_agent.main import main

    raise SystemExit(main())
