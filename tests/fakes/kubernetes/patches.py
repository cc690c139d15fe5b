"""Patches: merge patches (RFC 7386), JSON patches (RFC 6902), strategic merges, and server-side apply."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

from tests.fakes.kubernetes.objects import Kind, Object, Refusal

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "port",
    "ownerReferences": "uid",
    "conditions": "type",
    "schedulingGates": "name",
    "tolerations": "key",
    "imagePullSecrets": "name",
}
"""Lists whose items have a name; all others are replaced whole."""
_SETS = {"finalizers"}
_NOT_APPLIED = {"apiVersion", "kind"}
_SERVERS = {"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "name", "namespace"}
Path = tuple[str, ...]


def merge(target: object, patch: object) -> object:
    """A merge patch."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def strategic(target: object, patch: object, name: str = "") -> object:
    """A strategic merge patch: lists whose items have names are merged by them."""
    if isinstance(patch, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if key.startswith("$"):
                continue
            if value is None:
                result.pop(key, None)
            else:
                result[key] = strategic(result.get(key), value, key)
        return result
    if isinstance(patch, list) and isinstance(target, list) and name in _KEYS:
        key, items = _KEYS[name], list(target)
        for one in patch:
            place = next((n for n, item in enumerate(items) if item.get(key) == one.get(key)), None)
            if one.get("$patch") == "delete":
                items = [item for item in items if item.get(key) != one.get(key)]
            elif place is None:
                items.append(one)
            else:
                items[place] = strategic(items[place], one)
        return items
    if isinstance(patch, list) and isinstance(target, list) and name in _SETS:
        return [*target, *(one for one in patch if one not in target)]
    return copy.deepcopy(patch)


def json_patch(target: Object, operations: list[dict]) -> Object:
    """A JSON patch; a test that fails is 422."""
    result = copy.deepcopy(target)
    for operation in operations:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        try:
            holder = result
            for part in path:
                holder = holder[int(part)] if isinstance(holder, list) else holder[part]
            key = (len(holder) if last == "-" else int(last)) if isinstance(holder, list) else last
            kind = operation["op"]
            if kind == "add" and isinstance(holder, list):
                holder.insert(key, operation["value"])
            elif kind in ("add", "replace"):
                if kind == "replace":
                    holder[key]  # it has to be there
                holder[key] = operation["value"]
            elif kind == "remove":
                del holder[key]
            elif kind == "test" and holder[key] != operation["value"]:
                raise Refusal(422, "Invalid", f"the server rejected our request: testing path {operation['path']}")
        except (KeyError, IndexError, TypeError, ValueError):
            raise Refusal(
                422, "Invalid", f"the server rejected our request due to an error in our request: {operation['path']}"
            ) from None
    return result


def leaves(value: object, path: Path = (), name: str = "") -> Iterator[Path]:
    """The fields that a manager sets, by path; items of named lists by their names."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if (not path and key in _NOT_APPLIED) or (path == ("metadata",) and key in _SERVERS):
                continue
            yield from leaves(inner, (*path, f"f:{key}"), key)
    elif isinstance(value, list) and name in _KEYS and all(isinstance(one, dict) for one in value):
        for one in value:
            item = (*path, f"k:{json.dumps(one.get(_KEYS[name]))}")
            yield item
            yield from leaves(one, item)
    elif isinstance(value, list) and name in _SETS:
        for one in value:
            yield (*path, f"v:{one}")
    else:
        yield path


def look(value: object, path: Path, name: str = "") -> object:
    """What stands at a path; None for nothing."""
    for step in path:
        kind, _, key = step.partition(":")
        if kind == "f":
            if not isinstance(value, dict) or key not in value:
                return None
            value, name = value[key], key
        elif kind == "k":
            items = value if isinstance(value, list) else []
            value = next((one for one in items if json.dumps(one.get(_KEYS[name])) == key), None)
        else:
            return key if isinstance(value, list) and key in value else None
    return value


def cut(value: object, path: Path, name: str = "") -> None:
    """Removes what stands at a path."""
    *before, last = path
    for step in before:
        value = look(value, (step,), name)
        name = step.partition(":")[2] if step.startswith("f:") else ""
    kind, _, key = last.partition(":")
    if kind == "f" and isinstance(value, dict):
        value.pop(key, None)
    elif isinstance(value, list):
        value[:] = [one for one in value if (json.dumps(one.get(_KEYS[name])) if kind == "k" else one) != key]


def apply(kind: Kind, present: Object | None, given: Object, manager: str, force: bool) -> Object:
    """Server-side apply.

    Args:
        kind: of the object.
        present: the object as it is; None if there is none.
        given: all that the manager says of it.
        manager: who says it.
        force: whether it takes fields from others.
    """
    config = copy.deepcopy(given)
    mine = sorted(set(leaves(config)))
    if present is None:
        result = config
        others: list[Object] = []
    else:
        entries = present["metadata"].get("managedFields") or []
        others = [one for one in entries if (one["manager"], one["operation"]) != (manager, "Apply")]
        before = [one for one in entries if (one["manager"], one["operation"]) == (manager, "Apply")]
        conflicts = [
            (one["manager"], path)
            for one in others
            for path in map(tuple, one["fieldsV1"])
            if path in mine and look(present, path) != look(config, path)
        ]
        if conflicts and not force:
            told = ", ".join(f'conflict with "{who}": {render(path)}' for who, path in conflicts)
            raise Refusal(409, "Conflict", f"Apply failed with {len(conflicts)} conflict: {told}")
        taken = {path for _, path in conflicts}
        others = [
            {**one, "fieldsV1": [path for path in one["fieldsV1"] if tuple(path) not in taken]} for one in others
        ]
        result = copy.deepcopy(present)
        kept = {tuple(path) for one in others for path in one["fieldsV1"]}
        for one in before:
            for path in map(tuple, one["fieldsV1"]):
                if path not in mine and path not in kept and not any(other[: len(path)] == path for other in kept):
                    cut(result, path)
        result = strategic(result, config)
    own: Object = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": kind.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": [list(path) for path in mine],
    }
    result["metadata"]["managedFields"] = [*(one for one in others if one["fieldsV1"]), own]
    return result


def updated(kind: Kind, present: Object | None, result: Object, manager: str) -> None:
    """Notes who set what by a create, an update or a patch."""
    entries = list((present or {}).get("metadata", {}).get("managedFields") or [])
    changed = {
        path
        for path in leaves(result)
        if path[:1] != ("f:status",) and (present is None or look(present, path) != look(result, path))
    }
    entries = [
        {**one, "fieldsV1": [path for path in one["fieldsV1"] if tuple(path) not in changed]}
        for one in entries
        if (one["manager"], one["operation"]) != (manager, "Update")
    ] + [
        {**one, "fieldsV1": sorted({*map(tuple, one["fieldsV1"]), *changed})}
        for one in entries
        if (one["manager"], one["operation"]) == (manager, "Update")
    ]
    if changed and not any((one["manager"], one["operation"]) == (manager, "Update") for one in entries):
        own = {"manager": manager, "operation": "Update", "apiVersion": kind.api_version, "fieldsType": "FieldsV1"}
        entries.append({**own, "fieldsV1": [list(path) for path in sorted(changed)]})
    result["metadata"]["managedFields"] = [one for one in entries if one["fieldsV1"]]


def render(path: Path) -> str:
    """A path as messages show it."""
    return "".join(f".{step[2:]}" if step.startswith("f:") else f"[{step[2:]}]" for step in path)
