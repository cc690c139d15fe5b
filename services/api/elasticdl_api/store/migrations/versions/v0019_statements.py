"""Statements of SQL: what jobs came from, and the sources that namespaces may name.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision: str | None = "0018"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Adds them. The addresses of sources are sealed with the cluster's secret, by their names."""
    op.execute("ALTER TABLE namespaces ADD sources jsonb NOT NULL DEFAULT '{}'::jsonb")
    op.execute(
        "CREATE TABLE statements (job_id text PRIMARY KEY REFERENCES jobs ON DELETE CASCADE, "
        "namespace text NOT NULL, verb text NOT NULL, model text NOT NULL, source text NOT NULL, text text NOT NULL, "
        "plan jsonb NOT NULL, at timestamptz NOT NULL DEFAULT now())"
    )
    op.execute("CREATE INDEX statements_model ON statements (namespace, model, at)")


def downgrade() -> None:
    """Removes them."""
    op.execute("DROP TABLE statements")
    op.execute("ALTER TABLE namespaces DROP sources")
