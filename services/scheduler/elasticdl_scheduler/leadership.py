"""Who may decide: a lease on one row of Postgres, by Postgres' clock, with an epoch that fences off the past."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from typing import Any

import structlog

from elasticdl_core.errors import FencedError, UnavailableError
from elasticdl_scheduler.database import Database, first_of

NAME = "scheduler"
_log = structlog.get_logger(__name__)


class Leadership:
    """The lease of one scheduler process.

    Args:
        database: where the row is.
        lease_s: how long a lease lasts; it is renewed every third of that.
        holder: a name that no other process has; made up by default.
    """

    def __init__(self, database: Database, lease_s: float, holder: str = "") -> None:
        self._database = database
        self._lease_s = lease_s
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._epoch = 0
        self._valid_until = 0.0

    @property
    def epoch(self) -> int | None:
        """The epoch of the lease, or None while another leads or the lease may have run out."""
        return self._epoch if self._epoch and time.monotonic() < self._valid_until else None

    async def attempt(self) -> int | None:
        """Renews the lease, or takes it if nobody else holds it.

        Raises:
            UnavailableError: Postgres does not answer; an old lease stays valid until its time is over.
        """
        asked_at = time.monotonic()
        async with self._database.transaction() as connection:
            epoch = await self._renew(connection) if self._epoch else None
            if epoch is None:
                epoch = await self._take(connection)
        if epoch is None:
            if self._epoch:
                _log.warning("leadership_lost", epoch=self._epoch)
            self._epoch = 0
            return None
        if epoch != self._epoch:
            _log.info("leading", epoch=epoch, holder=self.holder)
        self._epoch = epoch
        # Counted from before the question, so that this clock never thinks it leads longer than Postgres does.
        self._valid_until = asked_at + self._lease_s
        return epoch

    async def _renew(self, connection: Any) -> int | None:
        value = await connection.fetchval(
            "UPDATE leadership SET expires_at = now() + make_interval(secs => $1) "
            "WHERE name = $2 AND holder = $3 AND epoch = $4 AND expires_at > now() RETURNING epoch",
            self._lease_s,
            NAME,
            self.holder,
            self._epoch,
        )
        return None if value is None else int(value)

    async def _take(self, connection: Any) -> int | None:
        value = await connection.fetchval(
            "INSERT INTO leadership AS l (name, holder, epoch, expires_at) "
            "VALUES ($2, $3, 1, now() + make_interval(secs => $1)) "
            "ON CONFLICT (name) DO UPDATE SET epoch = l.epoch + 1, holder = excluded.holder, "
            "expires_at = excluded.expires_at WHERE l.holder = excluded.holder OR l.expires_at < now() "
            "RETURNING epoch",
            self._lease_s,
            NAME,
            self.holder,
        )
        return None if value is None else int(value)

    async def require(self, connection: Any, epoch: int) -> None:
        """Holds the row for the rest of the transaction, so that nobody can take over before it is committed.

        Raises:
            FencedError: another has taken over, or the lease ran out.
        """
        row = await connection.fetchval(
            "SELECT epoch FROM leadership WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > now() "
            "FOR UPDATE",
            NAME,
            self.holder,
            epoch,
        )
        if row is None:
            self._epoch = 0
            raise FencedError(f"the scheduler's lease of epoch {epoch} is over")

    async def release(self) -> None:
        """Gives the lease back, so that another need not wait until it runs out."""
        if not self._epoch:
            return
        async with self._database.transaction() as connection:
            await connection.execute(
                "UPDATE leadership SET expires_at = to_timestamp(0) WHERE name = $1 AND holder = $2 AND epoch = $3",
                NAME,
                self.holder,
                self._epoch,
            )
        self._epoch = 0

    async def keep(self, wake: asyncio.Event, stop: asyncio.Event) -> None:
        """Renews or tries to take the lease until ``stop``; sets ``wake`` when it becomes the leader."""
        while not stop.is_set():
            led = self.epoch
            try:
                now = await self.attempt()
            except UnavailableError as error:
                _log.warning("lease_not_renewed", error=error.message)
            else:
                if now is not None and now != led:
                    wake.set()
            await first_of(self._lease_s / 3, stop)
