"""The Postgres of the suites of readers: that of the integration tests."""

from tests.integration.conftest import postgres_server

__all__ = ["postgres_server"]
