"""The gRPC service for the worker that looks at the model of a job, before there is anything else of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from elasticdl_core.errors import ConflictError, InvalidInputError, UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.strategy import ModelProfile
from elasticdl_core.ports.launcher import INSPECTOR
from elasticdl_master.servicer import authenticate_worker
from elasticdl_master.settings import MasterSettings
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_runtime.rpc.service import Server, listen, make_server
from elasticdl_runtime.tokens import Claims

_SERVICE = pb.DESCRIPTOR.services_by_name["Master"]
_HEARTBEAT_S = 1.0


class InspectionServicer:
    """Implements the ``Master`` service for the one worker that looks at the model; all others shall come again.

    Args:
        settings: of the master.
        spec: the job.
        model_zoo: directory of the model code.
        epoch: the master's epoch.

    Attributes:
        profile: what the worker found.
    """

    def __init__(self, settings: MasterSettings, spec: JobSpec, model_zoo: str, epoch: int) -> None:
        self.profile: asyncio.Future[ModelProfile] = asyncio.get_running_loop().create_future()
        self._settings = settings
        self._spec = spec
        self._model_zoo = model_zoo
        self._epoch = epoch
        for method in _SERVICE.methods:
            if not hasattr(type(self), method.name):
                setattr(self, method.name, self._not_yet)

    def make_server(self) -> Server:
        """A server of this, where the master listens; it is not started yet."""
        server = make_server(_SERVICE, self, self.authenticate)
        listen(server, self._settings.listen)
        return server

    def authenticate(self, token: str) -> Claims:
        """Takes a worker's job token."""
        return authenticate_worker(self._settings.job_secret, self._settings.job_id, token)

    async def Register(self, request: pb.RegisterRequest, caller: Claims) -> pb.RegisterResponse:  # noqa: N802
        """Tells the worker what to look at."""
        if caller.index != INSPECTOR:
            raise ConflictError("no worker is wanted yet", fix="leave")
        return pb.RegisterResponse(
            spec=json.dumps(self._spec.to_mapping()),
            model_zoo=self._model_zoo,
            job_dir=str(self._settings.job_dir),
            heartbeat_s=_HEARTBEAT_S,
            master_epoch=self._epoch,
            inspects=True,
        )

    async def DescribeSight(  # noqa: N802
        self, request: pb.DescribeSightRequest, caller: Claims
    ) -> pb.DescribeSightResponse:
        """Takes what the worker saw."""
        if caller.index != INSPECTOR:
            raise ConflictError("no worker is wanted yet", fix="leave")
        try:
            profile = ModelProfile.from_mapping(json.loads(request.sight))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInputError(
                f"that is no profile of a model: {error}", fix="use this version's worker"
            ) from None
        if not self.profile.done():
            self.profile.set_result(profile)
        return pb.DescribeSightResponse()

    async def _not_yet(self, request: object, caller: Claims) -> Any:
        raise UnavailableError("the strategy of the job is being chosen", fix="it is tried again")
