"""The routes of reservations, against a real database and a launcher in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticdl_core.errors import UnavailableError
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration


async def test_slots_are_reserved_changed_listed_and_released(api: Api) -> None:
    made = await api.http.put("/cluster/reservations/shop", json={"slots": 2, "grace_s": 5.0})
    assert made.status_code == 200
    assert (made.json()["name"], made.json()["slots"], made.json()["granted"]) == ("shop", 2, 2)
    changed = await api.http.put("/cluster/reservations/shop", json={"slots": 3})
    assert changed.json()["slots"] == 3 and changed.json()["grace_s"] == 30.0
    listed = (await api.http.get("/cluster/reservations")).json()
    assert listed["reservations"] == [changed.json()]
    assert (listed["slots"], listed["for_jobs"], listed["headroom"]) == (4, 1, 0)
    assert (await api.http.get("/cluster/reservations/shop")).json() == changed.json()
    assert (await api.http.get("/cluster")).json()["slots"] == {"total": 4, "used": 0, "reserved": 3}
    assert (await api.http.delete("/cluster/reservations/shop")).status_code == 204
    assert (await api.http.get("/cluster/reservations")).json()["reservations"] == []


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("shop", {"slots": 5}, 422),
        ("shop", {"slots": -1}, 422),
        ("shop", {"slots": "2"}, 422),
        ("shop", {"slots": 1, "grace": 3}, 422),
        ("shop", {}, 422),
        ("No%20Name", {"slots": 1}, 422),
    ],
)
async def test_what_cannot_be_reserved_is_refused(api: Api, name: str, body: dict[str, Any], status: int) -> None:
    answer = await api.http.put(f"/cluster/reservations/{name}", json=body)
    assert answer.status_code == status and answer.json()["fix"]
    assert (await api.launcher.capacity()).reservations == ()


async def test_what_is_not_there_is_not_found(api: Api) -> None:
    assert (await api.http.get("/cluster/reservations/shop")).status_code == 404
    assert (await api.http.delete("/cluster/reservations/shop")).status_code == 404


async def test_reservations_are_for_administrators(api: Api) -> None:
    headers = await api.token("ada", "admin")
    put = await api.http.put("/cluster/reservations/shop", json={"slots": 1}, headers=headers)
    assert put.status_code == 403
    assert (await api.http.get("/cluster/reservations", headers=headers)).status_code == 403
    assert (await api.launcher.capacity()).reservations == ()


async def test_the_scheduler_is_woken(api: Api) -> None:
    woken = asyncio.Event()
    async with api.services.database.listening("elasticdl_jobs", lambda _payload: woken.set()):
        for request in (
            api.http.put("/cluster/reservations/shop", json={"slots": 1}),
            api.http.delete("/cluster/reservations/shop"),
        ):
            assert (await request).is_success
            async with asyncio.timeout(60):
                await woken.wait()
            woken.clear()


async def entries(api: Api) -> list[str]:
    listed = (await api.http.get("/audit?target=shop")).json()["entries"]
    return [one["action"] for one in reversed(listed)]


async def test_what_is_done_has_an_entry_though_the_answer_is_lost(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    release = api.launcher.release

    async def release_unheard(name: str) -> None:
        await release(name)
        raise UnavailableError("the connection was cut", fix="try again")

    monkeypatch.setattr(api.launcher, "release", release_unheard)
    await api.http.put("/cluster/reservations/shop", json={"slots": 1})
    assert (await api.http.delete("/cluster/reservations/shop")).status_code == 503
    assert (await api.launcher.capacity()).reservations == ()
    assert await entries(api) == ["reservation.put", "reservation.delete"]


async def test_what_the_agent_refuses_is_said_to_be_refused(api: Api) -> None:
    assert (await api.http.put("/cluster/reservations/shop", json={"slots": 5})).status_code == 422
    assert (await api.http.delete("/cluster/reservations/shop")).status_code == 404
    assert await entries(api) == ["reservation.put", "reservation.put.refused"]
