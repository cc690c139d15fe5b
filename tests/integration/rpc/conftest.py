"""What both ways of calling have to do alike."""

from __future__ import annotations

import pytest

from elasticdl_core import errors

Kinds = tuple[type[errors.ElasticDLError], type[errors.ElasticDLError]]


@pytest.fixture(
    params=[
        (errors.InvalidInputError, errors.InvalidInputError),
        (errors.DataError, errors.InvalidInputError),
        (errors.NotFoundError, errors.NotFoundError),
        (errors.ConflictError, errors.ConflictError),
        (errors.FencedError, errors.FencedError),
        (errors.PermissionDeniedError, errors.PermissionDeniedError),
        (errors.UnavailableError, errors.UnavailableError),
        (errors.UnauthenticatedError, errors.UnauthenticatedError),
    ],
    ids=lambda kinds: kinds[0].__name__,
)
def crossing(request: pytest.FixtureRequest) -> Kinds:
    """A kind of error that a server raises, and the one that its caller gets."""
    kinds: Kinds = request.param
    return kinds
