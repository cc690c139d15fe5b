"""The API server's HTTP: an ASGI application over the store, with faults that tests can order."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field

import yaml

from tests.fakes.kubernetes import patches
from tests.fakes.kubernetes.objects import KINDS, Kind, Object, Refusal, field_selector, label_selector, not_found
from tests.fakes.kubernetes.store import Event, Store

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_BOOKMARK_S = 1.0
Logs = Callable[[str, str, dict[str, str]], "asyncio.Queue[bytes | None]"]


@dataclass
class Fault:
    """What befalls requests.

    Attributes:
        verb: of those that it befalls; empty for all.
        plural: the kind of object.
        code: answered in the place of an answer; 0 cuts the connection.
        after: whether the request is carried out before.
        times: how many.
    """

    verb: str = ""
    plural: str = ""
    code: int = 500
    after: bool = False
    times: int = 1


@dataclass(frozen=True)
class Rule:
    """What a user may do: verbs on resources (``pods``, ``pods/log``) in namespaces; ``*`` for all."""

    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    namespaces: tuple[str, ...] = ("*",)


@dataclass
class ApiServer:
    """The application.

    Attributes:
        store: the objects.
        users: by token, the name and what it may do; None for everything.
        logs: gives what a pod printed.
        faults: to come.
        away: whether it answers nothing.
        requests: verbs and kinds of all requests, for tests that count.
        refused: what users were told that they may not do.
    """

    store: Store
    users: dict[str, tuple[str, tuple[Rule, ...] | None]]
    logs: Logs
    faults: list[Fault] = field(default_factory=list)
    away: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    watches: set[asyncio.Event] = field(default_factory=set)

    def cut_watches(self) -> None:
        """Ends all watches."""
        for watch in list(self.watches):
            watch.set()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        answer = _Answer(send)
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            await self._serve(scope, body, receive, answer)
        except Refusal as refusal:
            await answer.send(refusal.code, refusal.status())

    async def _serve(self, scope, body: bytes, receive, answer: _Answer) -> None:
        parts = [urllib.parse.unquote(part) for part in scope["path"].split("/") if part]
        query = dict(urllib.parse.parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        if self.away:
            raise ConnectionError
        if parts in (["version"], ["healthz"], ["readyz"]):
            await answer.send(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
            return
        kind, namespace, name, part = _route(parts)
        verb = _VERBS.get(scope["method"], "")
        if verb == "get" and not name:
            verb = "watch" if query.get("watch") in ("true", "1") else "list"
        if verb == "delete" and not name:
            verb = "deletecollection"
        self._authorize(
            headers.get("authorization", ""), verb, f"{kind.plural}/{part}" if part else kind.plural, namespace
        )
        self.requests.append((verb, kind.plural))
        fault = next((one for one in self.faults if one.verb in ("", verb) and one.plural in ("", kind.plural)), None)
        if fault is not None:
            fault.times -= 1
            if fault.times <= 0:
                self.faults.remove(fault)
            if not fault.after:
                raise _fault(fault)
        if verb == "watch":
            await self._watch(kind, namespace, query, receive, answer)
            return
        if (kind.plural, part) == ("pods", "log"):
            await self._log(namespace, name, query, answer)
            return
        code, found = self._carry_out(verb, kind, namespace, name, part, query, headers, body)
        if fault is not None:
            raise _fault(fault)
        await answer.send(code, found)

    def _authorize(self, header: str, verb: str, resource: str, namespace: str) -> None:
        user = self.users.get(header.removeprefix("Bearer "))
        if user is None:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        name, rules = user
        if rules is not None and not any(
            {verb, "*"} & set(rule.verbs)
            and {resource, "*"} & set(rule.resources)
            and {namespace or "", "*"} & set(rule.namespaces)
            for rule in rules
        ):
            self.refused.append(f"{verb} {resource}")
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            raise Refusal(
                403,
                "Forbidden",
                f'{resource} is forbidden: User "{name}" cannot {verb} resource "{resource}" in API group ""{where}',
            )

    def _carry_out(
        self, verb: str, kind: Kind, namespace: str, name: str, part: str, query: dict, headers: dict, body: bytes
    ) -> tuple[int, Object]:
        store = self.store
        dry = query.get("dryRun") == "All"
        manager = query.get("fieldManager") or headers.get("user-agent", "").partition("/")[0] or "unknown"
        if part not in ("", "status", "binding", "eviction"):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if verb == "list":
            return 200, self._list(kind, namespace, query)
        if verb == "get":
            return 200, store.get(kind, namespace, name)
        if verb == "delete":
            found = store.delete(kind, namespace, name, _read(body) if body else _options(query))
            return 200, found
        if verb == "deletecollection":
            for one in self._list(kind, namespace, {**query, "limit": ""})["items"]:
                store.delete(
                    kind, one["metadata"].get("namespace", ""), one["metadata"]["name"], _read(body) if body else {}
                )
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        given = _read(body)
        if part == "binding":
            self._bind(namespace, name, given)
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if part == "eviction":
            return 201, self._evict(namespace, name, given)
        if verb == "create":
            return 201, store.create(kind, namespace, given, manager, dry=dry)
        if verb == "update":
            return 200, store.replace(kind, namespace, name, given, manager, part=part, dry=dry)
        return self._patch(kind, namespace, name, part, query, headers, given, manager, dry)

    def _patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        part: str,
        query: dict,
        headers: dict,
        given,
        manager: str,
        dry: bool,
    ) -> tuple[int, Object]:
        store, how = self.store, headers.get("content-type", "").partition(";")[0]
        if how == "application/apply-patch+yaml":
            if not query.get("fieldManager"):
                raise Refusal(
                    422,
                    "Invalid",
                    'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value',
                )
            if not isinstance(given, dict) or not given.get("kind") or not given.get("apiVersion"):
                raise Refusal(400, "BadRequest", "apiVersion and kind must be set")
            metadata = given.setdefault("metadata", {})
            if metadata.setdefault("name", name) != name:
                raise Refusal(400, "BadRequest", "the name of the object does not match the name on the URL")
            if metadata.get("managedFields"):
                raise Refusal(400, "BadRequest", "metadata.managedFields must be nil")
            key = (kind.plural, namespace if kind.namespaced else "", name)
            present = store.objects.get(key)
            metadata.pop("namespace", None)
            result = patches.apply(kind, present, given, manager, query.get("force") == "true")
            if present is None:
                return 201, store.create(kind, namespace, result, manager, dry=dry)
            return 200, store.replace(kind, namespace, name, result, manager, part=part, dry=dry)
        present = copy.deepcopy(store.get(kind, namespace, name))
        if how == "application/merge-patch+json":
            result = patches.merge(present, given)
        elif how == "application/strategic-merge-patch+json":
            result = patches.strategic(present, given)
        elif how == "application/json-patch+json":
            result = patches.json_patch(present, given)
        else:
            raise Refusal(415, "UnsupportedMediaType", f'the body of the request was in an unknown format - "{how}"')
        if not isinstance(given, list):
            said = (given.get("metadata") or {}).get("resourceVersion") if isinstance(given, dict) else None
            if said is None:
                result["metadata"].pop("resourceVersion", None)
        return 200, store.replace(kind, namespace, name, copy.deepcopy(result), manager, part=part, dry=dry)

    def _list(self, kind: Kind, namespace: str, query: dict) -> Object:
        labels, fields = (
            label_selector(query.get("labelSelector", "")),
            field_selector(kind, query.get("fieldSelector", "")),
        )
        version, start = self.store.version, ""
        if token := query.get("continue"):
            try:
                version, start = json.loads(base64.b64decode(token))
            except ValueError:
                raise Refusal(400, "BadRequest", "continue key is not valid") from None
            if version < self.store.forgotten:
                raise Refusal(
                    410, "Expired", "The provided continue parameter is too old to display a consistent list result."
                )
        found = self.store.all(kind.plural, namespace, lambda one: labels(one) and fields(one))
        found = [one for one in found if _place(one) > start]
        metadata: Object = {"resourceVersion": str(version)}
        limit = int(query.get("limit") or 0)
        if limit and len(found) > limit:
            metadata["remainingItemCount"] = len(found) - limit
            found = found[:limit]
            metadata["continue"] = base64.b64encode(json.dumps([version, _place(found[-1])]).encode()).decode()
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": found}

    async def _watch(self, kind: Kind, namespace: str, query: dict, receive, answer: _Answer) -> None:
        labels, fields = (
            label_selector(query.get("labelSelector", "")),
            field_selector(kind, query.get("fieldSelector", "")),
        )

        def match(found: Object | None) -> bool:
            return found is not None and labels(found) and fields(found)

        def render(event: Event) -> tuple[str, Object] | None:
            plural, where, _ = event.key
            if plural != kind.plural or namespace not in ("", where):
                return None
            was, is_ = match(event.before), match(event.after)
            if is_:
                return ("MODIFIED" if was else "ADDED"), event.after
            if was:
                gone = copy.deepcopy(event.after or event.before)
                gone["metadata"]["resourceVersion"] = str(event.version)
                return "DELETED", gone
            return None

        store, queue = self.store, asyncio.Queue()
        version, ended = query.get("resourceVersion", ""), asyncio.Event()
        await answer.begin(200)
        if version in ("", "0"):
            for found in store.all(kind.plural, namespace, match):
                await answer.line({"type": "ADDED", "object": found})
        elif int(version) < store.forgotten:
            expired = Refusal(410, "Expired", f"too old resource version: {version} ({store.forgotten})")
            await answer.line({"type": "ERROR", "object": expired.status()})
            await answer.end()
            return
        else:
            for event in [one for one in store.events if one.version > int(version)]:
                queue.put_nowait(event)
        store.listeners.append(queue.put_nowait)
        self.watches.add(ended)
        loop = asyncio.get_running_loop()
        until = loop.time() + float(query.get("timeoutSeconds") or 1800)
        leaving, cutting = asyncio.ensure_future(receive()), asyncio.ensure_future(ended.wait())
        taking = None
        try:
            while not queue.empty() or loop.time() < until:  # what has happened is told, however late
                taking = taking or asyncio.ensure_future(queue.get())
                wait = min(_BOOKMARK_S, max(0.0, until - loop.time()))
                done, _ = await asyncio.wait(
                    {taking, leaving, cutting}, timeout=wait, return_when=asyncio.FIRST_COMPLETED
                )
                if leaving in done or cutting in done:
                    break
                if taking in done:
                    told = render(taking.result())
                    taking = None
                    if told is not None:
                        await answer.line({"type": told[0], "object": told[1]})
                elif query.get("allowWatchBookmarks") == "true":
                    mark = {"metadata": {"resourceVersion": str(store.version)}}
                    await answer.line(
                        {"type": "BOOKMARK", "object": {"kind": kind.kind, "apiVersion": kind.api_version, **mark}}
                    )
        finally:
            store.listeners.remove(queue.put_nowait)
            self.watches.discard(ended)
            for task in (leaving, cutting, taking):
                if task is not None:
                    task.cancel()
        await answer.end()

    async def _log(self, namespace: str, name: str, query: dict, answer: _Answer) -> None:
        pod = self.store.get(KINDS["pods"], namespace, name)
        if not pod["spec"].get("nodeName"):
            await answer.begin(204, "text/plain")
            await answer.end()
            return
        states = [one["state"] for one in (pod.get("status") or {}).get("containerStatuses") or []]
        if not any({"running", "terminated"} & set(state) for state in states):
            container = pod["spec"]["containers"][0]["name"]
            raise Refusal(
                400, "BadRequest", f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating'
            )
        queue = self.logs(namespace, name, query)
        await answer.begin(200, "text/plain")
        while (piece := await queue.get()) is not None:
            await answer.piece(piece)
        await answer.end()

    def _bind(self, namespace: str, name: str, binding: Object) -> None:
        pod = copy.deepcopy(self.store.get(KINDS["pods"], namespace, name))
        if pod["spec"].get("nodeName"):
            raise Refusal(
                409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}": pod is already assigned'
            )
        pod["spec"]["nodeName"] = binding["target"]["name"]
        self.store.replace(KINDS["pods"], namespace, name, pod, "scheduler")

    def _evict(self, namespace: str, name: str, eviction: Object) -> Object:
        store, pod = self.store, self.store.get(KINDS["pods"], namespace, name)
        for budget in store.all("poddisruptionbudgets", namespace):
            wanted = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
            selected = label_selector(",".join(f"{key}={value}" for key, value in wanted.items()))
            if not selected(pod):
                continue
            healthy = len([one for one in store.all("pods", namespace, selected) if _healthy(one)])
            # Of pods without a controller "maxUnavailable" lets none go.
            if _healthy(pod) and healthy <= int(budget["spec"].get("minAvailable", healthy)):
                raise Refusal(
                    429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget."
                )
        disrupt(store, pod, "EvictionByEvictionAPI", "Eviction API: evicting")
        store.delete(KINDS["pods"], namespace, name, eviction.get("deleteOptions"))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}


def disrupt(store: Store, pod: Object, reason: str, message: str) -> None:
    """Notes on a pod why it is about to be deleted."""
    found = copy.deepcopy(pod)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    found["status"]["conditions"] = [*found["status"].get("conditions", []), condition]
    store.replace(
        KINDS["pods"], pod["metadata"]["namespace"], pod["metadata"]["name"], found, "controller", part="status"
    )


class _Answer:
    """What is sent, at once or piece by piece."""

    def __init__(self, send) -> None:
        self._send = send

    async def send(self, code: int, found: Object) -> None:
        await self.begin(code)
        await self.piece(json.dumps(found).encode())
        await self.end()

    async def begin(self, code: int, kind: str = "application/json") -> None:
        headers = [(b"content-type", kind.encode())]
        await self._send({"type": "http.response.start", "status": code, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def piece(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def line(self, found: Object) -> None:
        await self.piece(json.dumps(found).encode() + b"\n")

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})


def _route(parts: list[str]) -> tuple[Kind, str, str, str]:
    """Kind, namespace, name and subresource of a path."""
    unknown = Refusal(404, "NotFound", "the server could not find the requested resource")
    if parts[:1] == ["api"]:
        version, rest = "/".join(parts[1:2]), parts[2:]
    elif parts[:1] == ["apis"]:
        version, rest = "/".join(parts[1:3]), parts[3:]
    else:
        raise unknown
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = KINDS.get(rest[0]) if rest else None
    if kind is None or kind.api_version != version or len(rest) > 3 or (namespace and not kind.namespaced):
        raise unknown
    name, part = (*rest[1:], "", "")[:2]
    if kind.namespaced and not namespace and name:
        raise unknown
    return kind, namespace, name, part


def _read(body: bytes) -> Object:
    try:
        found = yaml.safe_load(body) if not body.lstrip().startswith((b"{", b"[")) else json.loads(body)
    except (ValueError, yaml.YAMLError) as error:
        raise Refusal(400, "BadRequest", f"the object provided is unrecognized: {error}") from None
    if not isinstance(found, dict | list):
        raise Refusal(400, "BadRequest", "the object provided is unrecognized")
    return found


def _options(query: dict[str, str]) -> Object:
    options: Object = {name: query[name] for name in ("propagationPolicy",) if name in query}
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    return options


def _fault(fault: Fault) -> Exception:
    if not fault.code:
        return ConnectionError("cut")
    return Refusal(fault.code, "InternalError", "a fault that a test ordered")


def _healthy(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _place(found: Object) -> str:
    return f"{found['metadata'].get('namespace', '')}/{found['metadata']['name']}"


__all__ = ["ApiServer", "Fault", "Rule", "disrupt", "not_found"]
