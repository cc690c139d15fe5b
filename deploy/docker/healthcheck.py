"""Whether a container's service works: ``healthcheck.py api|scheduler|agent``. Exits with 0, or 1 and the reason.

The api is asked whether it is ready, the agent for its capacity, and of the scheduler's lease in Postgres that some
scheduler holds it: with several of them, those in waiting are healthy too.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import urllib.request
from pathlib import Path

DEADLINE_S = 4.0


def check_api() -> None:
    """Asks /readyz."""
    port = os.environ.get("ELASTICDL_API_PORT", "8850")
    # Its own certificate names the api as others call it, not this address.
    unverified = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), unverified)
    scheme = "https" if os.environ.get("ELASTICDL_API_TLS_CERT") else "http"
    with opener.open(f"{scheme}://127.0.0.1:{port}/readyz", timeout=DEADLINE_S) as response:
        response.read()


async def check_agent() -> None:
    """Asks for the capacity."""
    from elasticdl_runtime.launcher.client import ProcessLauncher

    address = f"unix:{os.environ['ELASTICDL_RUN_DIR']}/agent.sock"
    async with ProcessLauncher(address, _secret("NODE_TOKEN"), deadline_s=DEADLINE_S) as launcher:
        await launcher.capacity()


async def check_scheduler() -> None:
    """Looks for a valid lease."""
    import asyncpg

    connection = await asyncpg.connect(_secret("DATABASE_URL"), timeout=DEADLINE_S)
    try:
        alive = await connection.fetchval(
            "SELECT expires_at > now() FROM leadership WHERE name = 'scheduler'", timeout=DEADLINE_S
        )
    finally:
        await connection.close(timeout=DEADLINE_S)
    if not alive:
        raise RuntimeError("no scheduler holds the lease")


def _secret(name: str) -> str:
    file = os.environ.get(f"ELASTICDL_{name}_FILE")
    return Path(file).read_text().strip() if file else os.environ[f"ELASTICDL_{name}"]


def main() -> int:
    """Runs one check; returns the exit code."""
    try:
        if sys.argv[1] == "api":
            check_api()
        else:
            asyncio.run({"agent": check_agent, "scheduler": check_scheduler}[sys.argv[1]]())
    except Exception as error:
        print(f"{sys.argv[1]}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
