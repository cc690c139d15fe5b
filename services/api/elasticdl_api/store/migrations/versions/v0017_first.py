"""The schema of the first release: jobs with their state machine, and all that hangs on a job.

Revision ID: 0017
Revises:
"""

from __future__ import annotations

from alembic import op

# Databases of before the first release were at a number of their own; those at its last one have this schema.
revision = "0017"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

_TABLES = (
    # Anything that is no number, or none that a double holds, is nothing: a master may report what it likes.
    """
    CREATE FUNCTION number_of(given jsonb) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT CASE WHEN jsonb_typeof(given) = 'number' AND abs(given::numeric) < 1e300
            THEN round(given::numeric, 6)::double precision END
    $$
    """,
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
        desired text NOT NULL DEFAULT 'run',
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
        revision bigint NOT NULL DEFAULT 1,
        target_detail jsonb NOT NULL DEFAULT '{}',
        master_progress bigint NOT NULL DEFAULT 0,
        owner text NOT NULL DEFAULT '',
        restricted boolean NOT NULL DEFAULT false,
        progress double precision GENERATED ALWAYS AS (
            number_of(status #> '{progress,records_done}')
            / nullif(number_of(status #> '{progress,records_total}'), 0)
        ) STORED,
        eta_seconds double precision GENERATED ALWAYS AS (number_of(status -> 'eta_seconds')) STORED,
        workers_present integer GENERATED ALWAYS AS (
            jsonb_array_length(jsonb_path_query_array(status, '$.workers[*] ? (@.state != "ended")'))
        ) STORED,
        admitted_at timestamptz,
        kind text NOT NULL DEFAULT '',
        data_key text NOT NULL DEFAULT '',
        CONSTRAINT jobs_desired_check CHECK (desired IN ('run', 'suspend', 'cancel', 'evict'))
    )
    """,
    "CREATE INDEX jobs_created ON jobs (created_at, id)",
    "CREATE INDEX jobs_data ON jobs (data_key, created_at) WHERE data_key <> ''",
    "CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL",
    "CREATE INDEX jobs_kind ON jobs (kind, finished_at) WHERE finished_at IS NOT NULL",
    "CREATE INDEX jobs_namespace_created ON jobs (namespace, created_at, id)",
    "CREATE INDEX jobs_state ON jobs (state)",
    """
    CREATE TABLE namespaces (
        name text PRIMARY KEY,
        created_at timestamptz NOT NULL DEFAULT now(),
        data_roots jsonb NOT NULL DEFAULT '[]',
        limits jsonb NOT NULL DEFAULT '{}'
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
    CREATE TABLE audit_log (
        id bigserial PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT now(),
        actor text NOT NULL,
        token_id text NOT NULL DEFAULT '',
        namespace text,
        action text NOT NULL,
        target text NOT NULL,
        detail jsonb NOT NULL DEFAULT '{}',
        request_id text NOT NULL DEFAULT ''
    )
    """,
    "CREATE INDEX audit_log_at ON audit_log (at)",
    "CREATE INDEX audit_log_namespace ON audit_log (namespace, id)",
    """
    CREATE TABLE bundles (
        namespace text NOT NULL,
        digest text NOT NULL,
        size bigint NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        used_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, digest)
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
    CREATE TABLE cluster_series (
        tier integer NOT NULL,
        start bigint NOT NULL,
        writer bigint NOT NULL,
        samples integer NOT NULL,
        numbers jsonb NOT NULL,
        PRIMARY KEY (tier, start, writer)
    )
    """,
    """
    CREATE TABLE done_marks (
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        task text NOT NULL,
        at timestamptz NOT NULL DEFAULT now(),
        account jsonb,
        PRIMARY KEY (job_id, task)
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
    CREATE TABLE events (
        id bigserial PRIMARY KEY,
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        at timestamptz NOT NULL DEFAULT now(),
        kind text NOT NULL,
        message text NOT NULL DEFAULT '',
        detail jsonb NOT NULL DEFAULT '{}'
    )
    """,
    "CREATE INDEX events_at ON events (at)",
    "CREATE INDEX events_job ON events (job_id, id)",
    """
    CREATE TABLE idempotency_keys (
        namespace text NOT NULL,
        key text NOT NULL,
        body_hash text NOT NULL,
        job_id text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, key)
    )
    """,
    "CREATE INDEX idempotency_keys_job ON idempotency_keys (job_id)",
    """
    CREATE TABLE job_disk (
        job_id text PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
        bytes bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    CREATE TABLE job_plans (
        job_id text PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
        plan jsonb NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    # Times of series are seconds since the epoch: the beginnings of spans whose lengths depend on the tier. A row is
    # written again and again until its span is over, by one writer; readers add what several wrote of one span.
    """
    CREATE TABLE job_series (
        job_id text NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        tier integer NOT NULL,
        start bigint NOT NULL,
        writer bigint NOT NULL,
        samples integer NOT NULL,
        numbers jsonb NOT NULL,
        PRIMARY KEY (job_id, tier, start, writer)
    )
    """,
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
    CREATE TABLE leadership (
        name text PRIMARY KEY,
        holder text NOT NULL DEFAULT '',
        epoch bigint NOT NULL DEFAULT 0,
        expires_at timestamptz NOT NULL DEFAULT to_timestamp(0)
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
    CREATE TABLE plans (
        id bigserial PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT now(),
        epoch bigint NOT NULL,
        policy text NOT NULL,
        input_hash text NOT NULL,
        snapshot jsonb NOT NULL,
        plan jsonb NOT NULL,
        changes jsonb NOT NULL DEFAULT '[]'
    )
    """,
    "CREATE INDEX plans_at ON plans (at)",
    "CREATE INDEX plans_changes ON plans USING gin (changes)",
    """
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
    """,
    """
    CREATE TABLE scheduler_passes (
        name text PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT now(),
        epoch bigint NOT NULL,
        passes bigint NOT NULL DEFAULT 1,
        changes bigint NOT NULL DEFAULT 0,
        policy text NOT NULL,
        quotas jsonb NOT NULL DEFAULT '{}',
        capacity jsonb NOT NULL DEFAULT '{}',
        seconds double precision NOT NULL DEFAULT 0,
        interval_s double precision NOT NULL DEFAULT 0,
        meters jsonb NOT NULL DEFAULT '[]'
    )
    """,
    """
    CREATE TABLE sessions (
        sha256 text PRIMARY KEY,
        token_sha256 text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        expires_at timestamptz NOT NULL,
        sealed_token text
    )
    """,
    "CREATE INDEX sessions_expires ON sessions (expires_at)",
    "CREATE INDEX sessions_token ON sessions (token_sha256, created_at)",
    """
    CREATE TABLE tokens (
        id text PRIMARY KEY,
        namespace text REFERENCES namespaces (name) ON DELETE CASCADE,
        scope text NOT NULL,
        sha256 text NOT NULL UNIQUE,
        created_at timestamptz NOT NULL DEFAULT now(),
        expires_at timestamptz,
        name text NOT NULL DEFAULT '',
        owner text NOT NULL DEFAULT '',
        created_by text NOT NULL DEFAULT '',
        last_used_at timestamptz,
        revoked_at timestamptz,
        CONSTRAINT tokens_scope_check CHECK (scope IN ('read', 'submit', 'admin'))
    )
    """,
    "CREATE UNIQUE INDEX tokens_name ON tokens (coalesce(namespace, ''), name) WHERE revoked_at IS NULL",
    "INSERT INTO leadership (name) VALUES ('scheduler')",
    "INSERT INTO namespaces (name) VALUES ('default')",
)

_TRIGGERS = (
    # The pairs are those of elasticdl_core.job.LEGAL_TRANSITIONS; a test tries all of them against the trigger.
    """
    CREATE FUNCTION is_legal_transition(p_from text, p_to text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
        SELECT p_to = ANY (CASE p_from
            WHEN 'QUEUED' THEN ARRAY['STARTING', 'SUSPENDED', 'CANCELLING', 'CANCELLED', 'FAILED']
            WHEN 'STARTING' THEN ARRAY['RUNNING', 'QUEUED', 'SUSPENDED', 'CANCELLING', 'FAILED']
            WHEN 'RUNNING' THEN ARRAY['QUEUED', 'SUSPENDED', 'CANCELLING', 'SUCCEEDED', 'SUCCEEDED_WITH_SKIPS',
                'FAILED']
            WHEN 'SUSPENDED' THEN ARRAY['QUEUED', 'CANCELLING', 'CANCELLED']
            WHEN 'CANCELLING' THEN ARRAY['CANCELLED']
            ELSE ARRAY[]::text[]
        END)
    $$
    """,
    # Before a row is written: refuses illegal states and counts revisions. A heartbeat changes none of the columns
    # that count for the revision, so that If-Match stays useful.
    """
    CREATE FUNCTION jobs_before_write() RETURNS trigger LANGUAGE plpgsql AS $$
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
    """,
    """
    CREATE FUNCTION jobs_after_write() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' OR NEW.revision <> OLD.revision OR NEW.master_incarnation <> OLD.master_incarnation THEN
            PERFORM pg_notify('elasticdl_jobs', NEW.id);
        END IF;
        RETURN NULL;
    END
    $$
    """,
    # At the commit: refuses a job that starts, or that changes its master, if nobody wrote that the master shall be
    # launched. Such a job would wait for ever.
    """
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
    CREATE TRIGGER jobs_before_write BEFORE INSERT OR UPDATE ON jobs
    FOR EACH ROW EXECUTE FUNCTION jobs_before_write()
    """,
    """
    CREATE TRIGGER jobs_after_write AFTER INSERT OR UPDATE ON jobs
    FOR EACH ROW EXECUTE FUNCTION jobs_after_write()
    """,
    """
    CREATE CONSTRAINT TRIGGER jobs_master_launched AFTER UPDATE ON jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (
        NEW.master_incarnation <> OLD.master_incarnation OR (NEW.state = 'STARTING' AND OLD.state <> 'STARTING')
    )
    EXECUTE FUNCTION jobs_master_launched()
    """,
    """
    CREATE TRIGGER events_before_insert BEFORE INSERT ON events
    FOR EACH ROW EXECUTE FUNCTION events_before_insert()
    """,
)


def upgrade() -> None:
    """Makes the schema."""
    for statement in (*_TABLES, *_TRIGGERS):
        op.execute(statement)
