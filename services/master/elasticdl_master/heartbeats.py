"""A master's heartbeats to the api: what is refused of one takes nothing else with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from elasticdl_core.errors import ElasticDLError, FencedError, UnavailableError
from elasticdl_core.series import SeriesRow
from elasticdl_master.api import ApiClient
from elasticdl_master.job_lease import DesiredState
from elasticdl_master.outbox import Outbox

_log = structlog.get_logger(__name__)


class Heartbeats:
    """Sends heartbeats.

    Args:
        api: the api.
        outbox: tells, once of each kind, that something is not taken.
    """

    def __init__(self, api: ApiClient, outbox: Outbox) -> None:
        self._api = api
        self._outbox = outbox
        self._said: set[str] = set()

    async def send(
        self, status: Mapping[str, Any], losses: Sequence[Mapping[str, Any]], rows: Sequence[SeriesRow]
    ) -> DesiredState:
        """Extends the lease and tells all that is to be told; returns what is wanted of the job.

        Where the api refuses the whole, each part is sent by itself: the lease and the desired state do not depend on
        them.

        Raises:
            FencedError: a newer master took over.
            UnavailableError: the api is away; all is to be told again.
        """
        try:
            desired_state = await self._api.heartbeat(status, losses, rows)
        except (FencedError, UnavailableError):
            raise
        except ElasticDLError:
            desired_state = await self._api.heartbeat({}, [])
            await self._send_part("status", status, [], [])
            await self._send_part("losses", {}, losses, [])
            await self._send_part("series", {}, [], rows)
        for what, reasons in desired_state.refused.items():
            if reasons:
                self._say(what, "; ".join(reasons))
        return desired_state

    async def _send_part(
        self,
        what: str,
        status: Mapping[str, Any],
        losses: Sequence[Mapping[str, Any]],
        rows: Sequence[SeriesRow],
    ) -> None:
        try:
            await self._api.heartbeat(status, losses, rows)
        except (FencedError, UnavailableError):
            raise
        except ElasticDLError as error:
            self._say(what, error.message)

    def _say(self, what: str, why: str) -> None:
        if what in self._said:
            return
        self._said.add(what)
        _log.error("the api refuses a part of a heartbeat", part=what, error=why)
        self._outbox.add_event(
            "report_refused", f"the api does not take some of the job's {what}: {why}", {"of": what}
        )
