"""Idempotency keys outlive their jobs: a request that is sent again after its job was deleted makes no second one.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision: str | None = "0014"
branch_labels: str | None = None
depends_on: str | None = None

_NAME = "idempotency_keys_job_id_fkey"


def upgrade() -> None:
    """Drops the reference."""
    op.drop_constraint(_NAME, "idempotency_keys")


def downgrade() -> None:
    """Drops the keys that have no job any more, and refers again."""
    op.execute("DELETE FROM idempotency_keys WHERE job_id NOT IN (SELECT id FROM jobs)")
    op.create_foreign_key(_NAME, "idempotency_keys", "jobs", ["job_id"], ["id"], ondelete="CASCADE")
