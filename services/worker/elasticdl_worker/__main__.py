"""``python -m elasticdl_worker`` is a worker; ``... local`` runs a job in one process, ``... validate`` a feed."""

from __future__ import annotations

import sys

from elasticdl.extras import require_service

if __name__ == "__main__":
    require_service("worker")
    if sys.argv[1:2] == ["local"]:
        from elasticdl_worker.local import main as local_main

        sys.exit(local_main(sys.argv[2:]))
    if sys.argv[1:2] == ["validate"]:
        from elasticdl_worker.validating import main as validating_main

        sys.exit(validating_main(sys.argv[2:]))
    from elasticdl_worker.main import main

    sys.exit(main())
