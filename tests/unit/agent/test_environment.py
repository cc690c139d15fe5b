"""Of the environment of who ran `up`, processes get what is harmless."""

from __future__ import annotations

import pytest

from elasticdl_agent.processes.environment import base_environment

pytestmark = pytest.mark.unit


def test_packages_and_credentials_of_who_ran_up_are_not_handed_on() -> None:
    given = {
        "PYTHONPATH": "/other/packages",
        "PYTHONHOME": "/usr",
        "PYTHONSTARTUP": "/x.py",
        "PYTHONOPTIMIZE": "2",
        "PYTHONWARNINGS": "error",
        "PYTHONUTF8": "1",
        "PATH": "/bin",
        "HTTPS_PROXY": "http://proxy",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    assert base_environment(given) == {"PYTHONUTF8": "1", "PATH": "/bin", "LANG": "C.UTF-8"}


def test_what_stores_need_is_handed_on_where_it_is_named() -> None:
    given = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL": "http://store",
        "ELASTICDL_CLUSTER_SECRET": "s",
        "PYTHONPATH": "/other",
        "ELASTICDL_STORE_VARIABLES": "AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,ELASTICDL_CLUSTER_SECRET,PYTHONPATH,GONE",
    }
    found = base_environment(given)
    assert found.keys() == {
        "AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "ELASTICDL_STORE_VARIABLES", "PATH", "LANG",
    }  # fmt: skip
