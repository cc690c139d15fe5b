"""Columns for ordered lists of jobs, which the database derives from masters' reports.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision: str | None = "0011"
branch_labels: str | None = None
depends_on: str | None = None

# What is no number, or none that a double holds, is nothing: a master may report what it likes.
_NUMBER = """
    CREATE FUNCTION number_of(given jsonb) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT CASE WHEN jsonb_typeof(given) = 'number' AND abs(given::numeric) < 1e300
            THEN round(given::numeric, 6)::double precision END
    $$
"""
_COLUMNS = """
    ALTER TABLE jobs
        ADD progress double precision GENERATED ALWAYS AS (
            number_of(status #> '{progress,records_done}')
            / nullif(number_of(status #> '{progress,records_total}'), 0)
        ) STORED,
        ADD eta_seconds double precision GENERATED ALWAYS AS (number_of(status -> 'eta_seconds')) STORED,
        ADD workers_present integer GENERATED ALWAYS AS (
            jsonb_array_length(jsonb_path_query_array(status, '$.workers[*] ? (@.state != "ended")'))
        ) STORED
"""


def upgrade() -> None:
    """Adds the columns, and an index for the order in which jobs are listed unless one is asked for."""
    op.execute(_NUMBER)
    op.execute(_COLUMNS)
    op.execute("CREATE INDEX jobs_created ON jobs (created_at, id)")


def downgrade() -> None:
    """Removes them."""
    op.execute("DROP INDEX jobs_created")
    op.execute("ALTER TABLE jobs DROP progress, DROP eta_seconds, DROP workers_present")
    op.execute("DROP FUNCTION number_of(jsonb)")
