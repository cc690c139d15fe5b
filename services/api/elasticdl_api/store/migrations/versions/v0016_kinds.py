"""The kind of a job: which others tell how fast it will be.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision: str | None = "0015"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Adds the column, by which the last jobs of a kind are found. Jobs of before are of no kind."""
    op.execute("ALTER TABLE jobs ADD kind text NOT NULL DEFAULT ''")
    op.execute("CREATE INDEX jobs_kind ON jobs (kind, finished_at) WHERE finished_at IS NOT NULL")


def downgrade() -> None:
    """Removes it."""
    op.execute("DROP INDEX jobs_kind")
    op.execute("ALTER TABLE jobs DROP kind")
