"""A setting that a component cannot work with fails the start, with the reason from its log; restarts go on."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from elasticdl_agent.cluster import component as module
from elasticdl_agent.cluster.component import Component, ComponentSpec
from elasticdl_agent.cluster.services import Wiring
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.cluster.paths import DataDirectory
from elasticdl_runtime.lifecycle import within

pytestmark = pytest.mark.integration
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def wiring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wiring:
    monkeypatch.setenv("ELASTICDL_RUN_DIR", str(tmp_path / "run"))
    directory = DataDirectory(tmp_path / "data")
    directory.prepare()
    (directory.root / "token").write_text("t" * 40)
    return Wiring(directory, "http://127.0.0.1:1", 1, NOWHERE, "unix:///nowhere", "s" * 40, "n" * 40, 2)


async def start(spec: ComponentSpec) -> str:
    component = Component(spec, lambda *_: None)
    try:
        return await component.start()
    finally:
        await component.stop()


@pytest.mark.parametrize(
    ("component", "variable", "value", "said"),
    [
        ("scheduler", "ELASTICDL_SCHEDULER_QUOTAS", "nonsense", "ELASTICDL_SCHEDULER_QUOTAS is no JSON"),
        ("scheduler", "ELASTICDL_SCHEDULER_GOODPUT", '{"nope": 1}', "nope=1 is no number of the policy"),
        ("scheduler", "ELASTICDL_SCHEDULER_INTERVAL_S", "soon", "ELASTICDL_SCHEDULER_INTERVAL_S"),
        ("scheduler", "ELASTICDL_SCHEDULER_POLICY", "nope", "there is no scheduling policy 'nope'"),
        ("agent", "ELASTICDL_HEADROOM", "much", "ELASTICDL_HEADROOM"),
        ("agent", "ELASTICDL_ZYGOTE", "perhaps", "ELASTICDL_ZYGOTE"),
    ],
)
async def test_a_wrong_setting_fails_the_start_with_its_reason(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch, component: str, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    spec = wiring.scheduler_spec() if component == "scheduler" else wiring.agent_spec()
    with pytest.raises(UnavailableError, match="before it was ready") as caught:
        await start(spec)
    assert said in caught.value.message
    assert str(spec.log) in caught.value.fix


async def test_a_scheduler_that_works_says_so_and_a_file_of_an_earlier_one_says_nothing(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wiring.directory.run / "scheduler.ready").write_text("policy of an earlier life")
    monkeypatch.setenv("ELASTICDL_SCHEDULER_POLICY", "fifo")
    assert await start(wiring.scheduler_spec()) == "policy fifo"


async def test_a_restart_that_fails_for_any_reason_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only errors of the system were: after another one nobody kept the component any more."""
    monkeypatch.setattr(module, "RESTARTS", Backoff(0.01, 0.01))
    running: asyncio.Queue[int] = asyncio.Queue()
    starts: list[int] = []

    def prepare() -> None:
        starts.append(len(starts))
        if len(starts) == 2:
            raise psutil.NoSuchProcess(1)

    spec = ComponentSpec("sleeper", ("/bin/sleep", "1000"), {}, tmp_path / "log", before_start=prepare)
    component = Component(spec, lambda state, pid, _: running.put_nowait(pid) if state == "running" else None)
    await component.start()
    try:
        os.kill(await running.get(), signal.SIGKILL)
        assert await within(running.get(), 60)
        assert len(starts) == 3
    finally:
        await component.stop()
