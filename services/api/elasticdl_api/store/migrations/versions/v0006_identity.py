"""Identities: namespaces, tokens with a name, an owner and an end, owners of jobs, and the log of all changes.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision: str | None = "0005"
branch_labels: str | None = None
depends_on: str | None = None

_UP = (
    """
    CREATE TABLE namespaces (
        name text PRIMARY KEY,
        created_at timestamptz NOT NULL DEFAULT now(),
        data_roots jsonb NOT NULL DEFAULT '[]',
        limits jsonb NOT NULL DEFAULT '{}'
    )
    """,
    """
    INSERT INTO namespaces (name)
    SELECT 'default' UNION SELECT namespace FROM jobs UNION SELECT namespace FROM tokens
    UNION SELECT namespace FROM bundles
    """,
    "ALTER TABLE tokens DROP CONSTRAINT tokens_scope_check",
    "UPDATE tokens SET scope = 'submit' WHERE scope = 'write'",
    """
    ALTER TABLE tokens
        ADD COLUMN name text NOT NULL DEFAULT '',
        ADD COLUMN owner text NOT NULL DEFAULT '',
        ADD COLUMN created_by text NOT NULL DEFAULT '',
        ADD COLUMN last_used_at timestamptz,
        ADD COLUMN revoked_at timestamptz,
        ALTER COLUMN namespace DROP NOT NULL,
        ADD CONSTRAINT tokens_scope_check CHECK (scope IN ('read', 'submit', 'admin')),
        ADD CONSTRAINT tokens_namespace_fkey FOREIGN KEY (namespace) REFERENCES namespaces (name) ON DELETE CASCADE
    """,
    # Tokens made so far have no name: their id is one that nobody else has.
    "UPDATE tokens SET name = id, owner = id",
    "CREATE UNIQUE INDEX tokens_name ON tokens (coalesce(namespace, ''), name) WHERE revoked_at IS NULL",
    "ALTER TABLE jobs ADD COLUMN owner text NOT NULL DEFAULT ''",
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
    "CREATE INDEX audit_log_namespace ON audit_log (namespace, id)",
    "CREATE INDEX audit_log_at ON audit_log (at)",
)
_DOWN = (
    "DROP TABLE audit_log",
    "ALTER TABLE jobs DROP COLUMN owner",
    "DROP INDEX tokens_name",
    # An earlier version knows neither tokens of no namespace nor revoked ones: it would take them for valid.
    "DELETE FROM tokens WHERE namespace IS NULL OR revoked_at IS NOT NULL",
    "ALTER TABLE tokens DROP CONSTRAINT tokens_scope_check",
    "UPDATE tokens SET scope = 'write' WHERE scope <> 'read'",
    """
    ALTER TABLE tokens
        DROP CONSTRAINT tokens_namespace_fkey,
        DROP COLUMN name,
        DROP COLUMN owner,
        DROP COLUMN created_by,
        DROP COLUMN last_used_at,
        DROP COLUMN revoked_at,
        ALTER COLUMN namespace SET NOT NULL,
        ADD CONSTRAINT tokens_scope_check CHECK (scope IN ('read', 'write'))
    """,
    "DROP TABLE namespaces",
)


def upgrade() -> None:
    """Adds them; tokens that could write may submit now."""
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    """Removes them, and the tokens that an earlier version would read wrongly."""
    for statement in _DOWN:
        op.execute(statement)
