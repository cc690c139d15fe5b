"""What control groups of both versions say of memory, as the kernel writes it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from elasticdl_agent.processes.memory import LATELY_S, OomKills
from elasticdl_runtime.memory_group import MemoryGroups, MemoryRoom

pytestmark = pytest.mark.unit
GIB = 1 << 30
V1 = "9:name=systemd:/\n5:cpu,cpuacct:/other\n4:memory:/docker/one\n0::/\n"
NONE_V1 = "9223372036854771712"


def groups(root: Path, told: str, files: dict[str, str]) -> MemoryGroups:
    for name, content in {"proc/self/cgroup": told, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")
    return MemoryGroups(root / "proc", root / "fs")


def v1(folder: str, limit: int | str, used: int, kills: int) -> dict[str, str]:
    names = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used}
    told = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}"
    return {f"{folder}/{name}": str(value) for name, value in names.items()} | {f"{folder}/memory.oom_control": told}


def v2(folder: str, limit: int | str, used: int, kills: int) -> dict[str, str]:
    names = {"memory.max": limit, "memory.current": used}
    told = f"low 0\nhigh 0\nmax 7\noom 5\noom_kill {kills}\noom_group_kill 0"
    return {f"{folder}/{name}": str(value) for name, value in names.items()} | {f"{folder}/memory.events": told}


@pytest.mark.parametrize(
    ("told", "files", "limit", "kills"),
    [
        ("0::/", v2("fs", 1000, 400, 2), 1000, 2),
        ("0::/a/b", v2("fs/a", 1000, 400, 9) | v2("fs/a/b", "max", 400, 2), 1000, 2),
        ("0::/a/b", v2("fs/a", "max", 400, 9) | v2("fs/a/b", "max", 400, 0), None, 0),
        ("0::/not/seen/from/here", v2("fs", 1000, 400, 1), 1000, 1),
        (V1, v1("fs/memory/docker/one", 1000, 400, 3) | v1("fs/memory", NONE_V1, 800, 8), 1000, 3),
        (V1, v1("fs/memory", 1000, 400, 4), 1000, 4),
        (V1, v1("fs/memory/docker/one", NONE_V1, 400, 0) | v2("fs", 1000, 1, 1), None, 0),
        ("", {"proc/vmstat": "nr_free_pages 7\noom_kill 6"}, None, 6),
        ("0::/", {"fs/cgroup.controllers": "memory", "proc/vmstat": "oom_kill 5"}, None, 5),
        ("", {}, None, 0),
    ],
)
def test_limit_use_and_kills_of_both_versions(
    tmp_path: Path, told: str, files: dict[str, str], limit: int | None, kills: int
) -> None:
    """Version 1 was not looked at, nor was a limit of a group above, nor a container's own group at another path."""
    found = groups(tmp_path, told, files)
    machine = psutil.virtual_memory().total
    assert found.oom_kills() == kills
    assert found.room() == MemoryRoom(limit or machine, limit is not None)
    assert found.available() == 600 if limit else found.available() > 600


@pytest.mark.parametrize(
    ("told", "files", "most"),
    [
        ("0::/a/b", {"fs/a/pids.max": "60", "fs/a/b/pids.max": "max"}, 60),
        ("8:pids:/docker/one\n0::/\n", {"fs/pids/docker/one/pids.max": "300", "fs/pids/pids.max": "70"}, 70),
        ("0::/", {"fs/pids.max": "max"}, None),
        ("", {}, None),
    ],
)
def test_the_least_limit_of_threads_holds(tmp_path: Path, told: str, files: dict[str, str], most: int | None) -> None:
    """A cluster came up in a container of 60 threads, and its first job met `RuntimeError`."""
    assert groups(tmp_path, told, files).most_threads() == most


def test_a_room_that_is_too_small_for_its_slots_says_how_many_fit() -> None:
    small = MemoryRoom(GIB, of_group=True)
    assert small.describe(2) == "1.0 GiB, the limit of this container or control group, for 2 slots"
    assert "--slots 1" in small.fix(2) and "--memory" in small.fix(2)
    assert small.fix(1) == ""
    assert "--slots" not in MemoryRoom(GIB // 2, of_group=True).fix(1)
    assert MemoryRoom(16 * GIB, of_group=False).fix(8) == ""
    assert "add memory" in MemoryRoom(GIB, of_group=False).fix(8)


def test_only_kills_of_a_moment_ago_count() -> None:
    """A worker that somebody killed hours after another had run out of memory was said to have done so, too."""
    now, count = 0.0, 7
    kills = OomKills(lambda: count, lambda: now)
    assert not kills.lately()
    count = 8
    assert kills.lately()
    for _ in range(int(LATELY_S / 0.5)):
        assert kills.lately()
        now += 0.5
        kills.look()
    now += 0.5
    assert not kills.lately()
    now, count = 1000.0, 9
    assert kills.lately(), "nobody looked for long: it may have been a moment ago"
