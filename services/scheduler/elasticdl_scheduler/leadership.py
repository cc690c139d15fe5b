"""Leadership of schedulers: a lease on one row of Postgres, by its clock, with an epoch that fences off the past."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time

import structlog
from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_core.errors import FencedError, UnavailableError
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.tables import leadership as leases
from elasticdl_runtime.database.transitions import in_seconds
from elasticdl_scheduler.waiting import first_of

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

    async def _renew(self, connection: AsyncConnection) -> int | None:
        query = (
            update(leases)
            .where(*self._held(self._epoch), leases.c.expires_at > func.now())
            .values(expires_at=in_seconds(self._lease_s))
            .returning(leases.c.epoch)
        )
        renewed: int | None = (await connection.execute(query)).scalar_one_or_none()
        return renewed

    async def _take(self, connection: AsyncConnection) -> int | None:
        row = upsert(leases).values(name=NAME, holder=self.holder, epoch=1, expires_at=in_seconds(self._lease_s))
        # One that is further ahead than it can last was given before the clock was set back. Counted from this very
        # moment: one that was given since this transaction began is further ahead than its beginning, and stays.
        free = or_(
            leases.c.holder == row.excluded.holder,
            leases.c.expires_at < func.now(),
            leases.c.expires_at - func.clock_timestamp() > func.make_interval(0, 0, 0, 0, 0, 0, self._lease_s),
        )
        query = row.on_conflict_do_update(
            index_elements=["name"],
            set_={
                "epoch": leases.c.epoch + 1,
                "holder": row.excluded.holder,
                "expires_at": row.excluded.expires_at,
            },
            where=free,
        ).returning(leases.c.epoch)
        taken: int | None = (await connection.execute(query)).scalar_one_or_none()
        return taken

    def _held(self, epoch: int) -> tuple[ColumnElement[bool], ...]:
        return leases.c.name == NAME, leases.c.holder == self.holder, leases.c.epoch == epoch

    async def require(self, connection: AsyncConnection, epoch: int) -> None:
        """Holds the row for the rest of the transaction, so that nobody can take over before it is committed.

        Raises:
            FencedError: another has taken over, or the lease ran out.
        """
        query = select(leases.c.epoch).where(*self._held(epoch), leases.c.expires_at > func.now()).with_for_update()
        if (await connection.execute(query)).one_or_none() is None:
            self._epoch = 0
            raise FencedError(f"the scheduler's lease of epoch {epoch} is over")

    async def release(self) -> None:
        """Gives the lease back, so that another need not wait until it runs out."""
        if not self._epoch:
            return
        async with self._database.transaction() as connection:
            expired = {"expires_at": func.to_timestamp(0)}
            await connection.execute(update(leases).where(*self._held(self._epoch)).values(expired))
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
