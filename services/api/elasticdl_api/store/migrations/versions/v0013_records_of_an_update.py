"""Jobs by AllReduce say with ``minibatch_size`` how many records an update has, and no longer a part of one.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision: str | None = "0012"
branch_labels: str | None = None
depends_on: str | None = None

# A job that left the choice open has the number of parts with the choice; one that lost it there goes by its workers.
_PARTS = """
    WITH cut AS (
        SELECT id, coalesce(
            nullif((spec ->> 'microbatches')::bigint, 0),
            nullif((status #>> '{strategy,microbatches}')::bigint, 0),
            (SELECT min(1 << n) FROM generate_series(0, 14) AS n WHERE (1 << n) >= max_workers)
        ) AS parts
        FROM jobs
        WHERE spec ->> 'type' = 'training' AND 'AllReduceStrategy' = CASE spec ->> 'distribution_strategy'
            WHEN 'auto' THEN status #>> '{strategy,chosen}' ELSE spec ->> 'distribution_strategy' END
    )
"""
_CHANGED = """
    UPDATE jobs SET
        spec = spec || jsonb_build_object(
            'minibatch_size', %s, 'num_minibatches_per_task', %s
        ),
        status = CASE spec ->> 'distribution_strategy'
            WHEN 'auto' THEN jsonb_set(status, '{strategy,microbatches}', to_jsonb(parts)) ELSE status END
    FROM cut WHERE cut.id = jobs.id
"""
_SIZE, _COUNT = "(spec ->> 'minibatch_size')::bigint", "(spec ->> 'num_minibatches_per_task')::bigint"


def upgrade() -> None:
    """Multiplies: the same records make the same updates and tasks."""
    op.execute(_PARTS + _CHANGED % (f"least({_SIZE} * parts, 16777216)", f"({_COUNT} + parts - 1) / parts"))


def downgrade() -> None:
    """Divides."""
    op.execute(_PARTS + _CHANGED % (f"greatest({_SIZE} / parts, 1)", f"{_COUNT} * parts"))
