"""``--local``: reports of the local process are shown, and its end is the command's end."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from elasticdl.cli import local
from elasticdl.cli.formats import OutputFormat
from elasticdl.cli.local import LineLocalView, PanelLocalView, progress_words, reports, run_local, show

pytestmark = pytest.mark.unit

SPEC = {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/data"}


def progress(records: int, **changes: object) -> dict[str, object]:
    report = {"event": "progress", "records": records, "total": 100, "epoch": 0, "samples_per_second": 10.0}
    return {**report, "step": records, "loss": 0.5, **changes}


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a program in the place of the worker: a package of its name earlier on the path."""

    def put(program: str) -> None:
        package = tmp_path / "stand-in" / "elasticdl_worker"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        monkeypatch.chdir(tmp_path)

    return put


def test_reports_are_told_from_what_user_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ['{"event": "done"}\n', "hello\n", "[1, 2]\n", '{"not": "ours"}\n']
    assert list(reports(lines)) == [{"event": "done"}]
    assert capsys.readouterr().err == 'hello\n[1, 2]\n{"not": "ours"}\n'


def test_lines_are_few_and_the_last_progress_is_not_lost() -> None:
    stream = io.StringIO()
    times = iter([0.0, 1.0, 6.0, 7.0])
    evaluation = {"event": "evaluation", "epoch": 0, "step": 9, "metrics": {"accuracy": 0.75}}
    incoming = [
        progress(10, last_loss=0.25, learning_rate=0.01, training_metrics={"auc": "NaN", "accuracy": 0.5}),
        progress(20),
        progress(60),
        evaluation,
        progress(100),
        {"event": "done"},
    ]
    assert show(incoming, LineLocalView(stream, clock=lambda: next(times))) == {"event": "done"}
    assert stream.getvalue().splitlines() == [
        "10/100 records 10%  epoch 1  10 samples/s  loss 0.5 (last 0.25)  lr 0.01  "
        "training: auc nan, accuracy 0.5  eta 0:00:09",
        "60/100 records 60%  epoch 1  10 samples/s  loss 0.5  eta 0:00:04",
        "evaluation after epoch 1, step 9: accuracy 0.75",
        "100/100 records 100%  epoch 1  10 samples/s  loss 0.5",
    ]


def test_unknown_numbers_are_left_out() -> None:
    assert progress_words({"event": "progress", "records": 5}) == "5 records  epoch 1  0 samples/s"


def test_a_terminal_gets_a_bar() -> None:
    stream = io.StringIO()
    show([progress(10), {"event": "evaluation", "metrics": {"a": 1.0}}, progress(100)], PanelLocalView(stream))
    assert "100/100 records" in stream.getvalue()
    assert "evaluation after epoch 1" in stream.getvalue()


def test_a_run_that_ends_well_says_where_its_results_are(worker, tmp_path: Path, capfd) -> None:
    worker(
        "import json, os, sys\n"
        "spec = json.load(open(sys.argv[sys.argv.index('--spec') + 1]))\n"
        "print('a user prints')\n"
        "out = sys.argv[sys.argv.index('--output') + 1]\n"
        "note = [spec['model_def'], os.environ['A'], os.environ['TF_USE_LEGACY_KERAS']]\n"
        "print(json.dumps({'event': 'done', 'records': 9, 'steps': 3, 'metrics': {'accuracy': 0.5},"
        " 'training_metrics': {'accuracy': 'Infinity'}, 'reason': 'max_steps reached: 3 updates',"
        " 'artifacts': [{'name': ','.join(note), 'path': out + '/' + ','.join(note)}]}))\n"
    )
    assert run_local({**SPEC, "envs": {"A": "b"}, "keras": "legacy"}) == 0
    captured = capfd.readouterr()
    assert captured.out.splitlines() == [
        "done: 9 records, 3 steps, accuracy 0.5; training: accuracy inf",
        "  max_steps reached: 3 updates",
        f"  {tmp_path}/output/m.f,b,1",
    ]
    assert "a user prints" in captured.err


def test_a_run_that_fails_shows_the_traceback_and_passes_its_code_on(worker, capfd) -> None:
    worker(
        "import json, sys\n"
        "said = {'message': 'loss() raised', 'fix': 'mend it', 'traceback': 'm.py, line 3'}\n"
        "print(json.dumps({'event': 'error', **said}))\n"
        "sys.exit(5)\n"
    )
    assert run_local(SPEC) == 5
    assert capfd.readouterr().err.splitlines() == ["m.py, line 3", "error: loss() raised", "  fix: mend it"]


def test_a_run_that_is_killed_is_a_failure_that_says_so(worker, capfd) -> None:
    worker("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert run_local(SPEC) == 1
    err = capfd.readouterr().err
    assert "killed by signal 9" in err and "more memory" in err


def test_a_run_that_ends_without_a_word_is_a_failure(worker, capfd) -> None:
    worker("print('bye')\n")
    assert run_local(SPEC) == 1
    assert "ended with exit code 0 before it was done" in capfd.readouterr().err


def test_json_is_the_last_report_alone(worker, capfd) -> None:
    worker('print(\'{"event": "done", "metrics": {}}\')\n')
    assert run_local(SPEC, OutputFormat.JSON) == 0
    assert capfd.readouterr().out == '{\n  "event": "done",\n  "metrics": {}\n}\n'


def test_ctrl_c_ends_the_process_too(worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker('import time\nprint(\'{"event": "progress"}\', flush=True)\ntime.sleep(600)\n')
    started = []

    def interrupt(incoming, view):
        next(iter(incoming))
        raise KeyboardInterrupt

    real = local.subprocess.Popen

    def note(*args, **kwargs):
        started.append(real(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(local, "show", interrupt)
    monkeypatch.setattr(local, "STOP_WITHIN_S", 0.05)
    monkeypatch.setattr(local.subprocess, "Popen", note)
    with pytest.raises(SystemExit) as end:
        run_local(SPEC)
    assert end.value.code == 130
    assert started[0].poll() is not None
    assert sys.executable in started[0].args
