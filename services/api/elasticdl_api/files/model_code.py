"""The model code of a job, and its check at submission: invalid code is rejected before it is queued."""

from __future__ import annotations

import functools
from pathlib import Path

from elasticdl_api.services import Services
from elasticdl_api.web.auth import Identity
from elasticdl_core.errors import Problem, SpecError
from elasticdl_core.job import JobSpec
from elasticdl_core.path_policy import PathPolicy
from elasticdl_runtime import durable
from elasticdl_runtime.bundles import digest_hex, digest_of
from elasticdl_runtime.lifecycle import in_thread


async def check_model(api: Services, namespace: str, spec: JobSpec, reach: PathPolicy | None) -> None:
    """Checks that the model code is there, parses, and has what this type of job needs; runs none of it.

    Args:
        api: what the routes work with.
        namespace: whose bundles may be named.
        spec: the job.
        reach: what the job may read; None for everything.

    Raises:
        SpecError: the bundle was not uploaded.
        UserCodeError: the module is missing, does not parse, lacks an entry, or takes too much to be checked.
        UnavailableError: too much model code is being checked.
    """
    if spec.model_bundle:
        path = await bundle_path(api, namespace, spec.model_bundle)
        if path is None:
            fix = f"upload the zip first: PUT /bundles/{spec.model_bundle}"
            raise SpecError([Problem("model_bundle", f"there is no bundle {spec.model_bundle}", fix)])
        await api.examiners.check_model(spec, namespace=namespace, bundle=path)
        return
    await api.examiners.check_model(spec, namespace=namespace, zoo=spec.model_zoo, reach=reach)


async def place_bundle(api: Services, user: Identity, data: bytes) -> None:
    """Keeps a bundle that was packed here for a user's namespace, if it does not have it yet."""
    digest = digest_of(data)
    if await bundle_path(api, user.home, digest) is None:
        path = api.settings.bundles_dir / f"{digest_hex(digest)}.zip"
        await in_thread(functools.partial(_write, path, data))
        await api.jobs.add_bundle(user, digest, len(data))


def _write(path: Path, data: bytes) -> None:
    durable.make_folder(path.parent)
    durable.write(path, data)


async def bundle_path(api: Services, namespace: str, digest: str) -> Path | None:
    """The file of a bundle that a namespace has uploaded; None if it has not."""
    path = api.settings.bundles_dir / f"{digest_hex(digest)}.zip"
    known = await api.retention.touch_bundle(namespace, digest)
    return path if known and path.is_file() else None
