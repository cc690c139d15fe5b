"""Records that were passed over: with the done-mark of their task, and as an end of its own.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None

_TRANSITIONS = """
    CREATE OR REPLACE FUNCTION is_legal_transition(p_from text, p_to text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
        SELECT p_to = ANY (CASE p_from
            WHEN 'QUEUED' THEN ARRAY['STARTING', 'SUSPENDED', 'CANCELLING', 'CANCELLED', 'FAILED']
            WHEN 'STARTING' THEN ARRAY['RUNNING', 'QUEUED', 'SUSPENDED', 'CANCELLING', 'FAILED']
            WHEN 'RUNNING' THEN ARRAY['QUEUED', 'SUSPENDED', 'CANCELLING', 'SUCCEEDED', {more}'FAILED']
            WHEN 'SUSPENDED' THEN ARRAY['QUEUED', 'CANCELLING', 'CANCELLED']
            WHEN 'CANCELLING' THEN ARRAY['CANCELLED']
            ELSE ARRAY[]::text[]
        END)
    $$
"""
# The time of the end is kept here rather than in jobs_before_write, so that that function stays as it is.
_FINISHED = """
    CREATE FUNCTION jobs_with_skips_finished() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.finished_at := now();
        RETURN NEW;
    END
    $$
"""
_TRIGGER = """
    CREATE TRIGGER jobs_with_skips_finished BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.state = 'SUCCEEDED_WITH_SKIPS' AND OLD.state IS DISTINCT FROM NEW.state)
    EXECUTE FUNCTION jobs_with_skips_finished()
"""


def upgrade() -> None:
    """Adds the column, and the state to the trigger's."""
    op.execute("ALTER TABLE done_marks ADD COLUMN account jsonb")
    op.execute(_TRANSITIONS.format(more="'SUCCEEDED_WITH_SKIPS', "))
    op.execute(_FINISHED)
    op.execute(_TRIGGER)


def downgrade() -> None:
    """Removes them; jobs that ended so have succeeded."""
    op.execute("DROP TRIGGER jobs_with_skips_finished ON jobs")
    op.execute("DROP FUNCTION jobs_with_skips_finished()")
    op.execute("ALTER TABLE jobs DISABLE TRIGGER USER")
    op.execute("UPDATE jobs SET state = 'SUCCEEDED' WHERE state = 'SUCCEEDED_WITH_SKIPS'")
    op.execute("ALTER TABLE jobs ENABLE TRIGGER USER")
    op.execute(_TRANSITIONS.format(more=""))
    op.execute("ALTER TABLE done_marks DROP COLUMN account")
