"""Whose places are limited, and what lies on disk for whom: so that it can be refused, counted and collected.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision: str | None = "0006"
branch_labels: str | None = None
depends_on: str | None = None

_UP = (
    "ALTER TABLE jobs ADD COLUMN restricted boolean NOT NULL DEFAULT false",
    # What was submitted with a namespace's token is limited from now on; no revision changes for it.
    "ALTER TABLE jobs DISABLE TRIGGER USER",
    "UPDATE jobs SET restricted = true WHERE namespace <> 'default'",
    "ALTER TABLE jobs ENABLE TRIGGER USER",
    "ALTER TABLE bundles ADD COLUMN used_at timestamptz NOT NULL DEFAULT now()",
    """
    CREATE TABLE job_disk (
        job_id text PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
        bytes bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now()
    )
    """,
    "CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL",
    "CREATE INDEX events_at ON events (at)",
)
_DOWN = (
    "DROP INDEX events_at",
    "DROP INDEX jobs_finished",
    "DROP TABLE job_disk",
    "ALTER TABLE bundles DROP COLUMN used_at",
    "ALTER TABLE jobs DROP COLUMN restricted",
)


def upgrade() -> None:
    """Adds the columns, the table and the indices."""
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    """Removes them."""
    for statement in _DOWN:
        op.execute(statement)
