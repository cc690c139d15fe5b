"""Explanations of the scheduler: the reason in force as data, how its last pass went, what each decision changed.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None

_UP = (
    "ALTER TABLE jobs ADD COLUMN target_detail jsonb NOT NULL DEFAULT '{}'",
    """
    CREATE TABLE scheduler_passes (
        name text PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT now(),
        epoch bigint NOT NULL,
        passes bigint NOT NULL DEFAULT 1,
        changes bigint NOT NULL DEFAULT 0,
        policy text NOT NULL,
        quotas jsonb NOT NULL DEFAULT '{}',
        capacity jsonb NOT NULL DEFAULT '{}',
        seconds double precision NOT NULL DEFAULT 0,
        interval_s double precision NOT NULL DEFAULT 0
    )
    """,
    "ALTER TABLE plans ADD COLUMN changes jsonb NOT NULL DEFAULT '[]'",
    "CREATE INDEX plans_at ON plans (at)",
    "CREATE INDEX plans_changes ON plans USING gin (changes)",
)

_DOWN = (
    "DROP INDEX plans_changes",
    "DROP INDEX plans_at",
    "ALTER TABLE plans DROP COLUMN changes",
    "DROP TABLE scheduler_passes",
    "ALTER TABLE jobs DROP COLUMN target_detail",
)


def upgrade() -> None:
    """Adds the columns, the table and the indices."""
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    """Removes them."""
    for statement in _DOWN:
        op.execute(statement)
