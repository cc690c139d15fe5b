"""Searches for a model: what is tried for a statement that names none, under the id of the job that will train it.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision: str | None = "0019"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Adds the table. There is no reference to the jobs: that of a search is made when the search is over."""
    op.execute(
        "CREATE TABLE searches (job_id text PRIMARY KEY, namespace text NOT NULL, owner text NOT NULL, "
        "restricted boolean NOT NULL, model text NOT NULL, source text NOT NULL, text text NOT NULL, "
        "state text NOT NULL, plan jsonb NOT NULL, progress jsonb NOT NULL, error jsonb, "
        "at timestamptz NOT NULL DEFAULT now())"
    )
    op.execute("CREATE INDEX searches_model ON searches (namespace, model)")


def downgrade() -> None:
    """Removes it."""
    op.execute("DROP TABLE searches")
