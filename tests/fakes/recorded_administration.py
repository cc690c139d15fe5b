"""What lies beside jobs: the passes of a scheduler, namespaces, tokens, and the log of changes."""

from __future__ import annotations

from datetime import timedelta

import asyncpg

from tests.fakes.recorded_rows import OWNERS, Clock, insert_rows
from tests.fakes.recorded_story import STORY


async def scheduler_pass(connection: asyncpg.Connection) -> None:
    """A scheduler that leads, with its last pass and some decisions."""
    clock = Clock.start()
    later = clock.now + timedelta(days=2)
    await connection.execute(
        "INSERT INTO leadership VALUES ('scheduler', 'scheduler-1', 4, $1) ON CONFLICT (name) DO UPDATE "
        "SET expires_at = excluded.expires_at",
        later,
    )
    last = {"name": "scheduler", "at": clock.ago(1), "epoch": 4, "passes": 21_600, "changes": 12, "policy": "goodput"}
    capacity = {"for_jobs": 1300, "used": {STORY: 6}}
    await insert_rows(
        connection,
        "scheduler_passes",
        [{**last, "quotas": {}, "capacity": capacity, "seconds": 0.004, "interval_s": 3600.0}],
    )
    decisions = [
        {
            "at": clock.ago(ago),
            "epoch": 4,
            "policy": "goodput",
            "input_hash": "ab" * 32,
            "snapshot": {},
            "plan": {},
            "changes": [
                {
                    "job_id": STORY,
                    "from": before,
                    "to": after,
                    "code": "at_max",
                    "blockers": [],
                    "text": "it has as many as it can use",
                }
            ],
        }
        for ago, before, after in ((20_000, 1, 4), (15_000, 4, 2), (4990, 2, 6))
    ]
    await insert_rows(connection, "plans", decisions)


async def administration(connection: asyncpg.Connection) -> None:
    """Namespaces, tokens of all kinds, and a log of changes."""
    clock = Clock.start()
    await connection.execute(
        "INSERT INTO namespaces (name, data_roots, limits) VALUES "
        """('team-ads', '["/data/ads"]', '{"max_streams": 20, "disk_mib": 20480}'), ('team-search', '[]', '{}') """
        "ON CONFLICT DO NOTHING"
    )
    tokens = [
        {
            "id": f"tok-{name}",
            "namespace": space,
            "scope": scope,
            "sha256": f"{number:064x}",
            "name": name,
            "owner": owner,
            "created_by": "admin",
            "created_at": clock.ago(864_000 - 1000 * number),
            "expires_at": ends,
            "last_used_at": clock.ago(300),
            "revoked_at": revoked,
        }
        for number, (name, space, scope, owner, ends, revoked) in enumerate(
            (
                ("ada-laptop", "team-ads", "submit", "ada", None, None),
                ("grafana", None, "read", "ops", None, None),
                ("ci", "team-search", "submit", "ci", clock.now + timedelta(days=30), None),
                ("old-ci", "team-search", "submit", "ci", clock.ago(86_400), None),
                ("lost-phone", "team-ads", "read", "grace", None, clock.ago(3600)),
            )
        )
    ]
    await insert_rows(connection, "tokens", tokens)
    entries = [
        {
            "at": clock.ago(60 * number + 30),
            "actor": OWNERS[number % 6],
            "token_id": "tok-ada-laptop",
            "namespace": "default",
            "action": action,
            "target": target,
            "detail": detail,
            "request_id": f"req-{number:06d}",
        }
        for number, (action, target, detail) in enumerate(
            (
                ("job.change", STORY, {"max_workers": 6}),
                ("job.resume", STORY, {}),
                ("job.suspend", STORY, {}),
                ("token.create", "tok-ci", {"scope": "submit"}),
                ("job.submit", STORY, {"type": "training"}),
            )
            * 60
        )
    ]
    await insert_rows(connection, "audit_log", entries)
