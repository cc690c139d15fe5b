"""What a Kubernetes API server does, as far as we rely on it, by the fake and, if there is one, by a real one.

``ELASTICDL_TEST_KUBECONFIG`` names a kubeconfig of an administrator of a real cluster; differences are defects of
the fake.
"""

from __future__ import annotations

import copy
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from elasticdl_agent.kubernetes.access import KubernetesAccess
from tests.fakes.kubernetes.cluster import FakeKubernetes

pytestmark = pytest.mark.contract

REAL = os.environ.get("ELASTICDL_TEST_KUBECONFIG", "")
WAIT_S = 60.0
MERGE, STRATEGIC, JSON, APPLY = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
)


class Server:
    """An API server, and a namespace of our own on it."""

    def __init__(self, kubeconfig: Path, forget: Callable[[], None] | None = None) -> None:
        self.forget = forget
        access = KubernetesAccess.of_kubeconfig(kubeconfig)
        token = access.token()
        self.http = httpx.Client(
            base_url=access.server,
            verify=access.tls or False,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=WAIT_S,
            trust_env=False,
        )
        self.namespace = f"conformance-{secrets.token_hex(4)}"
        self.ok("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        # Pods are refused until it is there; else a controller makes it in a moment.
        self.ask("POST", self.path("serviceaccounts"), {"metadata": {"name": "default"}})

    def path(self, kind: str, name: str = "") -> str:
        group = {"poddisruptionbudgets": "apis/policy/v1", "leases": "apis/coordination.k8s.io/v1"}.get(
            kind, "api/v1"
        )
        return f"/{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def ask(self, method: str, path: str, body: object = None, how: str = "application/json", **params: str):
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": how}
        return self.http.request(method, path, content=content, params=params, headers=headers)

    def ok(self, method: str, path: str, body: object = None, how: str = "application/json", **params: str) -> dict:
        response = self.ask(method, path, body, how, **params)
        assert response.status_code < 300, response.text
        return response.json()

    def make(self, kind: str, found: dict) -> dict:
        return self.ok("POST", self.path(kind), found)

    def refused(self, code: int, reason: str, method: str, path: str, body: object = None, *more: str, **params: str):
        response = self.ask(method, path, body, *more, **params)
        status = response.json()
        assert (response.status_code, status["kind"], status.get("reason", "")) == (code, "Status", reason), (
            response.text
        )
        return status["message"]

    def watch(self, kind: str, version: str, **params: str) -> Iterator[dict]:
        """Events of a watch of a few seconds."""
        asked = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "5", **params}
        with self.http.stream("GET", self.path(kind), params=asked) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                yield json.loads(line)


@pytest.fixture(scope="module", params=["fake", "real"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "real":
        if not REAL:
            pytest.skip("no real cluster: set ELASTICDL_TEST_KUBECONFIG to its kubeconfig")
        found = Server(Path(REAL))
        try:
            yield found
        finally:
            found.ask("DELETE", f"/api/v1/namespaces/{found.namespace}")
            found.http.close()
        return
    with FakeKubernetes() as cluster:
        found = Server(cluster.kubeconfig(), lambda: cluster.do(cluster.store.forget))
        yield found
        found.http.close()


def name() -> str:
    return f"x-{secrets.token_hex(5)}"


def config(data: dict | None = None, **metadata: object) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name(), **metadata},
        "data": data or {"a": "1"},
    }


def pod(*, spec: dict | None = None, container: dict | None = None, **metadata: object) -> dict:
    """A pod that no node takes."""
    one = {"name": "main", "image": "nowhere.invalid/none:1", **(container or {})}
    body = {"containers": [one], "nodeSelector": {"conformance": "none"}, **(spec or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(), **metadata}, "spec": body}


def wanting(requests: dict, limits: dict | None = None) -> dict:
    return pod(container={"resources": {"requests": requests, **({"limits": limits} if limits else {})}})


# -- creating ------------------------------------------------------------------------------------------------------

