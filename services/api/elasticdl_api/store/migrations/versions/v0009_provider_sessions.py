"""Sessions of users of an identity provider: the provider's token, which only the session's secret opens.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision: str | None = "0008"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Adds the column; sessions of tokens of ours have nothing in it."""
    op.execute("ALTER TABLE sessions ADD COLUMN sealed_token text")


def downgrade() -> None:
    """Removes it: users of a provider log in again."""
    op.execute("DELETE FROM sessions WHERE sealed_token IS NOT NULL")
    op.execute("ALTER TABLE sessions DROP COLUMN sealed_token")
