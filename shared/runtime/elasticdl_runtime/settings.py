"""Settings of a process, read once from its environment, with errors that name the variable."""

from __future__ import annotations

import os
from collections.abc import Mapping

from elasticdl_core.errors import InvalidInputError


class Environment:
    """Reads typed settings from environment variables.

    Args:
        variables: the variables; the process's own by default.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = os.environ if variables is None else variables

    def text(self, name: str, default: str | None = None) -> str:
        """A string setting.

        Raises:
            InvalidInputError: it is missing and has no default.
        """
        value = self._variables.get(name, default)
        if value is None:
            raise InvalidInputError(f"the environment variable {name} is not set", fix=f"set {name}")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole-number setting.

        Raises:
            InvalidInputError: it is missing and has no default, or is no whole number.
        """
        return int(self._number(name, default, "a whole number", int))

    def seconds(self, name: str, default: float | None = None) -> float:
        """A duration in seconds.

        Raises:
            InvalidInputError: it is missing and has no default, or is no number.
        """
        return self._number(name, default, "a number of seconds", float)

    def _number(self, name: str, default: float | None, what: str, kind: type[int] | type[float]) -> float:
        text = self.text(name, None if default is None else str(default))
        try:
            return kind(text)
        except ValueError:
            raise InvalidInputError(f"{name}={text!r} is not {what}", fix=f"set {name} to {what}") from None
