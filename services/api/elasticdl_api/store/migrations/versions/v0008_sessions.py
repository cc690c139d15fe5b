"""Sessions of browsers, each made with a token and ending with it at the latest.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision: str | None = "0007"
branch_labels: str | None = None
depends_on: str | None = None

_SESSIONS = """
    CREATE TABLE sessions (
        sha256 text PRIMARY KEY,
        token_sha256 text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        expires_at timestamptz NOT NULL
    )
"""


def upgrade() -> None:
    """Adds the table."""
    op.execute(_SESSIONS)
    op.execute("CREATE INDEX sessions_token ON sessions (token_sha256, created_at)")
    op.execute("CREATE INDEX sessions_expires ON sessions (expires_at)")


def downgrade() -> None:
    """Removes it: whoever is logged in logs in again."""
    op.execute("DROP TABLE sessions")
