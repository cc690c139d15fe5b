"""The scheduler tells how it is: it serves nobody who could ask.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision: str | None = "0010"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Adds the numbers of the process that leads."""
    op.execute("ALTER TABLE scheduler_passes ADD COLUMN meters jsonb NOT NULL DEFAULT '[]'::jsonb")


def downgrade() -> None:
    """Removes them."""
    op.execute("ALTER TABLE scheduler_passes DROP COLUMN meters")
