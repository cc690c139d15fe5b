"""Each verb of the command line has its place in the page, tried by a test, or a reason why it has none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from elasticdl.cli.main import build_app

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
_HERE = "it works on this machine, not on the cluster"
_SCRIPTS = "it is for scripts; the page goes on by itself"

IN_THE_PAGE = {
    "train": "test_submit.test_a_module_is_uploaded_and_submitted_with_its_settings",
    "evaluate": "test_whole_job.test_the_page_of_a_job_that_was_scaled_killed_and_resumed",
    "predict": "test_submit.test_a_checkpoint_is_gone_on_with_as_by_the_command_line",
    "run": "test_verbs.test_a_script_with_a_loop_of_its_own_is_submitted",
    "jobs list": "test_jobs.test_filters_order_and_search_are_in_the_address",
    "jobs get": "test_whole_job.test_the_page_of_a_job_that_was_scaled_killed_and_resumed",
    "jobs events": "test_verbs.test_events_are_those_of_the_api",
    "jobs logs": "test_whole_job.test_the_page_of_a_job_that_was_scaled_killed_and_resumed",
    "jobs metrics": "test_verbs.test_losses_and_evaluations_are_those_of_the_api",
    "jobs stacks": "test_stacks.test_stacks_of_all_processes",
    "jobs trace": "test_whole_job.test_the_page_of_a_job_that_was_scaled_killed_and_resumed",
    "jobs cancel": "test_actions.test_cancelling",
    "jobs suspend": "test_whole_job.test_the_page_of_a_job_that_was_scaled_killed_and_resumed",
    "jobs resume": "test_whole_job.test_the_page_of_a_job_that_was_scaled_killed_and_resumed",
    "jobs scale": "test_whole_job.test_the_page_of_a_job_that_was_scaled_killed_and_resumed",
    "jobs label": "test_actions.test_changing_labels",
    "jobs delete": "test_actions.test_deleting_a_job_that_is_over",
    "jobs artifacts": "test_whole_job.test_the_page_of_a_job_that_was_scaled_killed_and_resumed",
    "audit": "test_whole_job.test_the_page_of_a_job_that_was_scaled_killed_and_resumed",
    "explain": "test_verbs.test_a_job_is_explained_as_by_the_api",
    "what-if": "test_submit.test_the_forecast_names_whom_a_job_would_slow",
    "top": "test_verbs.test_the_cluster_is_shown_as_the_api_tells_it",
    "status": "test_verbs.test_the_cluster_is_shown_as_the_api_tells_it",
    "reserve": "test_admin.test_slots_are_reserved_and_given_back",
    "tokens create": "test_admin.test_a_token_is_made_shown_once_used_and_revoked",
    "tokens list": "test_admin.test_a_token_is_made_shown_once_used_and_revoked",
    "tokens revoke": "test_admin.test_a_token_is_made_shown_once_used_and_revoked",
    "namespaces create": "test_admin.test_a_namespace_is_made_changed_and_removed",
    "namespaces set": "test_admin.test_a_namespace_is_made_changed_and_removed",
    "namespaces list": "test_admin.test_a_namespace_is_made_changed_and_removed",
    "namespaces delete": "test_admin.test_a_namespace_is_made_changed_and_removed",
    "whoami": "test_verbs.test_the_page_says_who_is_logged_in",
    "sql": "test_sql.test_somebody_trains_evaluates_and_predicts_by_sql_alone",
    "zoo push": "test_submit.test_a_module_is_uploaded_and_submitted_with_its_settings",
}
"""By verb: the browser test that does the same in the page."""
NOT_IN_THE_PAGE = {
    "jobs wait": _SCRIPTS,
    "version": "the page is of the release of the api that serves it",
    "backup": _HERE,
    "restore": _HERE,
    "up": _HERE,
    "down": _HERE,
    "doctor": _HERE,
    "simulate": _HERE,
    "tensorboard": "it starts TensorBoard on this machine; the page has the same curves",
    "context list": _HERE,
    "context add": _HERE,
    "context use": _HERE,
    "context remove": _HERE,
    "zoo init": _HERE,
    "zoo build": _HERE,
    "data inspect": _HERE,
    "data validate": _HERE,
    "data convert": _HERE,
    "data generate digits": _HERE,
    "data generate mnist": _HERE,
    "data generate iris": _HERE,
    "data generate textures": _HERE,
    "data generate clicks": _HERE,
}
"""By verb: why the page does not have it."""


def verbs() -> Iterator[str]:
    """Every command by its words."""

    def walk(group: Any, words: list[str]) -> Iterator[str]:
        for verb, command in group.commands.items():
            if getattr(command, "commands", None):
                yield from walk(command, [*words, verb])
            else:
                yield " ".join([*words, verb])

    yield from walk(typer.main.get_command(build_app()), [])


def test_each_verb_has_its_place_or_a_reason() -> None:
    assert not IN_THE_PAGE.keys() & NOT_IN_THE_PAGE.keys()
    assert sorted(verbs()) == sorted([*IN_THE_PAGE, *NOT_IN_THE_PAGE])
    assert all(NOT_IN_THE_PAGE.values())


@pytest.mark.parametrize("place", sorted(set(IN_THE_PAGE.values())))
def test_the_test_of_each_place_is_there(place: str) -> None:
    module, _, name = place.partition(".")
    tree = ast.parse((ROOT / "tests" / "browser" / f"{module}.py").read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_documents_name_each_verb() -> None:
    text = (ROOT / "docs" / "dashboard.md").read_text()
    table = text[text.index("## By the command line or by the page") :]
    named = {verb.split()[-1] if verb.startswith("jobs ") else verb.split()[0] for verb in verbs()}
    assert [name for name in sorted(named) if f"`{name}" not in table and f"jobs {name}`" not in table] == []
