"""The key of a job's data: which others tell how many records it has.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision: str | None = "0016"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Adds the column, by which the last jobs on the same data are found. Of jobs of before it is not known."""
    op.execute("ALTER TABLE jobs ADD data_key text NOT NULL DEFAULT ''")
    op.execute("CREATE INDEX jobs_data ON jobs (data_key, created_at) WHERE data_key <> ''")


def downgrade() -> None:
    """Removes it."""
    op.execute("DROP INDEX jobs_data")
    op.execute("ALTER TABLE jobs DROP data_key")
