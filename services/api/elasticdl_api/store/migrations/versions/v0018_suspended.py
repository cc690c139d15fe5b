"""The time for which a job was suspended: it does not count as waiting.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision: str | None = "0017"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Adds the columns. Those who are suspended now are taken to be so since they changed last."""
    op.execute("ALTER TABLE jobs ADD suspended_at timestamptz, ADD suspended_s double precision NOT NULL DEFAULT 0")
    op.execute("UPDATE jobs SET suspended_at = updated_at WHERE state = 'SUSPENDED'")


def downgrade() -> None:
    """Removes them."""
    op.execute("ALTER TABLE jobs DROP suspended_s, DROP suspended_at")