ACCEPTED: dict[str, tuple[str, Callable[[], dict]]] = {
    "a config map": ("configmaps", config),
    "labels and annotations": (
        "configmaps",
        lambda: config(labels={"a.b/c": "d"}, annotations={"x": "any text, at all"}),
    ),
    "a name made up": ("configmaps", lambda: {"metadata": {"generateName": "made-"}}),
    "an empty label": ("configmaps", lambda: config(labels={"a": ""})),
    "a name with dots": ("configmaps", lambda: config(name=f"a.b-{secrets.token_hex(4)}")),
    "a long name": ("configmaps", lambda: config(name="a" * 200 + secrets.token_hex(4))),
    "a secret": ("secrets", lambda: {"metadata": {"name": name()}, "data": {"k": "dg=="}}),
    "a secret in words": ("secrets", lambda: {"metadata": {"name": name()}, "stringData": {"k": "v"}}),
    "a service": ("services", lambda: {"metadata": {"name": name()}, "spec": {"ports": [{"port": 80}]}}),
    "a budget": ("poddisruptionbudgets", lambda: {"metadata": {"name": name()}, "spec": {"maxUnavailable": 1}}),
    "a lease": ("leases", lambda: {"metadata": {"name": name()}, "spec": {"holderIdentity": "me"}}),
    "a pod": ("pods", pod),
    "a pod with requests": ("pods", lambda: wanting({"cpu": "100m", "memory": "1Mi"})),
    "equal requests and limits": ("pods", lambda: wanting({"cpu": "1"}, {"cpu": "1000m"})),
    "a gated pod": ("pods", lambda: pod(spec={"schedulingGates": [{"name": "a.b/c"}]})),
    "a finalizer": ("configmaps", lambda: config(finalizers=["a.b/c"])),
    "an immutable config map": ("configmaps", lambda: {**config(), "immutable": True}),
    "a volume of a claim that is not there": (
        "pods",
        lambda: pod(
            spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]},
            container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        ),
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_create(server: Server, case: str) -> None:
    kind, make = ACCEPTED[case]
    given = make()
    made = server.make(kind, given)
    metadata = made["metadata"]
    assert metadata["namespace"] == server.namespace and metadata["uid"] and int(metadata["resourceVersion"]) > 0
    assert metadata["creationTimestamp"].endswith("Z") and metadata["managedFields"]
    assert metadata["name"].startswith(given["metadata"].get("name", given["metadata"].get("generateName")))
    assert server.ok("GET", server.path(kind, metadata["name"]))["metadata"]["uid"] == metadata["uid"]
    if metadata.get("finalizers"):
        server.ok("PATCH", server.path(kind, metadata["name"]), {"metadata": {"finalizers": None}}, MERGE)
    server.ok("DELETE", server.path(kind, metadata["name"]))


