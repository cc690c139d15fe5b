"""`./dev` finds a Python that will do, mends an environment that was not finished, and ends as it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("usable", "named", "chosen"),
    [
        (["python3", "python3.12"], "", "python3"),
        (["python3.12", "python3.11"], "", "python3.12"),
        (["python3.11"], "", "python3.11"),
        (["python3", "own"], "own", "own"),
        (["python3"], "own", "python3"),
        ([], "", ""),
    ],
)
def test_the_first_python_that_will_do_is_taken(tmp_path: Path, usable: list[str], named: str, chosen: str) -> None:
    for name in ("python3", "python3.13", "python3.12", "python3.11", "own"):
        answers = '[ "$PYTHONHOME" ] && exit 1\n'
        answers += f'[ "$2" = -c ] && exit {int(name not in usable)}\n[ "$1" = --version ] && echo "Python 3.8.1"'
        program(tmp_path / name, f'{answers}\n[ "$1" = --version ] || echo "{name} $1 $3"')
    for needed in ("dirname", "sh"):
        (tmp_path / needed).symlink_to(f"/usr/bin/{needed}")
    env = {"PATH": str(tmp_path), "ELASTICDL_PYTHON": named, "PYTHONHOME": "/of/another"}
    done = subprocess.run([ROOT / "dev", "status"], capture_output=True, text=True, timeout=60, check=False, env=env)
    assert (done.returncode, done.stdout.strip()) == ((0, f"{chosen} -E status") if chosen else (1, ""))
    if not chosen:
        assert "on PATH there is Python 3.8.1" in done.stderr and "fix: install one" in done.stderr


def test_an_environment_that_was_not_finished_is_made_anew(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev.VENV, dev.BIN = tmp_path / "venv", tmp_path / "venv" / "bin"
    dev.BIN.mkdir(parents=True)
    (dev.VENV / "pyvenv.cfg").write_text("home = /usr/bin\n")
    program(dev.BIN / "python", "exit 1")  # No module named pip
    made = []
    monkeypatch.setattr(dev, "make_venv", lambda: made.append(dev.VENV.exists()) or dev.VENV.mkdir())
    monkeypatch.setattr(dev, "install", lambda extras: made.append(extras))
    dev.ensure(["local"])
    assert made == [False, ["local"]]
    dev.ensure(["local"])
    assert len(made) == 2, "what is finished is left alone"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_an_interrupted_environment_is_removed(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    dev.VENV, dev.BIN = tmp_path / "venv", tmp_path / "venv" / "bin"

    def begin() -> None:
        dev.BIN.mkdir(parents=True)
        raise error

    monkeypatch.setattr(dev, "make_venv", begin)
    with pytest.raises(error):
        dev.ensure(["local"])
    assert not dev.VENV.exists()


INTERRUPTED = """
import importlib.util, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs tests in its background has it ignored
spec = importlib.util.spec_from_file_location("dev", {dev!r})
dev = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dev)
dev.VERBS["try"] = lambda _: dev.run([sys.executable, "-c", {child!r}])
sys.exit(dev.main(["try"]))
"""
CHILD = """
import signal, socket, sys
woken, waker = socket.socketpair()  # signal.pause would wait for ever for a signal that came just before it
waker.setblocking(False)
signal.set_wakeup_fd(waker.fileno())
signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), sys.exit(7)))
print("runs", flush=True)
while True:  # the byte may be read before the handler runs, and a program that is at its end runs none
    woken.recv(1)
"""


@pytest.mark.parametrize(
    ("number", "child", "code", "said"),
    [
        (signal.SIGTERM, CHILD, 7, "told"),
        (signal.SIGHUP, CHILD, 128 + signal.SIGHUP, ""),
        (signal.SIGINT, CHILD.replace("SIGTERM, lambda", "SIGUSR1, lambda"), 128 + signal.SIGINT, ""),
    ],
)
def test_signals_reach_what_was_started(number: signal.Signals, child: str, code: int, said: str) -> None:
    source = INTERRUPTED.format(dev=str(ROOT / "tools" / "dev.py"), child=child)
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "runs\n"
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out.strip()) == (code, said)
    if number is signal.SIGINT:
        assert err.splitlines()[-1] == "dev: interrupted"


SETTINGS = """:env:.extra-index-url='https://a/simple'
global.cert='/etc/ca.pem'
global.extra-index-url='https://b/simple https://c/simple'
global.find-links='/opt/wheels'
global.index-url='https://d/simple'
user.user='true'
"""


def test_where_pip_finds_packages_is_told_to_uv(dev: ModuleType) -> None:
    options = dev.uv_options(SETTINGS, {})
    assert " ".join(options) == (
        "--find-links /opt/wheels --index-url https://d/simple --extra-index-url https://a/simple"
        " --index-strategy unsafe-best-match"
    )
    assert dev.uv_options(SETTINGS, {"UV_INDEX_URL": "https://e/simple"}) == ["--find-links", "/opt/wheels"]
    assert dev.uv_options("", {}) == []


def test_settings_that_put_packages_elsewhere_are_left_out(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_TARGET", "PIP_PREFIX", "PYTHONHOME"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("PIP_USER", "1")
    env = dev.environment()
    assert env["PIP_USER"] == "0" and not {"PIP_TARGET", "PIP_PREFIX", "PYTHONHOME"} & env.keys()
