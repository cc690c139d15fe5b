"""Histories beside the present: the lives of all processes, and series of numbers of jobs and of the cluster.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision: str | None = "0009"
branch_labels: str | None = None
depends_on: str | None = None

_PROCESSES = """
    CREATE TABLE processes (
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        role text NOT NULL,
        index integer NOT NULL,
        incarnation integer NOT NULL,
        launched_at timestamptz NOT NULL DEFAULT now(),
        ready_at timestamptz,
        drained_at timestamptz,
        ended_at timestamptz,
        exit_code integer,
        cause text,
        message text NOT NULL DEFAULT '',
        PRIMARY KEY (job_id, role, index, incarnation)
    )
"""
# Times are seconds since the epoch: the beginnings of spans whose lengths depend on the tier. A row is written again
# and again until its span is over, by one writer; who reads adds what several writers told of one span.
_JOB_SERIES = """
    CREATE TABLE job_series (
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        tier integer NOT NULL,
        start bigint NOT NULL,
        writer bigint NOT NULL,
        samples integer NOT NULL,
        numbers jsonb NOT NULL,
        PRIMARY KEY (job_id, tier, start, writer)
    )
"""
_CLUSTER_SERIES = """
    CREATE TABLE cluster_series (
        tier integer NOT NULL,
        start bigint NOT NULL,
        writer bigint NOT NULL,
        samples integer NOT NULL,
        numbers jsonb NOT NULL,
        PRIMARY KEY (tier, start, writer)
    )
"""


def upgrade() -> None:
    """Adds the tables."""
    for statement in (_PROCESSES, _JOB_SERIES, _CLUSTER_SERIES):
        op.execute(statement)


def downgrade() -> None:
    """Removes them with what they hold."""
    for name in ("cluster_series", "job_series", "processes"):
        op.execute(f"DROP TABLE {name}")