REFUSED: dict[str, tuple[str, Callable[[], dict], int, str]] = {
    "upper case": ("configmaps", lambda: config(name="A"), 422, "Invalid"),
    "underscore": ("configmaps", lambda: config(name="a_b"), 422, "Invalid"),
    "too long": ("configmaps", lambda: config(name="a" * 254), 422, "Invalid"),
    "a dash at the end": ("configmaps", lambda: config(name="a-"), 422, "Invalid"),
    "no name": ("configmaps", lambda: {"metadata": {}}, 422, "Invalid"),
    "a version of its own": ("configmaps", lambda: config(resourceVersion="1"), 500, ""),
    "another namespace": ("configmaps", lambda: config(namespace="default"), 400, "BadRequest"),
    "another kind": ("configmaps", lambda: {**config(), "kind": "Secret"}, 400, "BadRequest"),
    "a long label": ("configmaps", lambda: config(labels={"a": "b" * 64}), 422, "Invalid"),
    "a label with a space": ("configmaps", lambda: config(labels={"a": "b c"}), 422, "Invalid"),
    "an owner without a uid": (
        "configmaps",
        lambda: config(ownerReferences=[{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": ""}]),
        422,
        "Invalid",
    ),
    "a finalizer without a domain": ("configmaps", lambda: config(finalizers=["mine"]), 422, "Invalid"),
    "a service whose name begins with a dot": (
        "services",
        lambda: {"metadata": {"name": "a.b"}, "spec": {"ports": [{"port": 80}]}},
        422,
        "Invalid",
    ),
    "a long service": (
        "services",
        lambda: {"metadata": {"name": "a" * 64}, "spec": {"ports": [{"port": 80}]}},
        422,
        "Invalid",
    ),
    "no containers": ("pods", lambda: pod(spec={"containers": []}), 422, "Invalid"),
    "a container without a name": ("pods", lambda: pod(container={"name": ""}), 422, "Invalid"),
    "a container without an image": ("pods", lambda: pod(container={"image": ""}), 422, "Invalid"),
    "a policy that is none": ("pods", lambda: pod(spec={"restartPolicy": "Sometimes"}), 422, "Invalid"),
    "requests above limits": ("pods", lambda: wanting({"cpu": "2"}, {"cpu": "1"}), 422, "Invalid"),
    "no quantity": ("pods", lambda: wanting({"cpu": "much"}, {"cpu": "1"}), 400, "BadRequest"),
    "a gate on a node": (
        "pods",
        lambda: pod(spec={"schedulingGates": [{"name": "a.b/c"}], "nodeName": "n"}),
        422,
        "Invalid",
    ),
    "a mount without a volume": (
        "pods",
        lambda: pod(container={"volumeMounts": [{"name": "none", "mountPath": "/v"}]}),
        422,
        "Invalid",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_create_refused(server: Server, case: str) -> None:
    kind, make, code, reason = REFUSED[case]
    server.refused(code, reason, "POST", server.path(kind), make())


@pytest.mark.parametrize("kind", ["configmaps", "secrets", "pods", "poddisruptionbudgets", "leases"])
def test_nothing_is_there_before(server: Server, kind: str) -> None:
    for method in ("GET", "DELETE"):
        assert "not found" in server.refused(404, "NotFound", method, server.path(kind, "absent"))
    server.refused(404, "NotFound", "PATCH", server.path(kind, "absent"), {"metadata": {}}, MERGE)


@pytest.mark.parametrize("kind", ["configmaps", "pods"])
def test_a_name_is_taken_once(server: Server, kind: str) -> None:
    made = pod() if kind == "pods" else config()
    server.make(kind, made)
    assert "already exists" in server.refused(409, "AlreadyExists", "POST", server.path(kind), made)


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/apis/nothing/v1/x", "/api/v9/pods"])
def test_paths_that_are_none(server: Server, path: str) -> None:
    assert server.ask("GET", path).status_code == 404


def test_a_namespace_that_is_not_there(server: Server) -> None:
    server.refused(404, "NotFound", "POST", "/api/v1/namespaces/absent-ns/configmaps", config())


def test_a_dry_run_keeps_nothing(server: Server) -> None:
    made = config()
    server.ok("POST", server.path("configmaps"), made, dryRun="All")
    server.refused(404, "NotFound", "GET", server.path("configmaps", made["metadata"]["name"]))


def test_a_token_that_is_none(server: Server) -> None:
    response = server.http.get("/api/v1/nodes", headers={"Authorization": "Bearer nobody"})
    assert (response.status_code, response.json()["reason"]) == (401, "Unauthorized")


def test_a_new_pod_is_pending_with_defaults(server: Server) -> None:
    made = server.make("pods", pod())
    assert made["status"]["phase"] == "Pending"
    assert (made["spec"]["restartPolicy"], made["spec"]["terminationGracePeriodSeconds"]) == ("Always", 30)


def test_secrets_in_words_are_kept_as_data(server: Server) -> None:
    made = server.make("secrets", {"metadata": {"name": name()}, "stringData": {"k": "v"}})
    assert (made["data"], made["type"]) == ({"k": "dg=="}, "Opaque") and "stringData" not in made


# -- changing ------------------------------------------------------------------------------------------------------


def test_an_update_makes_a_new_version(server: Server) -> None:
    made = server.make("configmaps", config())
    changed = server.ok("PUT", server.path("configmaps", made["metadata"]["name"]), {**made, "data": {"a": "2"}})
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert (changed["data"], changed["metadata"]["uid"]) == ({"a": "2"}, made["metadata"]["uid"])


def test_an_update_that_changes_nothing_makes_none(server: Server) -> None:
    made = server.make("configmaps", config())
    again = server.ok("PUT", server.path("configmaps", made["metadata"]["name"]), made)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_an_update_of_an_old_version_is_refused(server: Server) -> None:
    made = server.make("configmaps", config())
    path = server.path("configmaps", made["metadata"]["name"])
    server.ok("PUT", path, {**made, "data": {"a": "2"}})
    message = server.refused(409, "Conflict", "PUT", path, {**made, "data": {"a": "3"}})
    assert "the object has been modified" in message


def test_an_update_without_a_version_is_taken(server: Server) -> None:
    made = server.make("configmaps", config())
    found = copy.deepcopy(made)
    del found["metadata"]["resourceVersion"]
    path = server.path("configmaps", made["metadata"]["name"])
    assert server.ok("PUT", path, {**found, "data": {"b": "2"}})["data"] == {"b": "2"}


def test_an_update_of_another_uid_is_refused(server: Server) -> None:
    made = server.make("configmaps", config())
    path = server.path("configmaps", made["metadata"]["name"])
    other = {**made, "metadata": {**made["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}}
    server.refused(409, "Conflict", "PUT", path, other)


def test_another_name_than_the_path_s_is_refused(server: Server) -> None:
    made = server.make("configmaps", config())
    server.refused(400, "BadRequest", "PUT", server.path("configmaps", made["metadata"]["name"]), config())


def test_immutable_data_stay(server: Server) -> None:
    made = server.make("configmaps", {**config(), "immutable": True})
    path = server.path("configmaps", made["metadata"]["name"])
    server.refused(422, "Invalid", "PATCH", path, {"data": {"a": "2"}}, MERGE)


PATCHES: dict[str, tuple[str, object, dict | None, int]] = {
    "merge adds": (MERGE, {"data": {"b": "2"}}, {"a": "1", "b": "2"}, 200),
    "merge removes": (MERGE, {"data": {"a": None}}, None, 200),
    "merge replaces": (MERGE, {"data": {"a": "3"}}, {"a": "3"}, 200),
    "strategic adds": (STRATEGIC, {"data": {"b": "2"}}, {"a": "1", "b": "2"}, 200),
    "json adds": (JSON, [{"op": "add", "path": "/data/b", "value": "2"}], {"a": "1", "b": "2"}, 200),
    "json replaces": (JSON, [{"op": "replace", "path": "/data/a", "value": "2"}], {"a": "2"}, 200),
    "json tests": (
        JSON,
        [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "add", "path": "/data/b", "value": "2"}],
        {"a": "1", "b": "2"},
        200,
    ),
    "json test fails": (JSON, [{"op": "test", "path": "/data/a", "value": "9"}], {"a": "1"}, 422),
    "json removes what is not there": (JSON, [{"op": "remove", "path": "/data/z"}], {"a": "1"}, 422),
    "unknown kind of patch": ("text/plain", {"data": {}}, {"a": "1"}, 415),
}


@pytest.mark.parametrize("case", PATCHES)
def test_patch(server: Server, case: str) -> None:
    how, patch, data, code = PATCHES[case]
    made = server.make("configmaps", config())
    path = server.path("configmaps", made["metadata"]["name"])
    response = server.ask("PATCH", path, patch, how)
    assert response.status_code == code, response.text
    assert (server.ok("GET", path).get("data") or None) == data


def test_a_patch_of_an_old_version_is_refused(server: Server) -> None:
    made = server.make("configmaps", config())
    path = server.path("configmaps", made["metadata"]["name"])
    server.ok("PATCH", path, {"data": {"a": "2"}}, MERGE)
    old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"a": "3"}}
    server.refused(409, "Conflict", "PATCH", path, old, MERGE)


FROZEN = {
    "its command": {"containers": [{"name": "main", "image": "a/b:1", "command": ["x"]}]},
    "its node's labels": {"nodeSelector": {"conformance": "other"}},
    "its restart policy": {"restartPolicy": "Never"},
    "a further gate": {"schedulingGates": [{"name": "a.b/c"}]},
}


@pytest.mark.parametrize("case", FROZEN)
def test_a_pod_s_specification_stays(server: Server, case: str) -> None:
    made = server.make("pods", pod())
    server.refused(
        422, "Invalid", "PATCH", server.path("pods", made["metadata"]["name"]), {"spec": FROZEN[case]}, MERGE
    )


def test_gates_are_taken_away(server: Server) -> None:
    made = server.make("pods", pod(spec={"schedulingGates": [{"name": "a.b/c"}]}))
    path = server.path("pods", made["metadata"]["name"])
    reasons = {one["type"]: one.get("reason") for one in made["status"].get("conditions", [])}
    assert reasons.get("PodScheduled", "SchedulingGated") == "SchedulingGated"
    assert not server.ok("PATCH", path, {"spec": {"schedulingGates": None}}, MERGE)["spec"].get("schedulingGates")


def test_the_status_is_written_apart(server: Server) -> None:
    made = server.make("pods", pod())
    path = server.path("pods", made["metadata"]["name"])
    told = {"status": {"conditions": [{"type": "a.b/c", "status": "True"}]}}
    unheard = server.ok("PATCH", path, told, MERGE)["status"].get("conditions", [])
    assert "a.b/c" not in [one["type"] for one in unheard]
    heard = server.ok("PATCH", f"{path}/status", told, STRATEGIC)["status"]["conditions"]
    assert "a.b/c" in [one["type"] for one in heard]


# -- server-side apply ---------------------------------------------------------------------------------------------


def apply(server: Server, found: dict, manager: str = "us", **params: str) -> dict:
    path = server.path("configmaps", found["metadata"]["name"])
    return server.ok("PATCH", path, found, APPLY, fieldManager=manager, **params)


def test_apply_makes_what_is_not_there(server: Server) -> None:
    made = apply(server, config())
    managers = [(one["manager"], one["operation"]) for one in made["metadata"]["managedFields"]]
    assert managers == [("us", "Apply")]


def test_apply_twice_changes_nothing(server: Server) -> None:
    found = config()
    first, second = apply(server, found), apply(server, found)
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


def test_apply_removes_what_is_no_longer_said(server: Server) -> None:
    found = config({"a": "1", "b": "2"})
    apply(server, found)
    assert apply(server, {**found, "data": {"a": "1"}})["data"] == {"a": "1"}


def test_apply_leaves_what_others_said(server: Server) -> None:
    found = config({"a": "1"})
    apply(server, found)
    apply(server, {**found, "data": {"b": "2"}}, "they")
    assert apply(server, {**found, "data": {"a": "3"}})["data"] == {"a": "3", "b": "2"}


def test_apply_does_not_take_from_others(server: Server) -> None:
    found = config({"a": "1"})
    apply(server, found)
    path = server.path("configmaps", found["metadata"]["name"])
    other = {**found, "data": {"a": "2"}}
    message = server.refused(409, "Conflict", "PATCH", path, other, APPLY, fieldManager="they")
    assert 'conflict with "us"' in message and ".data.a" in message


def test_apply_takes_by_force(server: Server) -> None:
    found = config({"a": "1"})
    apply(server, found)
    taken = apply(server, {**found, "data": {"a": "2"}}, "they", force="true")
    assert taken["data"] == {"a": "2"}
    assert apply(server, {**found, "data": {}}, "us")["data"] == {"a": "2"}, "it is no longer ours to remove"


def test_equal_values_are_shared(server: Server) -> None:
    found = config({"a": "1"})
    apply(server, found)
    apply(server, found, "they")
    assert apply(server, {**found, "data": {}})["data"] == {"a": "1"}, "they still say so"


def test_apply_says_who_it_is(server: Server) -> None:
    found = config()
    path = server.path("configmaps", found["metadata"]["name"])
    assert server.ask("PATCH", path, found, APPLY).status_code in (400, 422)


def test_apply_needs_a_kind(server: Server) -> None:
    found = {"metadata": {"name": name()}}
    path = server.path("configmaps", found["metadata"]["name"])
    assert server.ask("PATCH", path, found, APPLY, fieldManager="us").status_code == 400


def test_applied_labels_and_owners_are_merged(server: Server) -> None:
    owner = server.make("configmaps", config())["metadata"]
    found = config(labels={"a": "1"})
    apply(server, found)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["name"], "uid": owner["uid"]}
    second = {
        **found,
        "metadata": {"name": found["metadata"]["name"], "labels": {"b": "2"}, "ownerReferences": [reference]},
    }
    made = apply(server, second, "they")
    assert made["metadata"]["labels"] == {"a": "1", "b": "2"} and len(made["metadata"]["ownerReferences"]) == 1


# -- lists ---------------------------------------------------------------------------------------------------------

SELECTORS = {
    "set=a": [0, 1],
    "set==a": [0, 1],
    "set!=a": [2, 3],
    "set": [0, 1, 2],
    "!set": [3],
    "set in (a,b)": [0, 1, 2],
    "set notin (a)": [2, 3],
    "set=a,two=x": [0],
    "set=none": [],
}


@pytest.fixture(scope="module")
def listed(server: Server) -> tuple[str, list[str]]:
    """Four objects under a label of their own."""
    mark = secrets.token_hex(4)
    labels = [{"set": "a", "two": "x"}, {"set": "a"}, {"set": "b"}, {}]
    made = [server.make("configmaps", config(labels={"mark": mark, **one})) for one in labels]
    return mark, [one["metadata"]["name"] for one in made]


@pytest.mark.parametrize("selector", SELECTORS)
def test_label_selectors(server: Server, listed: tuple[str, list[str]], selector: str) -> None:
    mark, names = listed
    found = server.ok("GET", server.path("configmaps"), labelSelector=f"mark={mark},{selector}")
    assert {one["metadata"]["name"] for one in found["items"]} == {names[n] for n in SELECTORS[selector]}
    assert found["kind"] == "ConfigMapList" and int(found["metadata"]["resourceVersion"]) > 0


@pytest.mark.parametrize(
    ("kind", "selector", "count"),
    [
        ("configmaps", "metadata.name={}", 1),
        ("configmaps", "metadata.name=absent", 0),
        ("pods", "metadata.name={},status.phase=Pending", 1),
        ("pods", "metadata.name={},status.phase!=Pending", 0),
        ("pods", "metadata.name={},spec.nodeName=", 1),
        ("pods", "metadata.name={},spec.restartPolicy=Never", 0),
    ],
)
def test_field_selectors(server: Server, kind: str, selector: str, count: int) -> None:
    made = server.make(kind, pod() if kind == "pods" else config())
    found = server.ok("GET", server.path(kind), fieldSelector=selector.format(made["metadata"]["name"]))
    assert len(found["items"]) == count


@pytest.mark.parametrize(
    "params", [{"fieldSelector": "data.a=1"}, {"labelSelector": "a=b=c d"}, {"continue": "nonsense"}]
)
def test_lists_that_cannot_be_asked_for(server: Server, params: dict[str, str]) -> None:
    server.refused(400, "BadRequest", "GET", server.path("configmaps"), **params)


def test_pages(server: Server, listed: tuple[str, list[str]]) -> None:
    mark, names = listed
    asked = {"labelSelector": f"mark={mark}", "limit": "3"}
    first = server.ok("GET", server.path("configmaps"), **asked)
    assert len(first["items"]) == 3 and first["metadata"]["continue"]
    second = server.ok("GET", server.path("configmaps"), **asked, **{"continue": first["metadata"]["continue"]})
    assert len(second["items"]) == 1 and not second["metadata"].get("continue")
    assert {one["metadata"]["name"] for one in first["items"] + second["items"]} == set(names)
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_all_namespaces_are_listed(server: Server, listed: tuple[str, list[str]]) -> None:
    found = server.ok("GET", "/api/v1/configmaps", labelSelector=f"mark={listed[0]}")
    assert len(found["items"]) == 4


# -- watches -------------------------------------------------------------------------------------------------------


def version_of(server: Server) -> str:
    return server.ok("GET", server.path("configmaps"), limit="1")["metadata"]["resourceVersion"]


def test_a_watch_tells_what_happened_since_a_version(server: Server) -> None:
    mark, version = secrets.token_hex(4), version_of(server)
    made = server.make("configmaps", config(labels={"mark": mark}))
    path = server.path("configmaps", made["metadata"]["name"])
    server.ok("PATCH", path, {"data": {"a": "2"}}, MERGE)
    server.ok("DELETE", path)
    events = []
    for event in server.watch("configmaps", version, labelSelector=f"mark={mark}"):
        events.append(event)
        if event["type"] == "DELETED":
            break
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions)) and events[1]["object"]["data"] == {"a": "2"}


def test_a_watch_without_a_version_begins_with_what_is_there(server: Server, listed: tuple[str, list[str]]) -> None:
    seen = []
    for event in server.watch("configmaps", "", labelSelector=f"mark={listed[0]}"):
        seen.append((event["type"], event["object"]["metadata"]["name"]))
        if len(seen) == 4:
            break
    assert sorted(seen) == sorted(("ADDED", one) for one in listed[1])


def test_what_leaves_the_selection_is_told_as_deleted(server: Server) -> None:
    mark = secrets.token_hex(4)
    made = server.make("configmaps", config(labels={"mark": mark}))
    path, version = server.path("configmaps", made["metadata"]["name"]), made["metadata"]["resourceVersion"]
    server.ok("PATCH", path, {"metadata": {"labels": {"mark": "other"}}}, MERGE)
    event = next(server.watch("configmaps", version, labelSelector=f"mark={mark}"))
    assert (event["type"], event["object"]["metadata"]["name"]) == ("DELETED", made["metadata"]["name"])
    server.ok("PATCH", path, {"metadata": {"labels": {"mark": mark}}}, MERGE)
    events = [
        event["type"] for event in server.watch("configmaps", version, labelSelector="mark=other", timeoutSeconds="1")
    ]
    assert events == ["ADDED", "DELETED"]


def test_a_version_from_long_ago_is_gone(server: Server) -> None:
    """When a real server forgets is its own: the fake is told to."""
    if server.forget is None:
        pytest.skip("only the fake can be told to forget")
    version = version_of(server)
    server.make("configmaps", config())
    server.forget()
    event = next(server.watch("configmaps", version))
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_a_watch_ends_in_time(server: Server) -> None:
    assert list(server.watch("configmaps", version_of(server), labelSelector="mark=none", timeoutSeconds="1")) == []


# -- deleting ------------------------------------------------------------------------------------------------------


def gone(server: Server, kind: str, name: str, version: str) -> None:
    """Waits, by a watch, until an object is gone."""
    for event in server.watch(kind, version, fieldSelector=f"metadata.name={name}", timeoutSeconds=str(int(WAIT_S))):
        if event["type"] == "DELETED":
            return
    raise AssertionError(f"{kind} {name} is still there")


def test_a_pod_without_a_node_goes_at_once(server: Server) -> None:
    made = server.make("pods", pod())["metadata"]
    server.ok("DELETE", server.path("pods", made["name"]), {"gracePeriodSeconds": 30})
    server.refused(404, "NotFound", "GET", server.path("pods", made["name"]))


@pytest.mark.parametrize("kind", ["configmaps", "pods"])
def test_finalizers_keep_an_object(server: Server, kind: str) -> None:
    metadata = {"finalizers": ["a.b/c"]}
    made = server.make(kind, pod(**metadata) if kind == "pods" else config(**metadata))["metadata"]
    path = server.path(kind, made["name"])
    server.ok("DELETE", path)
    kept = server.ok("GET", path)["metadata"]
    assert kept["deletionTimestamp"] and kept["finalizers"] == ["a.b/c"]
    server.refused(422, "Invalid", "PATCH", path, {"metadata": {"finalizers": ["a.b/c", "d.e/f"]}}, MERGE)
    taken = pod(name=made["name"]) if kind == "pods" else config(name=made["name"])
    server.refused(409, "AlreadyExists", "POST", server.path(kind), taken)
    server.ok("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
    server.refused(404, "NotFound", "GET", path)


def test_a_deletion_of_another_object_of_that_name_is_refused(server: Server) -> None:
    made = server.make("configmaps", config())["metadata"]
    path = server.path("configmaps", made["name"])
    other = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    assert "the UID in the precondition" in server.refused(409, "Conflict", "DELETE", path, other)
    server.ok("DELETE", path, {"preconditions": {"uid": made["uid"]}})


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_what_an_object_owns(server: Server, policy: str) -> None:
    owner = server.make("configmaps", config())["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["name"], "uid": owner["uid"]}
    owned = server.make("configmaps", config(ownerReferences=[reference]))["metadata"]
    server.ok("DELETE", server.path("configmaps", owner["name"]), {"propagationPolicy": policy})
    gone(server, "configmaps", owner["name"], owner["resourceVersion"])
    if policy == "Orphan":
        assert not server.ok("GET", server.path("configmaps", owned["name"]))["metadata"].get("ownerReferences")
    else:
        gone(server, "configmaps", owned["name"], owned["resourceVersion"])


def test_what_has_another_owner_stays(server: Server) -> None:
    owners = [server.make("configmaps", config())["metadata"] for _ in range(2)]
    references = [{"apiVersion": "v1", "kind": "ConfigMap", "name": one["name"], "uid": one["uid"]} for one in owners]
    owned = server.make("configmaps", config(ownerReferences=references))["metadata"]
    for owner in owners:
        server.ok("GET", server.path("configmaps", owned["name"]))
        server.ok("DELETE", server.path("configmaps", owner["name"]))
    gone(server, "configmaps", owned["name"], owned["resourceVersion"])


def test_an_owner_that_never_was_takes_along(server: Server) -> None:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "00000000-0000-0000-0000-000000000001"}
    owned = server.make("configmaps", config(ownerReferences=[reference]))["metadata"]
    gone(server, "configmaps", owned["name"], owned["resourceVersion"])


def test_a_selection_is_deleted(server: Server) -> None:
    mark = secrets.token_hex(4)
    for _ in range(3):
        server.make("configmaps", config(labels={"mark": mark}))
    server.ok("DELETE", server.path("configmaps"), labelSelector=f"mark={mark}")
    assert server.ok("GET", server.path("configmaps"), labelSelector=f"mark={mark}")["items"] == []


# -- quota and logs ------------------------------------------------------------------------------------------------


def test_a_quota_of_pods(server: Server) -> None:
    used = len(server.ok("GET", server.path("pods"))["items"])
    quota = {"metadata": {"name": name()}, "spec": {"hard": {"pods": str(used + 1)}}}
    made = server.make("resourcequotas", quota)["metadata"]
    path = server.path("resourcequotas", made["name"])
    watch = server.watch("resourcequotas", made["resourceVersion"], timeoutSeconds=str(int(WAIT_S)))
    next(event for event in watch if "pods" in (event["object"].get("status", {}).get("used") or {}))
    try:
        server.make("pods", pod())
        message = server.refused(403, "Forbidden", "POST", server.path("pods"), pod())
        assert "exceeded quota" in message and "requested: pods=1" in message
    finally:
        server.ok("DELETE", path)


def test_the_log_of_a_pod_that_has_not_begun(server: Server) -> None:
    made = server.make("pods", pod())["metadata"]
    response = server.ask("GET", server.path("pods", made["name"]) + "/log")
    assert (response.status_code, response.content) == (204, b""), "it has no node"
    server.refused(404, "NotFound", "GET", server.path("pods", "absent") + "/log")


def test_an_eviction_deletes(server: Server) -> None:
    made = server.make("pods", pod())["metadata"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": made["name"]}}
    server.ok("POST", server.path("pods", made["name"]) + "/eviction", eviction)
    server.refused(404, "NotFound", "GET", server.path("pods", made["name"]))
