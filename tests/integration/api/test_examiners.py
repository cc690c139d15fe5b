"""What tenants made is read by processes under limits: a bomb is refused, and the api lives."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticdl.model_check import MAX_SOURCE_BYTES
from elasticdl_api.examination.examiners import ExaminationLimits, Examiners
from elasticdl_api.examination.fair_queue import FairQueue
from elasticdl_core.errors import InvalidInputError, UnavailableError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_runtime.bundles import digest_of
from tests.integration.api.conftest import MODULE, Api, make_zip

pytestmark = pytest.mark.integration


@contextmanager
def examining(**limits: Any) -> Iterator[Examiners]:
    examiners = Examiners(ExaminationLimits(**limits))
    try:
        yield examiners
    finally:
        examiners.close()


def zoo_of(folder: Path, source: str | bytes) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_bytes(source if isinstance(source, bytes) else source.encode())
    return str(folder)


def spec_of(zoo: str) -> JobSpec:
    return JobSpec.from_mapping({"model_def": "model.custom_model", "model_zoo": zoo, "training_data": "/data"})


def processes() -> set[psutil.Process]:
    return {one for one in psutil.Process().children() if "elasticdl_api.examination.process" in one.cmdline()}


def filled(line: str) -> str:
    return line * ((MAX_SOURCE_BYTES - len(MODULE)) // len(line))


SLOW = b"# coding: punycode\n" + b"x" * 20 + b"-" + b"a" * (MAX_SOURCE_BYTES - 100)
"""To decode it takes time by the square of its length."""


async def test_a_module_that_takes_too_long_is_refused_and_the_next_one_is_checked(tmp_path: Path) -> None:
    zoo, good = zoo_of(tmp_path / "slow", SLOW), zoo_of(tmp_path / "good", MODULE)
    with examining(processes=1, cpu_s=1, wall_s=60) as examiners:
        await examiners.check_model(spec_of(good), zoo=good)
        with pytest.raises(UserCodeError, match="more than 1 s of processor time") as caught:
            await examiners.check_model(spec_of(zoo), zoo=zoo)
        assert "shorter" in caught.value.fix
        await examiners.check_model(spec_of(good), zoo=good)


async def test_a_module_that_takes_too_much_memory_is_refused_and_the_next_one_is_checked(tmp_path: Path) -> None:
    zoo, good = zoo_of(tmp_path / "large", filled("a=b\n")), zoo_of(tmp_path / "good", MODULE)
    with examining(processes=1, memory_bytes=100 << 20, cpu_s=60) as examiners:
        with pytest.raises(UserCodeError, match="memory"):
            await examiners.check_model(spec_of(zoo), zoo=zoo)
        await examiners.check_model(spec_of(good), zoo=good)


async def test_what_is_late_is_ended(tmp_path: Path) -> None:
    good, before = zoo_of(tmp_path / "good", MODULE), processes()
    with examining(wall_s=0.0) as examiners:
        for _ in range(2):
            with pytest.raises(UserCodeError, match="longer than 0 s"):
                await examiners.check_model(spec_of(good), zoo=good)
        (tmp_path / "b.zip").write_bytes(make_zip({"model.py": MODULE}))
        with pytest.raises(InvalidInputError, match="longer than 0 s"):
            await examiners.examine_bundle(tmp_path / "b.zip")
    assert processes() == before


async def test_a_process_that_died_idle_costs_nobody_anything(tmp_path: Path) -> None:
    good = zoo_of(tmp_path / "good", MODULE)
    before = processes()
    with examining(processes=1) as examiners:
        await examiners.check_model(spec_of(good), zoo=good)
        (process,) = processes() - before
        process.kill()
        process.wait(30)
        await examiners.check_model(spec_of(good), zoo=good)


async def test_who_comes_when_too_many_wait_is_told_to_try_again(tmp_path: Path) -> None:
    slow, good = zoo_of(tmp_path / "slow", SLOW), zoo_of(tmp_path / "good", MODULE)
    with examining(processes=1, waiting=1, cpu_s=60, wall_s=60) as examiners:
        first = asyncio.create_task(examiners.check_model(spec_of(slow), zoo=slow))
        second = asyncio.create_task(examiners.check_model(spec_of(good), zoo=good))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="at this moment") as caught:
            await examiners.check_model(spec_of(good), zoo=good)
        assert "try again" in caught.value.fix
        second.cancel()  # whoever waits no more leaves the place to others
        await asyncio.wait({second})
        third = asyncio.create_task(examiners.check_model(spec_of(good), zoo=good))
        await asyncio.sleep(0)
        examiners.close()
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], UserCodeError)
        await asyncio.wait({third})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param(filled("a=b\n") + "\n" * len(MODULE) + "#", "may have", id="larger than a module may be"),
        pytest.param("(" * 100_000, "model.py", id="open parentheses"),
        pytest.param("x = " + "-" * 100_000 + "1", "model.py", id="signs"),
        pytest.param("x = " + "1+" * 100_000 + "1", "model.py", id="sums"),
        pytest.param("x = a" + ".b" * 100_000, "model.py", id="attributes"),
        pytest.param("x = a" + "()" * 100_000, "model.py", id="calls"),
        pytest.param("".join(f"{' ' * n}if 1:\n" for n in range(99)), "model.py", id="indentation"),
        pytest.param("x = " + "9" * 100_000, "model.py", id="digits"),
        pytest.param("x" * 500_000 + " = 1", "does not define", id="a long name"),
        pytest.param("def custom_model(): return " + "f(" * 80 + ")" * 80, "does not define", id="nested calls"),
        pytest.param(b"# coding: idna\n" + b"a" * 100_000, "model.py", id="another encoding"),
        pytest.param(b"\xff\xfe" * 1000, "model.py", id="no text"),
    ],
)
async def test_hostile_modules_are_refused_at_the_door(api: Api, source: str | bytes, words: str) -> None:
    answer = await api.http.post("/jobs", json=await api.spec(model_bundle=await api.upload({"model.py": source})))
    assert (answer.status_code, answer.json()["code"]) == (422, "user_code"), answer.text[:500]
    assert words in answer.json()["detail"]
    assert answer.json()["fix"]
    assert len(answer.content) < 20_000
    assert (await api.http.get("/jobs")).json()["jobs"] == []


@pytest.mark.parametrize("line", ["f(a)\n", "[],"])
async def test_the_largest_modules_leave_the_api_as_it_was(api: Api, line: str) -> None:
    source = (
        MODULE + "x = (\n" + filled(line)[: -2 * len(line) - 20] + ")\n"
        if "\n" not in line
        else filled(line) + MODULE
    )
    spec = await api.spec(model_bundle=await api.upload({"model.py": source}))
    before = psutil.Process().memory_info().rss
    answer = await api.http.post("/jobs", json=spec)
    assert answer.status_code in (201, 422), answer.text
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert (await api.http.get("/jobs")).status_code == 200


async def test_valid_jobs_at_once_are_all_taken(api: Api) -> None:
    """Parsed in threads, some of them failed: the parser of Python 3.11 counts its depth once for all threads."""
    source = MODULE + "".join(f"x{n} = {'(' * 50}{n}{')' * 50}\n" for n in range(500))
    spec = await api.spec(model_bundle=await api.upload({"model.py": source}))
    answers = await asyncio.gather(*(api.http.post("/jobs", json=spec) for _ in range(24)))
    assert [answer.status_code for answer in answers] == [201] * 24


async def test_modules_beside_many_files_are_found(api: Api) -> None:
    files: dict[str, str | bytes] = {f"data/{n}.txt": b"x" for n in range(500)}
    digest = await api.upload({**files, "pkg/model.py": MODULE})
    answer = await api.http.post(
        "/jobs", json=await api.spec(model_bundle=digest, model_def="pkg.model.custom_model")
    )
    assert answer.status_code == 201, answer.text


def test_the_process_that_reads_is_light() -> None:
    heavy = ("tensorflow", "keras", "numpy", "fastapi", "pydantic", "sqlalchemy", "grpc", "asyncio")
    program = f"import elasticdl_api.examination.process, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-E", "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def _folders(count: int, depth: int) -> bytes:
    return make_zip({f"{'/'.join(f'{n}.{d}' for d in range(depth))}/x.py": b"" for n in range(count)})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda: _folders(120, 20), "folders", id="folders"),
        pytest.param(lambda: make_zip({f"{'a/' * 21}x.py": b""}), "deep", id="depth"),
        pytest.param(lambda: make_zip({f"{n}": b"" for n in range(10_001)}), "members", id="members"),
        pytest.param(lambda: make_zip({"a" * 256: b""}), "name", id="a long name"),
        pytest.param(lambda: make_zip({"a": b"", "a/b": b""}), "twice", id="a file as a folder"),
        pytest.param(lambda: b"", "no end", id="nothing"),
        pytest.param(lambda: b"PK\5\6" + b"\0" * 18, None, id="no members"),
    ],
)
async def test_zips_that_would_fill_the_disk_are_refused(
    api: Api, make: Callable[[], bytes], words: str | None
) -> None:
    data = make()
    answer = await api.http.put(f"/bundles/{digest_of(data)}", content=data)
    if words is None:
        assert answer.status_code == 201
        return
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert words in answer.json()["detail"]
    assert [one.name for one in api.services.settings.bundles_dir.iterdir()] == []


async def test_many_zips_of_one_namespace_do_not_delay_anothers(tmp_path: Path) -> None:
    """They waited in one line: who came after a hundred others waited for all of them."""
    slow, good = zoo_of(tmp_path / "slow", SLOW), zoo_of(tmp_path / "good", MODULE)
    ended: list[str] = []

    async def check(namespace: str, zoo: str) -> None:
        with contextlib.suppress(UserCodeError):
            await examiners.check_model(spec_of(zoo), namespace=namespace, zoo=zoo)
        ended.append(namespace)

    with examining(processes=2, waiting=4, cpu_s=1, wall_s=60) as examiners:
        many = [asyncio.create_task(check("greedy", slow)) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError):
            await examiners.check_model(spec_of(good), namespace="greedy", zoo=good)
        await check("modest", good)
        assert ended == ["modest"]
        for task in many:
            task.cancel()
        await asyncio.wait(many)


def test_owners_have_turns_in_a_circle() -> None:
    turns: FairQueue[int] = FairQueue()
    for owner, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        turns.add(owner, item)
    assert (len(turns), turns.count("a"), turns.count("d")) == (6, 3, 0)
    assert turns.take(lambda owner: owner != "a") == ("b", 4)
    assert [turns.take(lambda _: True) for _ in range(4)] == [("a", 1), ("c", 5), ("b", 6), ("a", 2)]
    assert turns.take(lambda owner: owner != "a") is None
    turns.add("d", 7)
    turns.discard("d", 7)
    turns.discard("d", 7)
    assert (len(turns), turns.count("d")) == (1, 0)
    assert turns.clear() == [3]
    assert len(turns) == 0
