"""Nothing that a job says acts on the terminal of whoever looks at it."""

from __future__ import annotations

import ast
import json
import unicodedata
from pathlib import Path

import pytest

import elasticdl.cli
from elasticdl.cli.plain_text import neutralise, neutralise_json, neutralise_log
from tests.fakes.api import FakeApi, make_job, make_status, sse
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m‮⁦\x08\x7f\x85"
SHOWN = "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202e\\u2066\\x08\\x7f\\x85"
ACTIVE = {chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) == "Cc"} - {"\n", "\t"}
ACTIVE |= {
    chr(n) for n in range(0x110000) if unicodedata.bidirectional(chr(n)) in {"LRE", "RLE", "LRO", "RLO", "PDF"}
}
TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
ACTIVE |= {chr(n) for n in range(0x110000) if unicodedata.bidirectional(chr(n)) in TURNS}
ACTIVE |= {"\u200e", "\u200f", "\u061c", "\u2028", "\u2029", "\U000e0041"}


def test_every_control_character_is_shown_and_all_else_left_alone() -> None:
    assert neutralise(EVIL) == SHOWN
    for letter in ACTIVE:
        assert ACTIVE.isdisjoint(neutralise(letter)), hex(ord(letter))
    plain = "größe\t→ 100 % 日本 👩‍💻\n"
    assert neutralise(plain) == plain
    assert neutralise("a\udcffb").encode() == b"a\\udcffb"


def test_a_progress_bar_in_a_log_becomes_lines() -> None:
    assert neutralise_log("1/3\r2/3\r3/3\r\ndone\n") == "1/3\n2/3\n3/3\ndone\n"


def test_json_means_the_same_and_holds_no_control_character() -> None:
    data = {"name": EVIL + "\U000e0041", "ü": "ü"}
    text = neutralise_json(json.dumps(data, ensure_ascii=False))
    assert json.loads(text) == data
    assert ACTIVE.isdisjoint(text)
    assert "ü" in text


def evil_job(job_id: str, **changes: object) -> dict[str, object]:
    status = make_status(
        10,
        20,
        degraded=EVIL,
        evaluation=EVIL,
        metrics={EVIL: 1.0},
        training_metrics={EVIL: 1.0},
        workers=[{"index": 0, "phase": EVIL, "state": EVIL}],
        ps=[{"index": 0, "state": EVIL}],
        skipped=[{"of": "main", "reason": EVIL, "records": 1, "example": EVIL}],
    )
    failure = {"message": EVIL, "fix": EVIL, "traceback": f"File {EVIL}\n  boom"}
    job = make_job(job_id, name=EVIL, reason=EVIL, target_reason=EVIL, status=status, artifacts=[{"name": EVIL}])
    return {**job, "error": failure, **changes}


@pytest.mark.rotates(turns=5)
@pytest.mark.parametrize("state", ["FAILED", "RUNNING", "QUEUED", "SUCCEEDED", "CANCELLED"])
@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "list"),
        ("jobs", "get", "a-1"),
        ("jobs", "get", "a-1", "--json"),
        ("jobs", "get", "a-1", "--watch"),
        ("jobs", "events", "a-1"),
        ("jobs", "events", "a-1", "--json"),
        ("jobs", "logs", "a-1"),
        ("jobs", "logs", "a-1", "--follow"),
        ("jobs", "artifacts", "a-1"),
        ("jobs", "scale", "a-1", "--priority=1"),
    ],
)
def test_no_command_hands_a_control_character_to_the_terminal(
    api: FakeApi, cli: Cli, state: str, words: tuple[str, ...]
) -> None:
    error = {"error": None} if state not in {"FAILED", "CANCELLED"} else {}
    api.jobs["a-1"] = evil_job("a-1", state=state, **error)
    api.events["a-1"] = [{"id": 1, "at": None, "kind": EVIL, "message": EVIL, "detail": {}}]
    api.logs["a-1"] = f"{EVIL}\n"
    api.streams["a-1"] = [[sse("event", {"kind": EVIL, "message": EVIL}, 1), sse("end", {})]]
    outcome = cli(*words)
    assert ACTIVE.isdisjoint(outcome.out + outcome.err)
    assert "owned" in outcome.out + outcome.err or words[1] == "scale"


def test_a_refusal_of_the_api_is_told_without_control_characters(api: FakeApi, cli: Cli, zoo: Path) -> None:
    api.refusal = {"code": "user_code", "detail": EVIL, "fix": EVIL, "traceback": EVIL}
    train = ("train", "--model_zoo=zoo", "--model_def=digits.forward", "--training_data=data")
    outcome = cli(*train)
    assert ACTIVE.isdisjoint(outcome.err)
    assert outcome.err.count("owned") == 3
    api.refusal = {"code": "invalid_spec", "problems": [{"field": EVIL, "message": EVIL, "fix": EVIL}]}
    outcome = cli(*train)
    assert ACTIVE.isdisjoint(outcome.err)


def test_a_log_that_is_trusted_can_be_had_as_it_is(api: FakeApi, cli: Cli) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.logs["a-1"] = "\x1b[32mgreen\x1b[0m\n"
    assert cli("jobs", "logs", "a-1", "--raw").out == "\x1b[32mgreen\x1b[0m\n"
    assert cli("jobs", "logs", "a-1", "--raw", "--follow").out == "\x1b[32mgreen\x1b[0m\n"


def test_commands_print_through_the_functions_that_neutralise() -> None:
    """Anything else would hand what others wrote to the terminal."""
    folder = Path(elasticdl.cli.__file__).parent
    forbidden = {"print", "echo", "secho", "Console"}
    found = []
    for path in sorted(folder.rglob("*.py")):
        if path.name == "output.py" or "zoo_template" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                of_typer = isinstance(called, ast.Attribute) and ast.unparse(called.value) == "typer"
                if name in forbidden and (isinstance(called, ast.Name) or of_typer):
                    found.append(f"{path.name}:{node.lineno}: {name}")
    assert found == []
