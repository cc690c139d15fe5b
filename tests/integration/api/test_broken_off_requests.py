"""Every request that writes, broken off at each of its awaits: the next try gives exactly what one would have given.

Some awaits of each route by commit, all of them in ``./dev slow``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from sqlalchemy import text

from elasticdl.sql.choices import ScoreOrder
from elasticdl.sql.search import SearchPlan
from elasticdl_api.store.searches import StoredSearch
from elasticdl_api.web.session_cookies import COOKIE, CSRF_HEADER
from elasticdl_core.job.searches import SearchState
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, Role
from elasticdl_runtime.bundles import digest_of
from elasticdl_runtime.database import tables as t
from tests import rotation
from tests.fakes.cuts import Cut, places, settled
from tests.integration.api.conftest import ADMIN, Api, make_zip

pytestmark = pytest.mark.integration
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
IN_THE_GATE = 4
"""Awaits of each route that are tried with each commit."""
_TIMES = re.compile(r"(^|_)(at|since|until|after)$|^(id|sha256|revision|request_id|body_hash)$")


_ANY = re.compile(r"NAME-[a-z0-9]{6}|tok-[a-z0-9]{8}")
"""Names that are drawn."""


@dataclass
class Asked:
    """One request.

    Attributes:
        path: where to.
        marker: names all that it is about.
        body: what is sent, as JSON unless it is bytes.
        headers: besides the usual ones.
        already: statuses of a second try whose first one was carried out, besides that of the first.
        each: what every try leaves once more, because it was asked for once more.
    """

    path: str
    marker: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {ADMIN}"})
    already: frozenset[int] = frozenset()
    each: str = ""

    def send(self, api: Api, method: str) -> Awaitable[httpx.Response]:
        form: dict[str, Any] = {"content": self.body} if isinstance(self.body, bytes) else {"json": self.body}
        sent = api.http.build_request(
            method, self.path, headers=self.headers, **(form if self.body is not None else {})
        )
        if "Cookie" in self.headers:
            del sent.headers["Authorization"]
        return api.http.send(sent)


Prepare = Callable[[Api, str], Awaitable[Asked]]
PREPARED: dict[str, Prepare] = {}


def request(route: str) -> Callable[[Prepare], Prepare]:
    def add(prepare: Prepare) -> Prepare:
        PREPARED[route] = prepare
        return prepare

    return add


async def over(api: Api) -> str:
    job_id = await api.submit()
    await api.http.post(f"/jobs/{job_id}/cancel")
    return job_id


@request("POST /jobs")
async def _submit(api: Api, name: str) -> Asked:
    spec = await api.spec(name=name, minibatch_size=7)
    headers = {"Authorization": f"Bearer {ADMIN}", "Idempotency-Key": name}
    return Asked("/jobs", name, spec, headers, frozenset({200}))


@request("POST /sql")
async def _statement(api: Api, name: str) -> Asked:
    shop = api.services.settings.data_dir.parent / f"{name}.db"
    with closing(sqlite3.connect(shop)) as connection, connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a, 'x' AS b UNION SELECT 2, 'y'")
    await api.http.put("/namespaces/default", json={"sources": {"shop": f"sqlite:///{shop}"}})
    asked = {
        "statement": f"SELECT * FROM t TO TRAIN LinearRegressor LABEL a INTO {name.replace('-', '_')}",
        "source": "shop",
    }
    headers = {"Authorization": f"Bearer {ADMIN}", "Idempotency-Key": name}
    return Asked("/sql", name, asked, headers, frozenset({200}))


@request("POST /sql/{job_id}/cancel")
async def _stop_search(api: Api, name: str) -> Asked:
    fields: dict[str, Any] = {one.name: [] for one in dataclasses.fields(SearchPlan)}
    sizes = dict.fromkeys(("trained", "held", "whole"), 9)
    plan = SearchPlan(**fields | {"order": ScoreOrder("auc", 1), "minibatch_size": 9, "sizes": sizes, "parts": {}})
    about = {"job_id": name, "namespace": "default", "owner": "admin", "model": "m", "source": "shop", "text": "x"}
    search = StoredSearch(**about, restricted=False, state=SearchState.COMPARING, plan=plan, bundle="")
    await api.services.searches.begin(search.user, search, key=None, body_hash="")
    return Asked(f"/sql/{name}/cancel", name)


@request("PATCH /jobs/{job_id}")
async def _change(api: Api, name: str) -> Asked:
    job_id = await api.submit()
    return Asked(f"/jobs/{job_id}", job_id, {"priority": 7, "labels": {"team": "red"}, "max_workers": 2})


@request("DELETE /jobs/{job_id}")
async def _remove(api: Api, name: str) -> Asked:
    job_id = await over(api)
    folder = api.services.settings.job_dir(job_id) / "logs"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"a")
    await api.launcher.launch(ProcessSpec(ProcessId(job_id, Role.WORKER, 0, 0)))
    return Asked(f"/jobs/{job_id}", job_id, already=frozenset({404}))


@request("POST /jobs/{job_id}/cancel")
async def _cancel(api: Api, name: str) -> Asked:
    job_id, _ = await api.running()
    return Asked(f"/jobs/{job_id}/cancel", job_id)


@request("POST /jobs/{job_id}/suspend")
async def _suspend(api: Api, name: str) -> Asked:
    job_id, _ = await api.running()
    return Asked(f"/jobs/{job_id}/suspend", job_id)


@request("POST /jobs/{job_id}/resume")
async def _resume(api: Api, name: str) -> Asked:
    job_id = await api.submit()
    await api.http.post(f"/jobs/{job_id}/suspend")
    return Asked(f"/jobs/{job_id}/resume", job_id)


@request("POST /jobs/{job_id}/trace")
async def _trace(api: Api, name: str) -> Asked:
    job_id, _ = await api.running()
    return Asked(f"/jobs/{job_id}/trace", job_id, {"seconds": 0.01}, each="job.trace")


@request("PUT /bundles/{digest}")
async def _upload(api: Api, name: str) -> Asked:
    data = make_zip({"model.py": f"x = '{name}'"})
    digest = digest_of(data)
    return Asked(f"/bundles/{digest}", digest.removeprefix("sha256:"), data, already=frozenset({200}))


@request("POST /scheduler/what-if")
async def _what_if(api: Api, name: str) -> Asked:
    return Asked("/scheduler/what-if", name, {"slots": 3})


@request("POST /tokens")
async def _token(api: Api, name: str) -> Asked:
    return Asked("/tokens", name, {"name": name, "scope": "read"}, already=frozenset({409}))


@request("DELETE /tokens/{token_id}")
async def _revoke(api: Api, name: str) -> Asked:
    await api.token(name, name=name)
    return Asked(f"/tokens/{name}", name)


@request("PUT /namespaces/{name}")
async def _namespace(api: Api, name: str) -> Asked:
    return Asked(f"/namespaces/{name}", name, {"limits": {"max_ps": 3}}, already=frozenset({200}))


@request("DELETE /namespaces/{name}")
async def _no_namespace(api: Api, name: str) -> Asked:
    await api.token(name)
    return Asked(f"/namespaces/{name}", name, already=frozenset({404}))


@request("POST /session")
async def _log_in(api: Api, name: str) -> Asked:
    headers = await api.token(name, name=name)
    return Asked("/session", name, headers=headers, each="session")


@request("DELETE /session")
async def _log_out(api: Api, name: str) -> Asked:
    begun = await api.http.post("/session", headers=await api.token(name, name=name))
    secret, csrf = begun.cookies[COOKIE], begun.json()["csrf_token"]
    api.http.cookies.clear()
    headers = {"Cookie": f"{COOKIE}={secret}", CSRF_HEADER: csrf}
    return Asked("/session", name, headers=headers, already=frozenset({401}))


@request("PUT /cluster/reservations/{name}")
async def _reserve(api: Api, name: str) -> Asked:
    return Asked(f"/cluster/reservations/{name}", name, {"slots": 0, "grace_s": 1.0}, each="reservation.put")


@request("DELETE /cluster/reservations/{name}")
async def _release(api: Api, name: str) -> Asked:
    await api.launcher.reserve(name, 0, grace_s=1.0)
    return Asked(f"/cluster/reservations/{name}", name, already=frozenset({404}))


def of_master(route: str, body: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
    method, place = route.split(" ", 1)

    @request(f"{method} /internal/jobs/{{job_id}}{place}")
    async def prepare(api: Api, name: str) -> Asked:
        if place == "/lease":
            job_id = await api.submit()
            await api.admit(job_id)
            master = api.master(job_id)
            return Asked(f"{master.base}/lease", job_id, body, master.headers, each="took the job")
        job_id, master = await api.running()
        if before is not None:
            assert (await master.post("/checkpoints", **before)).status_code == 204
        path = place.replace("{version}", "7")
        each = '"kind": "k"' if place == "/events" else ""
        return Asked(f"{master.base}{path}", job_id, {"epoch": master.epoch, **body}, master.headers, each=each)


TASK = "t:0:0:0:9"
AT = 1_700_000_000
LIFE = {"role": "worker", "index": 0, "incarnation": 0, "stage": "launched", "at": AT}
SERIES = {"tier": 0, "start": AT, "samples": 1, "numbers": {"loss": [1.0]}}
of_master("POST /lease", {"holder": "master-0.1"})
of_master(
    "POST /heartbeat",
    {
        "status": {"progress": {"records_done": 3}},
        "losses": [{"model_version": 1, "loss": 0.5, "at": AT}],
        "series": [SERIES],
    },
)
of_master("POST /state", {"to": "FAILED", "reason": "x", "detail": {"fix": "y"}})
of_master("POST /events", {"events": [{"kind": "k", "message": "m"}]})
of_master("POST /processes", {"lives": [LIFE], "living": [{"role": "worker", "index": 0, "incarnation": 0}]})
of_master("PUT /plan", {"plan": {"seed": 1}})
of_master("POST /done", {"tasks": [TASK], "accounts": {TASK: {"skipped": 1}}})
of_master("POST /checkpoints", {"manifest": {"version": 7}})
of_master("DELETE /checkpoints/{version}", {}, {"manifest": {"version": 7}})
of_master("POST /evaluations", {"number": 1, "model_version": 7, "training_epoch": 0, "metrics": {"a": 1.0}})
of_master("POST /artifacts", {"name": "n", "path": "p", "size": 1, "sha256": "0" * 64})


def writing_routes(app: Any) -> set[str]:
    return {
        f"{method} {route.path}"
        for router in app.state.routers
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in (route.methods or set()) & WRITES
    }


async def test_each_route_that_writes_is_broken_off(api: Api) -> None:
    assert writing_routes(api.app) == set(PREPARED)


class World:
    """The application, and what there is of one thing in all its stores."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.number = 0
        union = " UNION ALL ".join(
            f"SELECT '{table.name}', to_jsonb({table.name}) FROM {table.name} WHERE {table.name}::text LIKE :mark"
            for table in t.metadata.sorted_tables
        )
        self._query = text(union)

    async def prepare(self, route: str) -> Asked:
        self.number += 1
        return await PREPARED[route](self.api, f"cut-{self.number:03}")

    async def read(self, marker: str) -> list[str]:
        async with self.api.services.database.transaction() as connection:
            rows = (await connection.execute(self._query, {"mark": f"%{marker}%"})).all()
        found = [f"{table} {json.dumps(_timeless(row), sort_keys=True)}" for table, row in rows]
        data = self.api.services.settings.data_dir
        found += [f"file {path.relative_to(data)}" for path in data.rglob("*") if marker in str(path)]
        found += [f"file {path.name}" for path in self.api.services.settings.bundles_dir.glob(".*")]
        found += [
            f"process {one.id}" for one in await self.api.launcher.list() if one.state is not ProcessState.EXITED
        ]
        found += [f"reservation {one}" for one in (await self.api.launcher.capacity()).reservations]
        return sorted(
            _ANY.sub("NAME", one.replace(marker, "NAME").replace(marker.replace("-", "_"), "NAME"))
            for one in found
            if marker in one or "file ." in one
        )

    def held(self) -> tuple[int, int, int]:
        """Connections of the pool, tasks and slots that something holds."""
        slots = self.api.services.log_slots.open + self.api.services.stream_slots.open
        pool = self.api.services.database._engine.pool
        tasks = [task for task in asyncio.all_tasks() if "asyncpg" not in repr(task)]
        return pool.checkedout(), len(tasks), slots  # type: ignore[attr-defined]

    def holds_no_more(self, before: tuple[int, int, int]) -> bool:
        """Whether no more is held than before."""
        return all(now <= then for now, then in zip(self.held(), before, strict=True))


