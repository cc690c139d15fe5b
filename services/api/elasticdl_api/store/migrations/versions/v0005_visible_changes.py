"""Moves the consequences of a change of state from triggers to code that one can read; the database only refuses.

The triggers that wrote events and launch intents are gone, and so is ``transition_job``: a process of an earlier
version that goes on running is refused when it changes a state, rather than starting a job without a master.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None

# Before a row is written: refuses illegal states and counts revisions. A heartbeat changes none of the columns that
# count for the revision, so that If-Match stays useful.
_BEFORE = """
    CREATE OR REPLACE FUNCTION jobs_before_write() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            IF NEW.state <> 'QUEUED' THEN
                RAISE EXCEPTION 'a job begins as QUEUED, not as %', NEW.state USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END IF;
        IF NEW.state IS DISTINCT FROM OLD.state AND NOT is_legal_transition(OLD.state, NEW.state) THEN
            RAISE EXCEPTION 'job % cannot go from % to %', OLD.id, OLD.state, NEW.state
                USING ERRCODE = 'check_violation';
        END IF;
        IF (NEW.state, NEW.reason, NEW.spec, NEW.priority, NEW.min_workers, NEW.max_workers,
            NEW.target_workers, NEW.desired)
            IS DISTINCT FROM (OLD.state, OLD.reason, OLD.spec, OLD.priority, OLD.min_workers, OLD.max_workers,
            OLD.target_workers, OLD.desired) THEN
            NEW.revision := OLD.revision + 1;
            NEW.updated_at := now();
        END IF;
        RETURN NEW;
    END
    $$
"""
_AFTER = """
    CREATE OR REPLACE FUNCTION jobs_after_write() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' OR NEW.revision <> OLD.revision OR NEW.master_incarnation <> OLD.master_incarnation THEN
            PERFORM pg_notify('elasticdl_jobs', NEW.id);
        END IF;
        RETURN NULL;
    END
    $$
"""
# At the commit: refuses a job that starts, or that changes its master, if nobody wrote that the master shall be
# launched. Such a job would wait for ever.
_LAUNCHED = """
    CREATE FUNCTION jobs_master_launched() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT 1 FROM jobs WHERE id = NEW.id) AND NOT EXISTS (
            SELECT 1 FROM launch_intents WHERE job_id = NEW.id AND incarnation = NEW.master_incarnation
        ) THEN
            RAISE EXCEPTION 'job % has no launch intent for its master %', NEW.id, NEW.master_incarnation
                USING ERRCODE = 'check_violation';
        END IF;
        RETURN NULL;
    END
    $$
"""
_LAUNCHED_TRIGGER = """
    CREATE CONSTRAINT TRIGGER jobs_master_launched AFTER UPDATE ON jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (
        NEW.master_incarnation <> OLD.master_incarnation OR (NEW.state = 'STARTING' AND OLD.state <> 'STARTING')
    )
    EXECUTE FUNCTION jobs_master_launched()
