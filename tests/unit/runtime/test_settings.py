"""Settings: which variable a field is, and errors that name it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.settings import ProcessSettings

pytestmark = pytest.mark.unit


class Example(ProcessSettings):
    job_id: str
    index: int
    job_dir: Path = Path("/tmp")
    recovery_s: float = 30.0
    host: str = Field(default="here", validation_alias="ELASTICDL_API_HOST")


class Prefixed(ProcessSettings):
    model_config = SettingsConfigDict(env_prefix="ELASTICDL_SCHEDULER_")

    lease_s: float = 10.0


NEEDED = {"ELASTICDL_JOB_ID": "a", "ELASTICDL_INDEX": "3"}


def test_fields_are_variables() -> None:
    found = Example.read({**NEEDED, "ELASTICDL_JOB_DIR": "/data", "ELASTICDL_API_HOST": "there", "OTHER": "x"})
    assert (found.job_id, found.index, found.job_dir, found.host) == ("a", 3, Path("/data"), "there")
    assert found.recovery_s == 30.0
    assert Prefixed.read({"ELASTICDL_SCHEDULER_LEASE_S": "2.5", "ELASTICDL_LEASE_S": "9"}).lease_s == 2.5


def test_the_process_own_environment_is_read_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)
    assert Example.read().index == 3
    assert Example.read({**NEEDED, "ELASTICDL_INDEX": "4"}).index == 4
    assert Example(job_id="b", index=5).host == "here"
    with pytest.raises(InvalidInputError, match="ELASTICDL_JOB_ID is not set"):
        Example.read({})


@pytest.mark.parametrize(
    ("variables", "message", "fix"),
    [
        ({"ELASTICDL_INDEX": "1"}, "the environment variable ELASTICDL_JOB_ID is not set", "set ELASTICDL_JOB_ID"),
        (
            {**NEEDED, "ELASTICDL_INDEX": "one"},
            "ELASTICDL_INDEX='one' is not a whole number",
            "set ELASTICDL_INDEX to a whole number",
        ),
        (
            {**NEEDED, "ELASTICDL_INDEX": "1.5"},
            "ELASTICDL_INDEX='1.5' is not a whole number",
            "set ELASTICDL_INDEX to a whole number",
        ),
        (
            {**NEEDED, "ELASTICDL_RECOVERY_S": "soon"},
            "ELASTICDL_RECOVERY_S='soon' is not a number",
            "set ELASTICDL_RECOVERY_S to a number",
        ),
    ],
)
def test_errors_name_the_variable_and_what_to_set(variables: dict[str, str], message: str, fix: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Example.read(variables)
    assert (caught.value.message, caught.value.fix) == (message, fix)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Example(job_id="b", index=5).index = 6  # type: ignore[misc]
