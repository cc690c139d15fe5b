"""The furthest progress of a job: a master that gets further makes good for those that were lost.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Adds the column."""
    op.execute("ALTER TABLE jobs ADD COLUMN master_progress bigint NOT NULL DEFAULT 0")


def downgrade() -> None:
    """Removes it."""
    op.execute("ALTER TABLE jobs DROP COLUMN master_progress")
