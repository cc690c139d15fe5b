"""Logs: each line says which process wrote it and what it worked on, in either form, and no secret."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit
PROGRAM = """
import logging, threading
import structlog
from elasticdl_runtime.telemetry import work
from elasticdl_runtime.telemetry.logs import configure_logs

configure_logs(role="worker", job="digits-1", index=3, incarnation=2)
log = structlog.get_logger("x")

def train():
    work.begin("t:0:1:0:16", "1.24.00ff00ff00ff00ff")
    print("what the user prints")
    log.info("trained", loss=0.5)
    logging.getLogger("library").warning("said %s", "so")
    work.end()

thread = threading.Thread(target=train)
thread.start()
thread.join(60)
log.warning("asked", token="abc", url="postgres://me:hidden@host/db", header="Bearer abcdefghijkl", empty_token="")
"""
OF_PROCESS = {"role": "worker", "job": "digits-1", "index": 3, "incarnation": 2}


def printed(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=60, check=False
    )


def test_lines_of_json_say_which_process_and_which_task() -> None:
    done = printed(ELASTICDL_LOG_FORMAT="json")
    assert done.stdout == "what the user prints\n"
    trained, said, asked = [json.loads(line) for line in done.stderr.splitlines()]
    of_task = {**OF_PROCESS, "task": "t:0:1:0:16", "lease": "1.24"}
    assert trained.pop("timestamp").endswith("Z")
    assert trained == {**of_task, "level": "info", "event": "trained", "loss": 0.5}
    assert {**of_task, "level": "warning", "event": "said so", "logger": "library"}.items() <= said.items()
    assert OF_PROCESS.items() <= asked.items()
    assert "task" not in asked
    assert (asked["token"], asked["empty_token"], asked["header"]) == ("***", "", "Bearer ***")
    assert asked["url"] == "postgres://me:***@host/db"


@pytest.mark.parametrize("variables", [{}, {"ELASTICDL_LOG_FORMAT": "text"}, {"ELASTICDL_LOG_FORMAT": "plain"}])
def test_lines_for_people_say_the_same_without_colours(variables: dict[str, str]) -> None:
    done = printed(**variables)
    trained, said, asked = done.stderr.splitlines()
    for word in ("trained", "job=digits-1", "index=3", "incarnation=2", "task=t:0:1:0:16", "lease=1.24", "loss=0.5"):
        assert word in trained
    assert "said so" in said
    assert "lease=1.24" in said
    assert "hidden" not in asked
    assert "abcdefghijkl" not in asked
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(("name", "value"), [("FORMAT", "yaml"), ("LEVEL", "loud")])
def test_what_is_no_format_and_no_level_is_refused(name: str, value: str) -> None:
    done = printed(**{f"ELASTICDL_LOG_{name}": value})
    assert done.returncode == 64
    assert value in done.stderr
    assert "give" in done.stderr
