"""Whose address counts where a request says that it was forwarded: only proxies that were named are believed."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from elasticdl_api.settings import ApiSettings
from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.lifecycle import within
from tests.integration.api.conftest import ADMIN, SECRET
from tests.integration.api.test_process import _environment, _serving

pytestmark = pytest.mark.integration
LIMITS = {"ELASTICDL_API_FAILED_TOKENS_PER_S": "0.01", "ELASTICDL_API_FAILED_TOKENS_AT_ONCE": "3"}


async def _ask_as_others(http: httpx.AsyncClient) -> list[int]:
    """Sends bad tokens, and each time another address as that of who asked."""
    statuses = []
    for number in range(6):
        headers = {"Authorization": f"Bearer wrong-{number}", "X-Forwarded-For": f"203.0.113.{number}"}
        statuses.append((await http.get("/cluster", headers=headers)).status_code)
    return statuses


async def _clients(process: asyncio.subprocess.Process, data_dir: Path) -> set[str]:
    """The addresses in the log of requests, which is whole when the api has ended."""
    process.send_signal(signal.SIGTERM)
    assert await within(process.wait(), 60) == 0
    lines = (data_dir / "logs" / "access.log").read_text().splitlines()
    return {entry["client"] for entry in map(json.loads, lines)}


async def test_nobody_is_believed_by_default(database_url: str, tmp_path: Path) -> None:
    # What uvicorn itself would read, and believes loopback without.
    environment = _environment(database_url, tmp_path / "data", **LIMITS) | {"FORWARDED_ALLOW_IPS": "*"}
    async with _serving(environment) as (process, http):
        assert await _ask_as_others(http) == [401, 401, 401, 429, 429, 429]
        assert await _clients(process, tmp_path / "data") == {"127.0.0.1"}


async def test_a_proxy_that_is_named_is_believed(database_url: str, tmp_path: Path) -> None:
    environment = _environment(
        database_url, tmp_path / "data", **LIMITS, ELASTICDL_API_TRUSTED_PROXIES="10.0.0.0/8, 127.0.0.1"
    )
    async with _serving(environment) as (process, http):
        assert await _ask_as_others(http) == [401] * 6
        # What a client says itself comes before what the proxies add.
        for _ in range(4):
            chain = {"X-Forwarded-For": "203.0.113.99, 198.51.100.7, 10.1.2.3"}
            answer = await http.get("/cluster", headers={"Authorization": "Bearer wrong", **chain})
        assert answer.status_code == 429
        found = await _clients(process, tmp_path / "data")
    assert {"203.0.113.0", "198.51.100.7"} <= found
    assert "203.0.113.99" not in found


@pytest.mark.parametrize("given", ["*", "proxy.example.org", "10.0.0.0/8,", "10.0.0.1/8", "0.0.0.0/0", "::/0", "1.2"])
def test_what_is_no_proxys_address_is_refused(given: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(ADMIN)
    settings: dict[str, Any] = {"database_url": "postgresql://x", "cluster_secret": SECRET, "data_dir": tmp_path}
    with pytest.raises(InvalidInputError, match="ELASTICDL_API_TRUSTED_PROXIES") as refused:
        ApiSettings(**settings, admin_token_file=token, trusted_proxies=given)
    assert refused.value.fix
