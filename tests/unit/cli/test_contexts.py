"""Contexts: APIs under names, in a private file; which API a command talks to, of all that could be meant."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from elasticdl.client.contexts import contexts_file
from elasticdl.client.endpoint import find_endpoint
from tests.fakes.api import TOKEN, FakeApi, make_job, serving
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit


@pytest.fixture
def lab(cli: Cli) -> Iterator[FakeApi]:
    """An API that only a context names."""
    for api in serving():
        api.jobs["lab-1"] = make_job("lab-1")
        yield api


def add(cli: Cli, name: str, api: FakeApi, *more: str) -> None:
    Path("token.txt").write_text(f"{TOKEN}\n")
    outcome = cli("context", "add", name, "--url", api.url, "--token-file", "token.txt", *more)
    assert (outcome.code, outcome.out) == (0, f"{name}  {api.url}\n"), outcome.err


def test_a_context_is_added_used_and_removed(cli: Cli, lab: FakeApi) -> None:
    assert cli("context", "list").out == "no contexts\n"
    add(cli, "lab", lab)
    assert cli("jobs", "list").code == 4, "one that is not in use names nothing"
    assert cli("--context", "lab", "jobs", "list", "--json").code == 0
    assert cli("context", "use", "lab").code == 0
    assert "lab-1" in cli("jobs", "list").out
    listed = json.loads(cli("context", "list", "--json").out)
    assert listed == [{"name": "lab", "url": lab.url, "token": True, "ca_file": "", "current": True}]
    assert TOKEN not in cli("context", "list").out
    assert cli("context", "remove", "lab").code == 0
    assert cli("jobs", "list").code == 4


def test_the_file_is_for_this_user_alone(cli: Cli, lab: FakeApi) -> None:
    add(cli, "lab", lab, "--use")
    path = contexts_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    outcome = cli("jobs", "list")
    assert (outcome.code, f"chmod 600 {path}" in outcome.err) == (2, True)


def test_the_environment_goes_before_contexts_and_a_contradiction_is_refused(
    cli: Cli, lab: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(cli, "lab", lab, "--use")
    for other in serving():
        other.jobs["other-1"] = make_job("other-1")
        monkeypatch.setenv("ELASTICDL_API_URL", other.url)
        monkeypatch.setenv("ELASTICDL_TOKEN", TOKEN)
        assert "other-1" in cli("jobs", "list").out
        outcome = cli("--context", "lab", "jobs", "list")
        assert (outcome.code, "ELASTICDL_API_URL is set and goes before" in outcome.err) == (2, True)


@pytest.mark.parametrize("by_context", [False, True])
def test_status_shows_the_cluster_that_is_named(
    cli: Cli, lab: FakeApi, monkeypatch: pytest.MonkeyPatch, *, by_context: bool
) -> None:
    if by_context:
        add(cli, "lab", lab, "--use")
    else:
        monkeypatch.setenv("ELASTICDL_API_URL", lab.url)
        monkeypatch.setenv("ELASTICDL_TOKEN", TOKEN)
    outcome = cli("status")
    assert (outcome.code, "1 of 4 in use" in outcome.out, lab.url in outcome.out) == (0, True, True), outcome.out
    assert "1 RUNNING" in outcome.out
    assert json.loads(cli("status", "--json").out)["api_url"] == lab.url
    elsewhere = cli("status", "--data-dir", "nowhere")
    assert (elsewhere.code, "No cluster runs with the data directory" in elsewhere.out) == (4, True)


def test_a_token_of_the_environment_is_not_sent_to_a_context(
    cli: Cli, lab: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(cli, "lab", lab, "--use")
    monkeypatch.setenv("ELASTICDL_TOKEN", "of-another-cluster")
    assert "lab-1" in cli("jobs", "list").out
    assert {seen.headers["authorization"] for seen in lab.seen} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("context", "use", "nope"), "there is no context 'nope'"),
        (("context", "remove", "nope"), "there is no context 'nope'"),
        (("--context", "nope", "jobs", "list"), "there is no context 'nope'"),
        (("context", "add", "a/b", "--url", "http://127.0.0.1:1"), "is no name of a context"),
        (("context", "add", "a", "--url", "nonsense"), "is not the address of an API"),
        (("context", "add", "a", "--url", "http://127.0.0.1:1", "--token-file", "nowhere"), "nowhere: No such file"),
    ],
)
def test_what_cannot_be_a_context_is_refused(cli: Cli, words: tuple[str, ...], said: str) -> None:
    outcome = cli(*words)
    assert outcome.code in {1, 2}
    assert said in outcome.err
    assert not contexts_file().exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"contexts": {"a": 1}, "current": ""}', "\x00\xff", '{"a":' * 9999])
def test_a_file_that_is_none_is_told(cli: Cli, text: str) -> None:
    path = contexts_file()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o600)
    for words in (("context", "list"), ("jobs", "list")):
        outcome = cli(*words)
        assert (outcome.code, "is no file of contexts" in outcome.err) == (2, True)


def test_a_context_remembers_what_its_api_is_verified_by(
    cli: Cli, lab: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(ca)
    add(cli, "lab", lab, "--use", "--ca-file", str(ca))
    assert find_endpoint().ca_file == str(ca)
    monkeypatch.setenv("ELASTICDL_CA_FILE", "/other.pem")
    assert find_endpoint().ca_file == "/other.pem"
    refused = cli("context", "add", "lab", "--url", lab.url, "--ca-file", "no-such-file.pem")
    assert refused.code == 2 and "no-such-file.pem cannot be used" in refused.err


def test_a_file_of_an_earlier_version_has_no_certificates(cli: Cli, lab: FakeApi) -> None:
    add(cli, "lab", lab, "--use")
    path = contexts_file()
    data = json.loads(path.read_text())
    del data["contexts"]["lab"]["ca_file"]
    path.write_text(json.dumps(data))
    assert find_endpoint().ca_file == ""