def _timeless(row: Mapping[str, Any]) -> Any:
    return {
        key: _timeless(value) if isinstance(value, dict) else value
        for key, value in row.items()
        if not _TIMES.search(key)
    }


async def sweep(world: World, route: str, most: int | None) -> None:
    """Breaks off requests to one route at each await, or at so many of them."""
    method = route.split(" ", 1)[0]
    cut = Cut()
    for _ in range(2):  # what the first request of an application makes is made
        asked = await world.prepare(route)
        answer = await cut.run(asked.send(world.api, method))
        assert answer is not None
        assert answer.status_code < 300, (route, answer.text)
        wanted = await world.read(asked.marker)
    first, awaits = answer.status_code, cut.awaits
    assert awaits > 0
    wrong = []
    for at, moment in places(awaits) if most is None else rotation.share(route, places(awaits), most):
        asked = await world.prepare(route)
        before = world.held()
        assert await cut.run(asked.send(world.api, method), at, moment) is None or not cut.broken
        await settled(functools.partial(world.holds_no_more, before), True, f"{route} cut at {at}")
        again = await asked.send(world.api, method)
        world.api.http.cookies.clear()
        found = await world.read(asked.marker)
        lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        asked_twice = {one for one in more if asked.each and re.search(asked.each, one)}
        if again.status_code not in {first, *asked.already} or lost or more.keys() - asked_twice:
            wrong.append((at, str(moment), again.status_code, dict(lost), dict(more)))
    assert not wrong, "\n".join(map(str, wrong))


async def test_wherever_a_request_is_broken_off_the_next_try_makes_it_whole(api: Api) -> None:
    world = World(api)
    for route in PREPARED:
        await sweep(world, route, IN_THE_GATE)


@pytest.mark.slow
@pytest.mark.parametrize("route", sorted(PREPARED))
async def test_a_request_may_be_broken_off_at_each_of_its_awaits(api: Api, route: str) -> None:
    await sweep(World(api), route, None)
