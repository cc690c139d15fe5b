"""The exceptions of ElasticDL.

    ElasticDLError                    something went wrong; carries a fix
    ├── InvalidInputError             what the user gave cannot work (spec, flag, path, record)
    │   ├── SpecError                 a job specification with one or more problems
    │   ├── UserCodeError             the model module is missing something, or raised
    │   ├── StatementError            a statement of SQL is wrong at a place
    │   └── DataError                 a data source is missing, unreadable, truncated or corrupt
    ├── NotFoundError                 no such object, or not yours to see
    ├── ConflictError                 the object is not in a state that allows this
    ├── UnauthenticatedError          no token, or one that is not valid
    ├── PermissionDeniedError         a valid token that does not allow this
    ├── UnavailableError              a peer is down or slow: try again
    └── FencedError                   a newer holder took over: stop at once, touch nothing

Every error says what happened, where, and what to do next (``fix``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ElasticDLError(Exception):
    """Base of all errors that ElasticDL raises on purpose.

    Args:
        message: what happened, and where.
        fix: what the reader can do about it; may be empty when nothing can be done.
    """

    code = "internal"

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class InvalidInputError(ElasticDLError):
    """The user's input cannot work."""

    code = "invalid_input"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a specification.

    Attributes:
        field: the field (the flag without its dashes) that is wrong.
        message: what is wrong with it.
        fix: what to write instead.
    """

    field: str
    message: str
    fix: str


class SpecError(InvalidInputError):
    """A job specification with one or more problems, all reported at once."""

    code = "invalid_spec"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [f"{p.field}: {p.message}" for p in self.problems]
        super().__init__("; ".join(lines), fix="; ".join(dict.fromkeys(p.fix for p in self.problems if p.fix)))


class UserCodeError(InvalidInputError):
    """The user's model module lacks something or raised; ``traceback`` is the user's part of it."""

    code = "user_code"

    def __init__(self, message: str, *, fix: str = "", traceback: str = "") -> None:
        super().__init__(message, fix=fix)
        self.traceback = traceback


class StatementError(InvalidInputError):
    """A statement is wrong at a place; ``line`` and ``column`` count from 1."""

    code = "statement"

    def __init__(self, message: str, *, fix: str = "", line: int, column: int) -> None:
        super().__init__(message, fix=fix)
        self.line, self.column = line, column


class DataError(InvalidInputError):
    """A data source is missing, unreadable, truncated or corrupt."""

    code = "data"


class NotFoundError(ElasticDLError):
    """There is no such object, or it is not the caller's to see."""

    code = "not_found"


class ConflictError(ElasticDLError):
    """The object is not in a state that allows the request."""

    code = "conflict"


class UnauthenticatedError(ElasticDLError):
    """There is no token, or it is not valid."""

    code = "unauthenticated"


class PermissionDeniedError(ElasticDLError):
    """The token is valid but does not allow this."""

    code = "permission_denied"


class UnavailableError(ElasticDLError):
    """A peer is down or did not answer before the deadline; the request can be tried again."""

    code = "unavailable"


class FencedError(ElasticDLError):
    """A newer holder has taken over; whoever sees this stops at once and touches nothing more."""

    code = "fenced"
