"""The Redis of last resort, in memory: ``python -m elasticdl_runtime.cluster.fake_redis <port>``."""

from __future__ import annotations

import sys
import threading

from elasticdl_runtime.lifecycle import run_service


def main() -> int:
    """Serves on loopback until told to stop."""
    import asyncio

    from fakeredis import TcpFakeServer

    async def serve(stop: asyncio.Event) -> int:
        server = TcpFakeServer(("127.0.0.1", int(sys.argv[1])), server_version=(6, 2))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="fake-redis", daemon=True)
        thread.start()
        await stop.wait()
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        return 0

    return run_service(serve)


if __name__ == "__main__":
    raise SystemExit(main())
