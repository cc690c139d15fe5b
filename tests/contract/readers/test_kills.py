"""Each source read by workers that are killed again and again while requests fail: nothing is lost or comes twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticdl.data import DataReader, Shard, create_data_reader, fingerprints
from elasticdl_core.backoff import Backoff
from elasticdl_core.shuffling import RecordOrder, joined_parts
from elasticdl_worker.trainers.shuffled import ShuffledRecords
from tests.fakes.faulty_store import Faulty, FaultyStore
from tests.fakes.maxcompute import FakeMaxCompute
from tests.fakes.sources import SOURCES, numbered

pytestmark = pytest.mark.contract
RECORDS, PARTS, BATCH, SHARE = 400, 3, 8, 0.02
LOCAL = ("sqlite", "duckdb")
"""Files of this machine, which answer no requests."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sqlite", "duckdb", "odps"):
        monkeypatch.setattr(f"elasticdl.data.{module}_reader.PAGE", 32)
    monkeypatch.setattr("elasticdl.data.steady._PAUSES", Backoff(0.0, 0.0))
    monkeypatch.setattr("elasticdl.data.fingerprints._planned", {})


@pytest.fixture(params=[*SOURCES, "maxcompute"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a source whose records are numbered, which fails from when its test reads it."""
    kind = str(request.param)
    if kind == "maxcompute":
        service: FakeMaxCompute = request.getfixturevalue("maxcompute")
        service.put("t", numbered(range(RECORDS)))
        with service.spoiling(SHARE):
            yield "odps://shop/t"
            assert service.faults
        return
    if kind in LOCAL:
        SOURCES[kind].write(tmp_path / "all.db", range(RECORDS))
        yield f"{kind}://{tmp_path}/all.db?table=t"
        return
    size = -(-RECORDS // PARTS)
    for part in range(PARTS) if kind != "images" else ():
        SOURCES[kind].write(tmp_path / f"{part}.{kind}", range(RECORDS)[part * size : (part + 1) * size])
    if kind == "images":
        SOURCES[kind].write(tmp_path, range(RECORDS))
    FaultyStore.store.clear()
    FaultyStore().put(f"{tmp_path}/", f"/{kind}/", recursive=True)
    for name, value in (("draw", random.Random(3)), ("faults", 0), ("share", SHARE)):
        monkeypatch.setattr(Faulty, name, value)
    yield f"faulty://{kind}"
    assert Faulty.faults
    FaultyStore.store.clear()


def read_by_mortals(opened: Callable[[], DataReader], number: Callable[[object], int], kills: int) -> int:
    """Reads epochs until so many workers were killed, each of which must have each record once; returns their number.

    A worker reports after each minibatch how far its task is, and may die before it does; another goes on from there.
    """
    draw, epoch, killed = random.Random(11), 0, 0
    lister = opened()
    listed = list(lister.create_shards())
    fingerprints.expect({shard.name: lister.fingerprint(shard.name) for shard in listed})
    parts = joined_parts(listed, 64)
    while killed < kills:
        order = RecordOrder(7, 0, grain=lister.grain)
        order.extend(parts, listed)
        trained: list[int] = []
        waiting = [(index, part.start) for index, part in enumerate(parts)]
        worker, life = ShuffledRecords(opened()), draw.randint(0, 6)
        while waiting:
            index, at = waiting.pop(0)
            part = parts[index]
            for batch in worker.read_batches(
                Shard(part.name, at, part.end), order.reading(epoch, index, at, part.end), BATCH
            ):
                if life == 0:  # it has read them, and nobody hears of it
                    break
                life -= 1
                trained += map(number, batch)
                at += len(batch)
            if at < part.end:
                waiting.append((index, at))
                worker, life, killed = ShuffledRecords(opened()), draw.randint(0, 6), killed + 1
        assert sorted(trained) == list(range(RECORDS)), f"epoch {epoch}, after {killed} deaths"
        epoch += 1
    return killed


@pytest.mark.rotates
@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_no_record_is_lost_and_none_comes_twice(kills: int, source: str) -> None:
    kind = source.partition("://")[2].strip("/") if source.startswith("faulty") else source.partition("://")[0]
    number = SOURCES[kind].number if kind in SOURCES else lambda record: int(record["id"])  # type: ignore[index]
    params = {"with_header": True} if kind == "csv" else {}
    assert read_by_mortals(lambda: create_data_reader(source, None, params), number, kills) >= kills
