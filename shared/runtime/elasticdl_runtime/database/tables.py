"""The tables, as SQLAlchemy Core sees them; a test keeps them equal to what the migrations make.

What the database does by itself (refusing illegal states, counting revisions, notifying) is in the migrations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Computed,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    any_,
    literal,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP

from elasticdl_core.job.life import JobState

metadata = MetaData()

CHANNEL = "elasticdl_jobs"
"""Postgres notifies it of each change of a job and each event, with the job's id."""

_NOW = text("now()")
_EMPTY = text("''::text")
_NO_DETAIL = text("'{}'::jsonb")


def _at(name: str, *, required: bool = True) -> Column[object]:
    return Column(name, TIMESTAMP(timezone=True), nullable=not required, server_default=_NOW if required else None)


_TOLD = "number_of(status #> '{{progress,{}}}'::text[])"
_PROGRESS = f"{_TOLD.format('records_done')} / NULLIF({_TOLD.format('records_total')}, (0)::double precision)"
_ETA = "number_of(status -> 'eta_seconds'::text)"
_PRESENT = """jsonb_array_length(jsonb_path_query_array(status, '$."workers"[*]?(@."state" != "ended")'::jsonpath))"""
"""Out of the status of a job: how far it is, how long it will take, and how many workers have not ended."""


def _job() -> Column[str]:
    return Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False)


