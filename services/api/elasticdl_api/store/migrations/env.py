"""Runs the migrations on the connection that `elasticdl_api.store.migrate` gives."""

from __future__ import annotations

from alembic import context

from elasticdl_runtime.database.tables import metadata


def run() -> None:
    """Migrates within the caller's connection and transaction."""
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
    with context.begin_transaction():
        context.run_migrations()


run()
