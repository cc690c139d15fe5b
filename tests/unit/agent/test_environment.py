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
        "PYTHONUTF8": "1",
        "PATH": "/bin",
        "HTTPS_PROXY": "http://proxy",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    assert base_environment(given) == {"PYTHONUTF8": "1", "PATH": "/bin", "LANG": "C.UTF-8"}
