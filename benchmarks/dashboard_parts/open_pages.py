"""So many open pages of one job, as what they ask: ``open_pages HOST PORT TOKEN JOB COUNT``, until its input ends.

Each page reads the job, its series, its lives and its ledger when it is opened, and from then on
follows the job's stream, as the page does. ``open`` is told when all are, and the reading is over.
"""

from __future__ import annotations

import asyncio
import os
import sys

import httpx

from benchmarks.harness.http_load import open_streams, request_bytes

READ = ("", "/series?points=600", "/processes?limit=1000", "/ledger")
"""What a page of a job asks for once, below the job."""


async def main(host: str, port: int, token: str, job: str, count: int) -> None:
    """Opens the pages, says so, and keeps them open."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    ask = request_bytes("GET", f"/v1/jobs/{job}/events", f"{host}:{port}", headers)
    streams = await open_streams(host, port, [ask] * count)
    limits = httpx.Limits(max_connections=8)
    base, mine = f"http://{host}:{port}/v1", {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=base, headers=mine, limits=limits, timeout=60, trust_env=False) as http:
        for _ in range(count):
            answers = await asyncio.gather(*(http.get(f"/jobs/{job}{path}") for path in READ))
            for answer in answers:
                answer.raise_for_status()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for stream in streams:
        stream.close()


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])))