"""

_UP = (
    "DROP TRIGGER jobs_with_skips_finished ON jobs",
    "DROP FUNCTION jobs_with_skips_finished()",
    "DROP FUNCTION transition_job(text, text[], text, text, jsonb)",
    _BEFORE,
    _AFTER,
    _LAUNCHED,
    _LAUNCHED_TRIGGER,
)

_FORMER_BEFORE = """
    CREATE OR REPLACE FUNCTION jobs_before_write() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            IF NEW.state <> 'QUEUED' THEN
                RAISE EXCEPTION 'a job begins as QUEUED, not as %', NEW.state USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END IF;
        IF NEW.state IS DISTINCT FROM OLD.state THEN
            IF NOT is_legal_transition(OLD.state, NEW.state) THEN
                RAISE EXCEPTION 'job % cannot go from % to %', OLD.id, OLD.state, NEW.state
                    USING ERRCODE = 'check_violation';
            END IF;
            IF NEW.state = 'STARTING' THEN
                NEW.started_at := coalesce(OLD.started_at, now());
                NEW.finished_at := NULL;
                NEW.master_failures := 0;
                IF NEW.master_incarnation = OLD.master_incarnation AND NOT EXISTS (
                    SELECT 1 FROM launch_intents
                    WHERE job_id = OLD.id AND incarnation = OLD.master_incarnation AND delivered_at IS NULL
                ) THEN
                    NEW.master_incarnation := OLD.master_incarnation + 1;
                END IF;
            ELSIF NEW.state = 'CANCELLING' THEN
                NEW.desired := 'cancel';
            ELSIF NEW.state = 'QUEUED' THEN
                NEW.desired := 'run';
            END IF;
            IF NEW.state NOT IN ('STARTING', 'RUNNING', 'CANCELLING') THEN
                NEW.target_workers := 0;
                NEW.master_holder := '';
                NEW.master_lease_expires_at := NULL;
            END IF;
            IF NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') THEN
                NEW.finished_at := now();
            END IF;
        END IF;
        IF (NEW.state, NEW.reason, NEW.spec, NEW.priority, NEW.min_workers, NEW.max_workers,
            NEW.target_workers, NEW.desired)
            IS DISTINCT FROM (OLD.state, OLD.reason, OLD.spec, OLD.priority, OLD.min_workers, OLD.max_workers,
            OLD.target_workers, OLD.desired) THEN
            NEW.revision := OLD.revision + 1;
            NEW.updated_at := now();
        END IF;
        RETURN NEW;
    END
    $$
"""
_FORMER_AFTER = """
    CREATE OR REPLACE FUNCTION jobs_after_write() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        before_state text := CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END;
        detail jsonb := coalesce(nullif(current_setting('elasticdl.detail', true), '')::jsonb, '{}'::jsonb);
    BEGIN
        IF NEW.state IS DISTINCT FROM before_state THEN
            INSERT INTO events (job_id, kind, message, detail) VALUES (
                NEW.id, 'state', NEW.reason,
                detail || jsonb_build_object('from', before_state, 'to', NEW.state)
            );
            IF NEW.state = 'STARTING' THEN
                INSERT INTO launch_intents (id, job_id, role, index, incarnation)
                VALUES (NEW.id || '/master/0/' || NEW.master_incarnation, NEW.id, 'master', 0, NEW.master_incarnation)
                ON CONFLICT (id) DO NOTHING;
            END IF;
        END IF;
        IF TG_OP = 'INSERT' OR NEW.revision <> OLD.revision OR NEW.master_incarnation <> OLD.master_incarnation THEN
            PERFORM pg_notify('elasticdl_jobs', NEW.id);
        END IF;
        RETURN NULL;
    END
    $$
"""
_FORMER_TRANSITION = """
    CREATE FUNCTION transition_job(p_job_id text, p_from text[], p_to text, p_reason text, p_detail jsonb)
    RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        changed boolean;
    BEGIN
        PERFORM set_config('elasticdl.detail', coalesce(p_detail, '{}'::jsonb)::text, true);
        UPDATE jobs SET
            state = p_to,
            reason = coalesce(p_reason, ''),
            error = coalesce(nullif(p_detail -> 'error', 'null'::jsonb), error)
        WHERE id = p_job_id AND state = ANY (p_from) AND state <> p_to;
        changed := FOUND;
        PERFORM set_config('elasticdl.detail', '', true);
        RETURN changed;
    END
    $$
"""
_FORMER_FINISHED = """
    CREATE FUNCTION jobs_with_skips_finished() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.finished_at := now();
        RETURN NEW;
    END
    $$
"""
_FORMER_FINISHED_TRIGGER = """
    CREATE TRIGGER jobs_with_skips_finished BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.state = 'SUCCEEDED_WITH_SKIPS' AND OLD.state IS DISTINCT FROM NEW.state)
    EXECUTE FUNCTION jobs_with_skips_finished()
"""

_DOWN = (
    "DROP TRIGGER jobs_master_launched ON jobs",
    "DROP FUNCTION jobs_master_launched()",
    _FORMER_BEFORE,
    _FORMER_AFTER,
    _FORMER_TRANSITION,
    _FORMER_FINISHED,
    _FORMER_FINISHED_TRIGGER,
)


def upgrade() -> None:
    """Leaves the triggers to refuse, to count revisions and to notify."""
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    """Gives the triggers back what they did."""
    for statement in _DOWN:
        op.execute(statement)
