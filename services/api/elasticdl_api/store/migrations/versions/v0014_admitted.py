"""When a job was last admitted: what it has run since then protects it, not what it ran before it was evicted.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision: str | None = "0013"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Adds the column. Of jobs of before the first admission is known, and taken for the last."""
    op.execute("ALTER TABLE jobs ADD admitted_at timestamptz")


def downgrade() -> None:
    """Removes it."""
    op.execute("ALTER TABLE jobs DROP admitted_at")