def _job_key() -> Column[str]:
    return Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("namespace", Text, nullable=False, server_default=text("'default'::text")),
    Column("name", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("state", Text, nullable=False, server_default=text(f"'{JobState.QUEUED}'::text")),
    Column("reason", Text, nullable=False, server_default=_EMPTY),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("min_workers", Integer, nullable=False, server_default=text("1")),
    Column("max_workers", Integer, nullable=False, server_default=text("1")),
    Column("target_workers", Integer, nullable=False, server_default=text("0")),
    Column("target_reason", Text, nullable=False, server_default=_EMPTY),
    Column("target_detail", JSONB, nullable=False, server_default=_NO_DETAIL),
    Column("desired", Text, nullable=False, server_default=text("'run'::text")),
    Column("master_epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("master_holder", Text, nullable=False, server_default=_EMPTY),
    _at("master_lease_expires_at", required=False),
    Column("master_lease_incarnation", Integer, nullable=False, server_default=text("0")),
    Column("master_incarnation", Integer, nullable=False, server_default=text("0")),
    Column("master_failures", Integer, nullable=False, server_default=text("0")),
    _at("master_failed_at", required=False),
    Column("master_progress", BigInteger, nullable=False, server_default=text("0")),
    Column("status", JSONB, nullable=False, server_default=_NO_DETAIL),
    Column("error", JSONB),
    _at("created_at"),
    _at("updated_at"),
    _at("started_at", required=False),
    _at("finished_at", required=False),
    Column("revision", BigInteger, nullable=False, server_default=text("1")),
    Column("owner", Text, nullable=False, server_default=_EMPTY),
    Column("restricted", Boolean, nullable=False, server_default=text("false")),
    # Derived by the database, for the order of lists.
    Column("progress", Double, Computed(_PROGRESS, persisted=True)),
    Column("eta_seconds", Double, Computed(_ETA, persisted=True)),
    Column("workers_present", Integer, Computed(_PRESENT, persisted=True)),
    _at("admitted_at", required=False),
    Column("kind", Text, nullable=False, server_default=_EMPTY),
    Column("data_key", Text, nullable=False, server_default=_EMPTY),
    _at("suspended_at", required=False),
    Column("suspended_s", Double, nullable=False, server_default=text("0")),
    CheckConstraint("desired IN ('run', 'suspend', 'cancel', 'evict')", name="jobs_desired_check"),
    Index("jobs_namespace_created", "namespace", "created_at", "id"),
    Index("jobs_created", "created_at", "id"),
    Index("jobs_state", "state"),
    Index("jobs_kind", "kind", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    Index("jobs_data", "data_key", "created_at", postgresql_where=text("data_key <> ''::text")),
    Index("jobs_finished", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    _job(),
    _at("at"),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False, server_default=_EMPTY),
    Column("detail", JSONB, nullable=False, server_default=_NO_DETAIL),
    Index("events_job", "job_id", "id"),
    Index("events_at", "at"),
)

launch_intents = Table(
    "launch_intents",
    metadata,
    Column("id", Text, primary_key=True),
    _job(),
    Column("role", Text, nullable=False, server_default=text("'master'::text")),
    Column("index", Integer, nullable=False, server_default=text("0")),
    Column("incarnation", Integer, nullable=False),
    _at("created_at"),
    _at("deliver_after"),
    _at("delivered_at", required=False),
    Column("outcome", Text),
    Index("launch_intents_job", "job_id"),
    Index("launch_intents_waiting", "deliver_after", postgresql_where=text("delivered_at IS NULL")),
)

plans = Table(
    "plans",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    _at("at"),
    Column("epoch", BigInteger, nullable=False),
    Column("policy", Text, nullable=False),
    Column("input_hash", Text, nullable=False),
    Column("snapshot", JSONB, nullable=False),
    Column("plan", JSONB, nullable=False),
    Column("changes", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Index("plans_at", "at"),
    Index("plans_changes", "changes", postgresql_using="gin"),
)

scheduler_passes = Table(
    "scheduler_passes",
    metadata,
    Column("name", Text, primary_key=True),
    _at("at"),
    Column("epoch", BigInteger, nullable=False),
    Column("passes", BigInteger, nullable=False, server_default=text("1")),
    Column("changes", BigInteger, nullable=False, server_default=text("0")),
    Column("policy", Text, nullable=False),
    Column("quotas", JSONB, nullable=False, server_default=_NO_DETAIL),
    Column("capacity", JSONB, nullable=False, server_default=_NO_DETAIL),
    Column("seconds", Double, nullable=False, server_default=text("0")),
    Column("interval_s", Double, nullable=False, server_default=text("0")),
    Column("meters", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
)

job_plans = Table(
    "job_plans",
    metadata,
    _job_key(),
    Column("plan", JSONB, nullable=False),
    _at("created_at"),
)

statements = Table(
    "statements",
    metadata,
    _job_key(),
    Column("namespace", Text, nullable=False),
    Column("verb", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("plan", JSONB, nullable=False),
    _at("at"),
    Index("statements_model", "namespace", "model", "at"),
)

searches = Table(
    "searches",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("restricted", Boolean, nullable=False),
    Column("model", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("plan", JSONB, nullable=False),
    Column("progress", JSONB, nullable=False),
    Column("error", JSONB),
    _at("at"),
    Index("searches_model", "namespace", "model"),
)

done_marks = Table(
    "done_marks",
    metadata,
    _job_key(),
    Column("task", Text, primary_key=True),
    _at("at"),
    Column("account", JSONB),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _job_key(),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("manifest", JSONB, nullable=False),
    _at("committed_at"),
)

evaluations = Table(
    "evaluations",
    metadata,
    _job_key(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("model_version", BigInteger, nullable=False),
    Column("training_epoch", BigInteger, nullable=False),
    Column("metrics", JSONB, nullable=False),
    _at("at"),
)

losses = Table(
    "losses",
    metadata,
    _job_key(),
    Column("model_version", BigInteger, primary_key=True, autoincrement=False),
    Column("loss", Double, nullable=False),
    _at("at"),
)

artifacts = Table(
    "artifacts",
    metadata,
    _job_key(),
    Column("name", Text, primary_key=True),
    Column("path", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False, server_default=_EMPTY),
    _at("at"),
)

bundles = Table(
    "bundles",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    _at("created_at"),
    _at("used_at"),
)

processes = Table(
    "processes",
    metadata,
    _job_key(),
    Column("role", Text, primary_key=True),
    Column("index", Integer, primary_key=True, autoincrement=False),
    Column("incarnation", Integer, primary_key=True, autoincrement=False),
    _at("launched_at"),
    _at("ready_at", required=False),
    _at("drained_at", required=False),
    _at("ended_at", required=False),
    Column("exit_code", Integer),
    Column("cause", Text),
    Column("message", Text, nullable=False, server_default=_EMPTY),
)


def _span() -> tuple[Column[object], ...]:
    """Columns of statistics in a span of time: the span, who wrote it, the number of samples, the numbers."""
    return (
        Column("tier", Integer, primary_key=True, autoincrement=False),
        Column("start", BigInteger, primary_key=True, autoincrement=False),
        Column("writer", BigInteger, primary_key=True, autoincrement=False),
        Column("samples", Integer, nullable=False),
        Column("numbers", JSONB, nullable=False),
    )


job_series = Table("job_series", metadata, _job_key(), *_span())

cluster_series = Table("cluster_series", metadata, *_span())

job_disk = Table(
    "job_disk",
    metadata,
    _job_key(),
    Column("bytes", BigInteger, nullable=False),
    _at("at"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("body_hash", Text, nullable=False),
    Column("job_id", Text, nullable=False),
    _at("created_at"),
    Index("idempotency_keys_job", "job_id"),
)

leadership = Table(
    "leadership",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False, server_default=_EMPTY),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("expires_at", TIMESTAMP(timezone=True), nullable=False, server_default=text("to_timestamp(0)")),
)

namespaces = Table(
    "namespaces",
    metadata,
    Column("name", Text, primary_key=True),
    _at("created_at"),
    Column("data_roots", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("limits", JSONB, nullable=False, server_default=_NO_DETAIL),
    Column("sources", JSONB, nullable=False, server_default=_NO_DETAIL),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("namespace", Text, ForeignKey("namespaces.name", ondelete="CASCADE")),
    Column("scope", Text, nullable=False),
    Column("sha256", Text, nullable=False, unique=True),
    _at("created_at"),
    _at("expires_at", required=False),
    Column("name", Text, nullable=False, server_default=_EMPTY),
    Column("owner", Text, nullable=False, server_default=_EMPTY),
    Column("created_by", Text, nullable=False, server_default=_EMPTY),
    _at("last_used_at", required=False),
    _at("revoked_at", required=False),
    CheckConstraint("scope IN ('read', 'submit', 'admin')", name="tokens_scope_check"),
    Index(
        "tokens_name",
        text("coalesce(namespace, ''::text)"),
        "name",
        unique=True,
        postgresql_where=text("revoked_at IS NULL"),
    ),
)

sessions = Table(
    "sessions",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("token_sha256", Text, nullable=False),
    Column("sealed_token", Text),
    _at("created_at"),
    Column("expires_at", TIMESTAMP(timezone=True), nullable=False),
    Index("sessions_token", "token_sha256", "created_at"),
    Index("sessions_expires", "expires_at"),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    _at("at"),
    Column("actor", Text, nullable=False),
    Column("token_id", Text, nullable=False, server_default=_EMPTY),
    Column("namespace", Text),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("detail", JSONB, nullable=False, server_default=_NO_DETAIL),
    Column("request_id", Text, nullable=False, server_default=_EMPTY),
    Index("audit_log_namespace", "namespace", "id"),
    Index("audit_log_at", "at"),
)


def any_of(texts: Iterable[str]) -> ColumnElement[Any]:
    """Any of some texts, however many, e.g. ``jobs.c.id == any_of(ids)``: ``in_`` has an argument for each."""
    return any_(literal(list(texts), ARRAY(Text)))


def in_states(states: Iterable[JobState]) -> ColumnElement[bool]:
    """Whether a job is in one of these states, e.g. ``in_states(ACTIVE_STATES)``."""
    return jobs.c.state.in_(sorted(states))
