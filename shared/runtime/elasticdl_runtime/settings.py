"""Settings of a process, read once from its environment, with errors that name the variable.

Each process has a ``settings.py`` with one class that derives from ``ProcessSettings``; nothing else reads variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Self

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from elasticdl_core.errors import InvalidInputError

PREFIX = "ELASTICDL_"
_variables: ContextVar[Mapping[str, str] | None] = ContextVar("variables", default=None)


class ProcessSettings(BaseSettings):
    """Fields are variables: ``job_id`` is ``ELASTICDL_JOB_ID``, unless the field has a ``validation_alias``.

    A validator that finds a value unusable raises InvalidInputError itself, with what to set instead.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=PREFIX, extra="ignore", frozen=True, validate_by_name=True, hide_input_in_errors=True
    )

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Self:
        """Reads and checks the settings.

        Args:
            variables: instead of the environment of the process.

        Raises:
            InvalidInputError: one is missing or unusable; the error names it.
        """
        given = _variables.set(os.environ if variables is None else variables)
        try:
            return cls()
        except ValidationError as error:
            raise _invalid(cls, error, _variables.get() or {}) from None
        finally:
            _variables.reset(given)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Takes ``read``'s variables alone, and nothing from the environment where a test builds the settings."""
        variables = _variables.get()
        return (init_settings,) if variables is None else (_Given(settings_cls, variables),)


class _Given(EnvSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], variables: Mapping[str, str]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {name.lower(): value for name, value in variables.items()}


def variable_of(settings: type[ProcessSettings], name: str) -> str:
    """The variable that a field is read from."""
    field = settings.model_fields.get(name)
    if field is None:
        return name
    alias = field.validation_alias
    return alias if isinstance(alias, str) else f"{settings.model_config['env_prefix']}{name}".upper()


def _invalid(
    settings: type[ProcessSettings], error: ValidationError, variables: Mapping[str, str]
) -> InvalidInputError:
    first: dict[str, Any] = dict(error.errors(include_url=False, include_input=False)[0])
    variable = variable_of(settings, str(first["loc"][0]))
    if first["type"] == "missing":
        return InvalidInputError(f"the environment variable {variable} is not set", fix=f"set {variable}")
    what = _EXPECTED.get(first["type"], first["msg"])
    return InvalidInputError(
        f"{variable}={variables.get(variable, '')!r} is not {what}", fix=f"set {variable} to {what}"
    )


_EXPECTED = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
}
