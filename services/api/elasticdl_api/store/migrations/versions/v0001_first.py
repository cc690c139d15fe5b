"""The first schema: jobs with their state machine, and all that hangs on a job.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

_TABLES = (
    """
    CREATE TABLE jobs (
        id text PRIMARY KEY,
        namespace text NOT NULL DEFAULT 'default',
        name text NOT NULL,
        type text NOT NULL,
        spec jsonb NOT NULL,
        state text NOT NULL DEFAULT 'QUEUED',
        reason text NOT NULL DEFAULT '',
        priority integer NOT NULL DEFAULT 0,
        min_workers integer NOT NULL DEFAULT 1,
        max_workers integer NOT NULL DEFAULT 1,
        target_workers integer NOT NULL DEFAULT 0,
        target_reason text NOT NULL DEFAULT '',
        desired text NOT NULL DEFAULT 'run'
            CONSTRAINT jobs_desired_check CHECK (desired IN ('run', 'suspend', 'cancel', 'evict')),
        master_epoch bigint NOT NULL DEFAULT 0,
        master_holder text NOT NULL DEFAULT '',
        master_lease_expires_at timestamptz,
        master_lease_incarnation integer NOT NULL DEFAULT 0,
        master_incarnation integer NOT NULL DEFAULT 0,
        master_failures integer NOT NULL DEFAULT 0,
        master_failed_at timestamptz,
        status jsonb NOT NULL DEFAULT '{}',
        error jsonb,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        started_at timestamptz,
        finished_at timestamptz,
        revision bigint NOT NULL DEFAULT 1
    )
    """,
    "CREATE INDEX jobs_namespace_created ON jobs (namespace, created_at, id)",
    "CREATE INDEX jobs_state ON jobs (state)",
    """
    CREATE TABLE events (
        id bigserial PRIMARY KEY,
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        at timestamptz NOT NULL DEFAULT now(),
        kind text NOT NULL,
        message text NOT NULL DEFAULT '',
        detail jsonb NOT NULL DEFAULT '{}'
    )
    """,
    "CREATE INDEX events_job ON events (job_id, id)",
    """
    CREATE TABLE launch_intents (
        id text PRIMARY KEY,
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        role text NOT NULL DEFAULT 'master',
        index integer NOT NULL DEFAULT 0,
        incarnation integer NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        deliver_after timestamptz NOT NULL DEFAULT now(),
        delivered_at timestamptz,
        outcome text
    )
    """,
    "CREATE INDEX launch_intents_job ON launch_intents (job_id)",
    "CREATE INDEX launch_intents_waiting ON launch_intents (deliver_after) WHERE delivered_at IS NULL",
    """
    CREATE TABLE plans (
        id bigserial PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT now(),
        epoch bigint NOT NULL,
        policy text NOT NULL,
        input_hash text NOT NULL,
        snapshot jsonb NOT NULL,
        plan jsonb NOT NULL
    )
    """,
    """
    CREATE TABLE job_plans (
        job_id text PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
        plan jsonb NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    CREATE TABLE done_marks (
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        task text NOT NULL,
        at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (job_id, task)
    )
    """,
    """
    CREATE TABLE checkpoints (
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        version bigint NOT NULL,
        manifest jsonb NOT NULL,
        committed_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (job_id, version)
    )
    """,
    """
    CREATE TABLE evaluations (
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        number bigint NOT NULL,
        model_version bigint NOT NULL,
        training_epoch bigint NOT NULL,
        metrics jsonb NOT NULL,
        at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (job_id, number)
    )
    """,
    """
    CREATE TABLE losses (
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        model_version bigint NOT NULL,
        loss double precision NOT NULL,
        at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (job_id, model_version)
    )
    """,
    """
    CREATE TABLE artifacts (
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        name text NOT NULL,
        path text NOT NULL,
        size bigint NOT NULL,
        sha256 text NOT NULL DEFAULT '',
        at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (job_id, name)
    )
    """,
    """
    CREATE TABLE bundles (
        namespace text NOT NULL,
        digest text NOT NULL,
        size bigint NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, digest)
    )
    """,
    """
    CREATE TABLE idempotency_keys (
        namespace text NOT NULL,
        key text NOT NULL,
        body_hash text NOT NULL,
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, key)
    )
    """,
    "CREATE INDEX idempotency_keys_job ON idempotency_keys (job_id)",
    """
    CREATE TABLE leadership (
        name text PRIMARY KEY,
        holder text NOT NULL DEFAULT '',
        epoch bigint NOT NULL DEFAULT 0,
        expires_at timestamptz NOT NULL DEFAULT to_timestamp(0)
    )
    """,
    "INSERT INTO leadership (name) VALUES ('scheduler')",
    """
    CREATE TABLE tokens (
        id text PRIMARY KEY,
        namespace text NOT NULL,
        scope text NOT NULL CONSTRAINT tokens_scope_check CHECK (scope IN ('read', 'write')),
        sha256 text NOT NULL UNIQUE,
        created_at timestamptz NOT NULL DEFAULT now(),
        expires_at timestamptz
    )
    """,
)

# The pairs are those of elasticdl_core.job.LEGAL_TRANSITIONS; a test tries all of them against the trigger.
_FUNCTIONS = (
    """
    CREATE FUNCTION is_legal_transition(p_from text, p_to text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
        SELECT p_to = ANY (CASE p_from
            WHEN 'QUEUED' THEN ARRAY['STARTING', 'SUSPENDED', 'CANCELLING', 'CANCELLED', 'FAILED']
            WHEN 'STARTING' THEN ARRAY['RUNNING', 'QUEUED', 'SUSPENDED', 'CANCELLING', 'FAILED']
            WHEN 'RUNNING' THEN ARRAY['QUEUED', 'SUSPENDED', 'CANCELLING', 'SUCCEEDED', 'FAILED']
            WHEN 'SUSPENDED' THEN ARRAY['QUEUED', 'CANCELLING', 'CANCELLED']
            WHEN 'CANCELLING' THEN ARRAY['CANCELLED']
            ELSE ARRAY[]::text[]
        END)
    $$
    """,
    # Before a row is written: refuses illegal states, keeps times and the revision, and gives a starting job its
    # master. A heartbeat changes none of the columns that count for the revision, so that If-Match stays useful.
    """
    CREATE FUNCTION jobs_before_write() RETURNS trigger LANGUAGE plpgsql AS $$
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
    """,
    # After a row is written, in the same transaction: the event, the launch intent, the wake-up.
    """
    CREATE FUNCTION jobs_after_write() RETURNS trigger LANGUAGE plpgsql AS $$
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
    """,
    # Ids of one job's events grow in the order of their commits, so that a reader who continues after an id
    # misses nothing: the id is drawn only after the job's row is locked.
    """
    CREATE FUNCTION events_before_insert() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM 1 FROM jobs WHERE id = NEW.job_id FOR NO KEY UPDATE;
        NEW.id := nextval('events_id_seq');
        PERFORM pg_notify('elasticdl_jobs', NEW.job_id);
        RETURN NEW;
    END
    $$
    """,
    """
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
    """,
    """
    CREATE TRIGGER jobs_before_write BEFORE INSERT OR UPDATE ON jobs
    FOR EACH ROW EXECUTE FUNCTION jobs_before_write()
    """,
    """
    CREATE TRIGGER jobs_after_write AFTER INSERT OR UPDATE ON jobs
    FOR EACH ROW EXECUTE FUNCTION jobs_after_write()
    """,
    """
    CREATE TRIGGER events_before_insert BEFORE INSERT ON events
    FOR EACH ROW EXECUTE FUNCTION events_before_insert()
    """,
)

_NAMES = (
    "tokens",
    "leadership",
    "idempotency_keys",
    "bundles",
    "artifacts",
    "losses",
    "evaluations",
    "checkpoints",
    "done_marks",
    "job_plans",
    "plans",
    "launch_intents",
    "events",
    "jobs",
)


def upgrade() -> None:
    """Makes the schema."""
    for statement in (*_TABLES, *_FUNCTIONS):
        op.execute(statement)


def downgrade() -> None:
    """Removes it, with all data."""
    for name in _NAMES:
        op.execute(f"DROP TABLE {name} CASCADE")
    for signature in (
        "transition_job(text, text[], text, text, jsonb)",
        "events_before_insert()",
        "jobs_after_write()",
        "jobs_before_write()",
        "is_legal_transition(text, text)",
    ):
        op.execute(f"DROP FUNCTION {signature}")
