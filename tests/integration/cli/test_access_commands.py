"""Tokens, namespaces and the audit log from the command line and the client, against a real API."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from elasticdl import Client
from elasticdl.cli.main import main
from elasticdl_core.errors import InvalidInputError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from tests.integration.cli.test_real_api import RealApi, real_api

__all__ = ["real_api"]
pytestmark = pytest.mark.integration
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(real_api: RealApi, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("ELASTICDL_API_URL", real_api.url)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*words: str, token: str = real_api.token) -> tuple[int, str, str]:
        monkeypatch.setenv("ELASTICDL_TOKEN", token)
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        shown = capfd.readouterr()
        return end.value.code if isinstance(end.value.code, int) else 0, shown.out, shown.err

    return command


def test_a_token_is_made_shown_once_used_and_revoked(run: Run) -> None:
    assert run("namespaces", "create", "team-a", "--data-root", "/data/a", "--limit", "max_streams=5")[0] == 0
    made = run(
        "tokens", "create", "ada-laptop", "--namespace=team-a", "--owner=ada", "--scope=submit", "--expires=90d"
    )
    code, out, err = made
    token = out.strip()
    assert code == 0 and token.startswith("edl_") and "\n" not in token
    assert "(ada-laptop) of ada: submit in the namespace team-a, until " in err and "not shown again" in err
    code, out, _ = run("whoami", token=token)
    assert code == 0 and out.startswith("ada: submit in the namespace team-a of http://")
    assert run("namespaces", "list", token=token)[1].split()[-4:] == ["1", "/data/a", "max_streams=5", "-"]
    code, _, err = run("tokens", "list", token=token)
    assert code == 1 and "needs the scope 'admin'" in err and "fix:" in err
    listed = run("tokens", "list", "--namespace", "team-a")[1]
    assert "ada-laptop" in listed and token not in listed
    code, _, err = run("whoami", token=token[:-1])
    assert code == 1 and "mistyped or cut off" in err
    assert run("tokens", "revoke", "ada-laptop")[0] == 0
    code, _, err = run("whoami", token=token)
    assert code == 1 and "the token 'ada-laptop' was revoked" in err
    assert run("tokens", "revoke", "ada-laptop")[0] == 1
    (ended,) = json.loads(run("tokens", "list", "--all", "--namespace", "team-a", "--json")[1])
    assert ended["state"] == "revoked"
    assert "state: revoked" in run("tokens", "list", "--all", "--namespace", "team-a", "-o", "yaml")[1]
    shown = run("audit", "--namespace", "team-a")[1]
    assert [shown.index(action) for action in ("token.revoke", "token.create", "namespace.create")] == sorted(
        shown.index(action) for action in ("token.revoke", "token.create", "namespace.create")
    )
    assert "namespace.create" in run("audit", "--namespace", "team-a", "--since", "1h")[1]
    assert json.loads(run("audit", "--namespace", "team-a", "--since", "0s", "--json")[1]) == []
    for wrong in ("yesterday", "2999-01-01"):
        code, _, said = run("audit", "--since", wrong)
        assert (code, wrong in said) == (2, True)


def test_a_namespace_is_changed_and_removed(run: Run) -> None:
    assert run("namespaces", "set", "team-b", "--no-limits")[0] == 1  # there is none yet
    assert run("namespaces", "create", "team-b", "--data-root=/b", "--limit=max_streams=5")[0] == 0
    assert run("namespaces", "create", "team-b")[0] == 1
    assert run("namespaces", "set", "team-b", "--data-root=/c", "--data-root", "gs://b/")[0] == 0
    (found,) = [one for one in json.loads(run("namespaces", "list", "--json")[1]) if one["name"] == "team-b"]
    assert (found["data_roots"], found["limits"]) == (["/c", "gs://b/"], {"max_streams": 5})
    assert run("namespaces", "set", "team-b", "--no-data-roots", "--no-limits")[0] == 0
    (found,) = [one for one in json.loads(run("namespaces", "list", "--json")[1]) if one["name"] == "team-b"]
    assert (found["data_roots"], found["limits"]) == ([], {})
    assert run("namespaces", "delete", "team-b")[0] == 0
    code, _, err = run("namespaces", "delete", "default")
    assert code == 1 and "stays" in err


def test_a_namespace_has_sources_that_statements_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a, 'x' AS b UNION SELECT 2, 'y'")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"sqlite:///{tmp_path}/shop.db\n"))
    assert run("namespaces", "create", "team-s", "--source=shop=-", "--source=old=sqlite:///old.db")[0] == 0
    assert run("namespaces", "set", "team-s", "--no-source=old")[0] == 0
    token = run("tokens", "create", "statements", "--namespace=team-s", "--scope=submit")[1].strip()
    listed = run("namespaces", "list", token=token)[1]
    assert listed.split()[-1] == "shop" and "sqlite" not in listed
    text = "SELECT * FROM t TO TRAIN LinearRegressor LABEL a INTO m"
    code, out, err = run("sql", "--source", "shop", "--dry-run", text, token=token)
    assert code == 0 and '"model_def": "model.forward"' in out and "LABEL = 'a'" in out, err
    for words, said in (
        (("--source=shop", "--local", text), "is the name of a source of the cluster"),
        (("--source=shop", f"--models={tmp_path}", text), "leave --models out"),
        (("--source=shop", text.replace("LABEL a", "LABEL c")), "line 1, column 42: the SELECT has no column c"),
        (("--source=other", text), "name one of shop"),
        (("--source=shop", "SHOW TRAIN m"), "there is no model m"),
    ):
        code, _, err = run("sql", *words, token=token)
        assert code in (1, 2) and said in err, err


@pytest.mark.parametrize(
    "words",
    [
        ("namespaces", "create", "c", "--source", "shop"),
        ("namespaces", "create", "c", "--source", "shop=mysql://db/x"),
        ("tokens", "create", "a", "--expires", "soon"),
        ("tokens", "create", "a", "--expires", "0d"),
        ("tokens", "create", "a", "--scope", "write"),
        ("tokens", "create", "a b"),
        ("tokens", "create", "a", "--cluster", "--namespace", "default"),
        ("namespaces", "create", "Team"),
        ("namespaces", "create", "c", "--limit", "max_streams"),
        ("namespaces", "create", "c", "--limit", "cpus=3"),
        ("namespaces", "create", "c", "--data-root", "relative"),
        ("namespaces", "set", "c"),
        ("namespaces", "set", "c", "--no-limits", "--limit", "max_streams=3"),
    ],
)
def test_what_is_wrong_is_refused_as_wrong_use(run: Run, words: tuple[str, ...]) -> None:
    code, _, err = run(*words)
    assert code == 2 and err
    assert "c" not in [one["name"] for one in json.loads(run("namespaces", "list", "--json")[1])]


def test_the_client_does_the_same(real_api: RealApi) -> None:
    with Client(real_api.url, real_api.token) as admin:
        assert admin.put_namespace("sdk", limits={"max_streams": 1})["name"] == "sdk"
        made = [admin.create_token(f"t{number}", namespace="sdk", owner="eve") for number in range(2)]
        admin.create_token("all", of_cluster=True)
        assert len(admin.tokens(namespace="sdk")) == len(admin.tokens(owner="eve")) == 2
        with Client(real_api.url, made[0]["token"]) as reader:
            assert reader.whoami()["user"] == "eve"
            assert reader.version() == admin.version()
            with pytest.raises(PermissionDeniedError):
                reader.create_token("more")
            with pytest.raises(NotFoundError):
                reader.namespace("default")
            admin.revoke_token(made[0]["id"])
            with pytest.raises(UnauthenticatedError):
                reader.whoami()
        page = admin.audit(actor="admin", target=made[0]["id"], limit=1)
        assert page["entries"][0]["action"] == "token.revoke"
        following = admin.audit(actor="admin", target=made[0]["id"], page_token=page["next_page_token"])
        assert following["next_page_token"] is None
        admin.delete_namespace("sdk")
        for call in (admin.revoke_token, admin.delete_namespace, admin.namespace):
            with pytest.raises(InvalidInputError):
                call("")


@pytest.mark.parametrize("words", ["audit", "namespaces list", "tokens create ci", "tokens list --all", "whoami"])
def test_all_formats_tell_the_same(run: Run, words: str) -> None:
    run("tokens", "create", "first")
    # A token of that name can be made once only.
    told = {name: run(*words.replace("ci", name).split(), "-o", name) for name in ("table", "wide", "json", "yaml")}
    assert {code for code, _, _ in told.values()} == {0}
    as_json, as_yaml = json.loads(told["json"][1]), yaml.safe_load(told["yaml"][1])
    if words in {"tokens create ci", "whoami"}:  # made anew, and used anew
        assert as_json.keys() == as_yaml.keys()
    else:
        assert [one.keys() for one in as_json] == [one.keys() for one in as_yaml]
    assert run(*words.split(), "--json", "-o", "yaml")[0] == 2
