"""What the API server keeps: objects under versions, and what happened to them lately."""

from __future__ import annotations

import copy
import json
import secrets
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.fakes.kubernetes import patches
from tests.fakes.kubernetes.objects import (
    KINDS,
    Kind,
    Match,
    Object,
    Refusal,
    amount,
    check_labels,
    check_name,
    invalid,
    not_found,
    now,
    requests_of,
)

Key = tuple[str, str, str]
_IMMUTABLE = ("configmaps", "secrets")


@dataclass(frozen=True)
class Event:
    """A change.

    Attributes:
        version: the server's count of changes after it.
        key: plural, namespace and name.
        before: the object before; None for one that came.
        after: the object after it; None for one that went.
    """

    version: int
    key: Key
    before: Object | None
    after: Object | None


class Store:
    """Objects, with what the API server checks when they change.

    Args:
        kept: changes that watches can go on from.
    """

    def __init__(self, kept: int = 1000) -> None:
        self.version = 1
        self.objects: dict[Key, Object] = {}
        self.events: deque[Event] = deque(maxlen=kept)
        self.listeners: list[Callable[[Event], None]] = []
        self.forgotten = 1
        for name in ("default", "kube-system"):
            self.create(KINDS["namespaces"], "", {"metadata": {"name": name}})

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        found = self.objects.get((kind.plural, namespace if kind.namespaced else "", name))
        if found is None:
            raise not_found(kind, name)
        return found

    def all(self, plural: str, namespace: str = "", match: Match | None = None) -> list[Object]:
        """Those of a kind, by name."""
        return [
            found
            for key, found in sorted(self.objects.items())
            if key[0] == plural and namespace in ("", key[1]) and (match is None or match(found))
        ]

    # -- writing ---------------------------------------------------------------------------------------------------

    def create(
        self, kind: Kind, namespace: str, given: Object, manager: str = "kubectl", *, dry: bool = False
    ) -> Object:
        found = self._complete(kind, namespace, given)
        metadata = found["metadata"]
        if metadata.get("generateName") and not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + secrets.token_hex(4)
        name = metadata.get("name", "")
        if metadata.get("resourceVersion"):
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if not name:
            raise invalid(kind, "", "metadata.name: Required value: name or generateName is required")
        key = (kind.plural, namespace if kind.namespaced else "", name)
        check_name(kind, name)
        if key in self.objects:
            raise Refusal(
                409, "AlreadyExists", f'{kind.resource} "{name}" already exists', name=name, kind=kind.plural
            )
        self._admit(kind, namespace, found)
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1)
        if not metadata.get("managedFields"):
            patches.updated(kind, None, found, manager)
        if not dry:
            self._put(key, found)
        return found

    def replace(
        self, kind: Kind, namespace: str, name: str, given: Object, manager: str, *, part: str = "", dry: bool = False
    ) -> Object:
        """An update, of all but the status or of the status alone."""
        present = self.get(kind, namespace, name)
        found = self._complete(kind, namespace, given)
        metadata, before = found["metadata"], present["metadata"]
        if metadata.get("name", name) != name:
            raise Refusal(
                400, "BadRequest", f"the name of the object ({metadata['name']}) does not match the name on the URL"
            )
        if metadata.get("uid") not in (None, before["uid"]):
            raise Refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {kind.resource} "{name}": Precondition failed: UID',
            )
        if metadata.get("resourceVersion") not in (None, "", before["resourceVersion"]):
            raise Refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {kind.resource} "{name}": the object has been modified; apply'
                " your changes to the latest version and try again",
            )
        if part == "status":
            found = {**copy.deepcopy(present), "status": found.get("status", {})}
        else:
            for server in (
                "uid",
                "creationTimestamp",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "generation",
            ):
                metadata.pop(server, None)
                if server in before:
                    metadata[server] = before[server]
            if "status" in present:
                found["status"] = copy.deepcopy(present["status"])
            self._may_change(kind, present, found)
            if found.get("spec") != present.get("spec"):
                metadata["generation"] = before.get("generation", 1) + 1
        if not metadata.get("managedFields") or metadata.get("managedFields") == before.get("managedFields"):
            patches.updated(kind, present, found, manager)
        found["metadata"]["resourceVersion"] = before["resourceVersion"]
        if dry or _said(found) == _said(present):
            return found if dry else present
        key = (kind.plural, namespace if kind.namespaced else "", name)
        if (
            found["metadata"].get("deletionTimestamp")
            and not found["metadata"].get("finalizers")
            and self._over(found)
        ):
            self._remove(key, found)
        else:
            self._put(key, found)
        return found

    def delete(self, kind: Kind, namespace: str, name: str, options: Object | None = None) -> Object:
        """Deletes an object, or marks it where something is to be done before."""
        options = options or {}
        present = self.get(kind, namespace, name)
        for field, value in (options.get("preconditions") or {}).items():
            told = "UID" if field == "uid" else "ResourceVersion"
            if value != present["metadata"][field]:
                raise Refusal(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {kind.kind} "{name}": the {told} in the precondition '
                    f"({value}) does not match the {told} in record ({present['metadata'][field]}). The object "
                    "might have been deleted and then recreated",
                )
        key = (kind.plural, namespace if kind.namespaced else "", name)
        found = copy.deepcopy(present)
        metadata = found["metadata"]
        grace = self._grace(kind, found, options)
        marked = metadata.get("deletionGracePeriodSeconds")
        if options.get("propagationPolicy") == "Foreground":
            metadata["finalizers"] = [*metadata.get("finalizers", []), "foregroundDeletion"]
        if options.get("propagationPolicy") == "Orphan":
            for owned in self.owned(metadata["uid"]):
                self._disown(owned, metadata["uid"])
        if grace == 0 and not metadata.get("finalizers"):
            self._remove(key, found)
            return found
        if "deletionTimestamp" not in metadata or (marked is not None and grace < marked):
            metadata.update(deletionTimestamp=now(), deletionGracePeriodSeconds=grace)
            metadata["generation"] = metadata.get("generation", 1) + 1
            self._put(key, found)
        return found

    def owned(self, uid: str) -> list[tuple[Key, Object]]:
        """What names an object as an owner."""
        return [
            (key, found)
            for key, found in self.objects.items()
            if any(owner["uid"] == uid for owner in found["metadata"].get("ownerReferences") or [])
        ]

    def quota_used(self, namespace: str) -> dict[str, float]:
        """What the pods of a namespace that have not ended count for quotas."""
        used: dict[str, float] = {}
        for pod in self.all("pods", namespace):
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                for name, value in requests_of(pod).items():
                    used[name] = used.get(name, 0.0) + value
        return used

    # -- the inside ------------------------------------------------------------------------------------------------

    def _complete(self, kind: Kind, namespace: str, given: Object) -> Object:
        found = copy.deepcopy(given)
        for name, wanted in (("kind", kind.kind), ("apiVersion", kind.api_version)):
            if found.setdefault(name, wanted) != wanted:
                raise Refusal(400, "BadRequest", f"the {name} in the data ({found[name]}) does not match ({wanted})")
        metadata = found.setdefault("metadata", {})
        if not isinstance(metadata, dict):
            raise Refusal(400, "BadRequest", "json: cannot unmarshal into Go struct field .metadata")
        if kind.namespaced:
            if metadata.setdefault("namespace", namespace) != namespace:
                raise Refusal(
                    400,
                    "BadRequest",
                    "the namespace of the provided object does not match the namespace sent on the request",
                )
            if ("namespaces", "", namespace) not in self.objects:
                raise not_found(KINDS["namespaces"], namespace)
        check_labels(kind, {"metadata": {"name": metadata.get("name", ""), **metadata}})
        for owner in metadata.get("ownerReferences") or []:
            for field in ("apiVersion", "kind", "name", "uid"):
                if not owner.get(field):
                    raise invalid(kind, metadata.get("name", ""), f"metadata.ownerReferences.{field}: Required value")
        for finalizer in metadata.get("finalizers") or []:
            if "/" not in finalizer and finalizer not in ("orphan", "foregroundDeletion", "kubernetes"):
                raise invalid(
                    kind,
                    metadata.get("name", ""),
                    f'metadata.finalizers[0]: Invalid value: "{finalizer}": name is neither',
                )
        if kind.plural == "secrets":
            data = found.setdefault("data", {})
            import base64

            for key, value in (found.pop("stringData", None) or {}).items():
                data[key] = base64.b64encode(value.encode()).decode()
            found.setdefault("type", "Opaque")
        return found

    def _admit(self, kind: Kind, namespace: str, found: Object) -> None:
        if kind.plural == "services":
            found.setdefault("spec", {}).setdefault(
                "clusterIP", f"10.96.{secrets.randbelow(256)}.{secrets.randbelow(256)}"
            )
        if kind.plural != "pods":
            return
        name, spec = found["metadata"]["name"], found.setdefault("spec", {})
        if not spec.get("containers"):
            raise invalid(kind, name, "spec.containers: Required value")
        for number, container in enumerate(spec["containers"]):
            for field in ("name", "image"):
                if not container.get(field):
                    raise invalid(kind, name, f"spec.containers[{number}].{field}: Required value")
            resources = container.get("resources") or {}
            for resource, limit in (resources.get("limits") or {}).items():
                request = (resources.get("requests") or {}).get(resource, limit)
                try:
                    above = amount(request) > amount(limit)
                except ValueError as error:
                    raise Refusal(
                        400, "BadRequest", f"quantities must match the regular expression: {error}"
                    ) from None
                if above:
                    raise invalid(
                        kind,
                        name,
                        f'spec.containers[{number}].resources.requests: Invalid value: "{request}": must be at most '
                        f"{resource} limit of {limit}",
                    )
        policy = spec.setdefault("restartPolicy", "Always")
        if policy not in ("Always", "OnFailure", "Never"):
            raise invalid(kind, name, f'spec.restartPolicy: Unsupported value: "{policy}"')
        if spec.get("schedulingGates") and spec.get("nodeName"):
            raise invalid(
                kind, name, "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"
            )
        mounted = {mount["name"] for one in spec["containers"] for mount in one.get("volumeMounts") or []}
        if missing := mounted - {volume["name"] for volume in spec.get("volumes") or []}:
            raise invalid(kind, name, f'spec.containers[0].volumeMounts[0].name: Not found: "{min(missing)}"')
        spec.setdefault("terminationGracePeriodSeconds", 30)
        gated = bool(spec.get("schedulingGates"))
        waiting = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        found["status"] = {"phase": "Pending", "conditions": [waiting] if gated else []}
        self._check_quota(kind, namespace, found)

    def _check_quota(self, kind: Kind, namespace: str, found: Object) -> None:
        for quota in self.all("resourcequotas", namespace):
            used, asked = self.quota_used(namespace), requests_of(found)
            pod_name = found["metadata"]["name"]
            for limited, hard in (quota.get("spec", {}).get("hard") or {}).items():
                name = limited.removeprefix("requests.")
                if limited != "pods" and name not in asked:
                    raise Refusal(
                        403,
                        "Forbidden",
                        f'pods "{pod_name}" is forbidden: failed quota: {quota["metadata"]["name"]}: '
                        f"must specify {limited}",
                    )
                if used.get(name, 0.0) + asked.get(name, 0.0) > amount(hard) + 1e-9:
                    raise Refusal(
                        403,
                        "Forbidden",
                        f'pods "{pod_name}" is forbidden: exceeded quota: {quota["metadata"]["name"]}'
                        f", requested: {limited}={asked.get(name, 0.0):g}, used: {limited}={used.get(name, 0.0):g}, "
                        f"limited: {limited}={hard}",
                    )

    def _may_change(self, kind: Kind, present: Object, found: Object) -> None:
        name = present["metadata"]["name"]
        if kind.plural in _IMMUTABLE and present.get("immutable") and found.get("data") != present.get("data"):
            raise invalid(kind, name, "data: Forbidden: field is immutable when `immutable` is set")
        if present["metadata"].get("deletionTimestamp"):
            added = set(found["metadata"].get("finalizers") or []) - set(present["metadata"].get("finalizers") or [])
            if added:
                raise invalid(
                    kind,
                    name,
                    "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
                )
        if kind.plural == "pods":
            gates, left = (
                [one["name"] for one in pod["spec"].get("schedulingGates") or []] for pod in (present, found)
            )
            if set(left) - set(gates):
                raise invalid(
                    kind,
                    name,
                    "spec.schedulingGates: Forbidden: only deletion is allowed, but found new scheduling gate",
                )
            if not left:
                found["spec"].pop("schedulingGates", None)
            same = copy.deepcopy(found["spec"])
            was = copy.deepcopy(present["spec"])
            for spec in (same, was):
                for free in ("schedulingGates", "activeDeadlineSeconds", "tolerations", "nodeName"):
                    spec.pop(free, None)
                for container in spec["containers"]:
                    container.pop("image", None)
            if same != was:
                raise invalid(
                    kind,
                    name,
                    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`, ...",
                )

    def _grace(self, kind: Kind, found: Object, options: Object) -> int:
        if kind.plural != "pods":
            return 0
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = found["spec"].get("terminationGracePeriodSeconds", 30)
        if int(grace) < 0:
            raise invalid(kind, found["metadata"]["name"], "gracePeriodSeconds: Invalid value: must be non-negative")
        ended = (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        return 0 if not found["spec"].get("nodeName") or ended else int(grace)

    def _over(self, found: Object) -> bool:
        """Whether nobody works on it any more."""
        return found["metadata"].get("deletionGracePeriodSeconds", 0) == 0

    def _disown(self, owned: tuple[Key, Object], uid: str) -> None:
        key, present = owned
        found = copy.deepcopy(present)
        found["metadata"]["ownerReferences"] = [
            owner for owner in found["metadata"]["ownerReferences"] if owner["uid"] != uid
        ]
        self._put(key, found)

    def _put(self, key: Key, found: Object) -> None:
        before = self.objects.get(key)
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        found = json.loads(json.dumps(found))
        self.objects[key] = found
        self._tell(Event(self.version, key, before, found))

    def _remove(self, key: Key, found: Object) -> None:
        before = self.objects.pop(key)
        self.version += 1
        before = copy.deepcopy(before)
        before["metadata"]["resourceVersion"] = str(self.version)
        self._tell(Event(self.version, key, before, None))

    def _tell(self, event: Event) -> None:
        if len(self.events) == self.events.maxlen:
            self.forgotten = self.events[0].version
        self.events.append(event)
        for listener in list(self.listeners):
            listener(event)

    def forget(self) -> None:
        """As after a compaction: watches and pages can go on from nothing older."""
        self.forgotten = self.version
        self.events.clear()


def _said(found: Object) -> Object:
    """An object without who said what of it, where that changes alone by an update of nothing."""
    applied = [one for one in found["metadata"].get("managedFields") or [] if one["operation"] == "Apply"]
    return {**found, "metadata": {**found["metadata"], "managedFields": applied}}
