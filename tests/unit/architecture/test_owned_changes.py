"""Who owns a change: what a call that is broken off could leave half done is made where nobody can break it off."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import elasticdl_master
from elasticdl_agent.table import ProcessTable
from elasticdl_master.dispatcher import TaskDispatcher
from elasticdl_master.queue.port import TaskQueue

pytestmark = pytest.mark.unit
MASTER = Path(elasticdl_master.__file__).parent
OWNER = MASTER / "dispatcher.py"
READS = {"load", "kept", "close"}
"""What the queue is asked before there is a dispatcher, and after."""


def calls_in(path: Path) -> set[str]:
    """Calls of the machine or the queue by their names, as ``machine.handle`` or ``queue.add``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            found.add(f"{owner.lstrip('_')}.{node.attr}")
    return found


def test_nobody_but_the_dispatcher_moves_tasks_or_tells_the_machine() -> None:
    moves = {f"queue.{name}" for name in vars(TaskQueue) if not name.startswith("_") and name not in READS}
    assert {"queue.exchange", "queue.return_", "queue.note", "queue.rebuild"} <= moves
    changing = moves | {"machine.handle"}
    assert changing & calls_in(OWNER) > {"machine.handle", "queue.exchange"}
    for path in sorted(MASTER.glob("*.py")):
        if path != OWNER:
            assert not changing & calls_in(path), f"{path.name} changes what belongs to the dispatcher"


def test_each_request_of_the_dispatcher_is_a_change_of_its_own() -> None:
    """Public methods await nothing but a change, or other requests: what they touch themselves they touch at once."""
    tree = ast.parse(inspect.getsource(TaskDispatcher)).body[0]
    assert isinstance(tree, ast.ClassDef)
    for method in tree.body:
        if isinstance(method, ast.AsyncFunctionDef) and not method.name.startswith("_"):
            awaited = {ast.unparse(node.value.func) for node in ast.walk(method) if isinstance(node, ast.Await)}  # type: ignore[attr-defined]
            allowed = {"self._changes.make", "self._changes.close", "self._serve", "self.give_back"}
            assert awaited <= allowed, f"{method.name} awaits {awaited - allowed}"


@pytest.mark.parametrize("change", ["launch", "terminate", "terminate_job", "reserve", "release"])
def test_the_agent_changes_its_table_without_waiting(change: str) -> None:
    """A call cannot be broken off between two lines of it; the life of a process is a task of the agent's own."""
    assert not inspect.iscoroutinefunction(getattr(ProcessTable, change))
