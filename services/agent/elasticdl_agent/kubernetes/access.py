"""The address of a Kubernetes API server, and its credentials: a pod's service account, or a kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from elasticdl_core.errors import InvalidInputError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FIX = "set KUBECONFIG to a kubeconfig with a server, and a token or a client certificate"


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """A door to an API server.

    Attributes:
        server: its base URL.
        namespace: the one that the pod or the context is in.
        token: gives the present bearer token; empty where a client certificate says who we are.
        tls: verifies the server; None for plain HTTP.
    """

    server: str
    namespace: str
    token: Callable[[], str]
    tls: ssl.SSLContext | None

    @classmethod
    def find(cls, kubeconfig: str, context: str = "") -> KubernetesAccess:
        """Finds the access of a kubeconfig if one is named, else that of the pod that this process runs in.

        Raises:
            InvalidInputError: there is neither, or it cannot be used.
        """
        if kubeconfig:
            return cls.of_kubeconfig(Path(kubeconfig), context)
        return cls.in_cluster(os.environ)

    @classmethod
    def in_cluster(cls, variables: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> KubernetesAccess:
        """The access of a pod; its token is read anew for each request, since the kubelet replaces it.

        Raises:
            InvalidInputError: this is no pod, or it has no service account's token.
        """
        host, port = variables.get("KUBERNETES_SERVICE_HOST", ""), variables.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (folder / "token").is_file():
            raise InvalidInputError("this process runs in no pod with a service account", fix=_FIX)
        shown = f"[{host}]" if ":" in host else host
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        namespace = (folder / "namespace").read_text().strip()
        return cls(f"https://{shown}:{port}", namespace, lambda: (folder / "token").read_text().strip(), tls)

    @classmethod
    def of_kubeconfig(cls, file: Path, context: str = "") -> KubernetesAccess:
        """The access of a context of a kubeconfig, by default of the current one.

        Raises:
            InvalidInputError: something is missing, or its user is found by a plugin.
        """
        try:
            config = yaml.safe_load(file.read_text())
            name = context or config["current-context"]
            chosen = _named(config["contexts"], name, "context")
            cluster = _named(config["clusters"], chosen["cluster"], "cluster")
            user = _named(config.get("users") or [], chosen["user"], "user") if chosen.get("user") else {}
            server = str(cluster["server"]).rstrip("/")
        except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError(f"the kubeconfig {file} cannot be used: {error}", fix=_FIX) from None
        for plugin in ("exec", "auth-provider", "username"):
            if user.get(plugin):
                raise InvalidInputError(
                    f"the user of {file} is found by {plugin!r}, which is not carried out here",
                    fix="make a service account and a token for it: kubectl create token NAME --duration 24h",
                )
        return cls(
            server,
            str(chosen.get("namespace") or "default"),
            _token_of(user, file),
            _tls_of(server, cluster, user, file),
        )


def _named(items: list[dict[str, Any]], name: str, kind: str) -> dict[str, Any]:
    for item in items:
        if item["name"] == name:
            return dict(item[kind])
    raise KeyError(f"there is no {kind} {name!r}")


def _token_of(user: Mapping[str, Any], file: Path) -> Callable[[], str]:
    if given := user.get("tokenFile"):
        path = file.parent / str(given)
        return lambda: path.read_text().strip()
    token = str(user.get("token") or "")
    return lambda: token


def _tls_of(server: str, cluster: Mapping[str, Any], user: Mapping[str, Any], file: Path) -> ssl.SSLContext | None:
    if server.startswith("http://"):
        return None
    authority = _data(cluster, "certificate-authority", file)
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        raise InvalidInputError(
            f"the kubeconfig {file} says not to verify the server", fix="give certificate-authority-data instead"
        )
    certificate, key = _data(user, "client-certificate", file), _data(user, "client-key", file)
    if certificate and key:
        # The ssl module takes files alone; this one is gone when it has been read.
        with tempfile.NamedTemporaryFile(prefix="edl-") as both:
            both.write(certificate + b"\n" + key)
            both.flush()
            tls.load_cert_chain(both.name)
    return tls


def _data(holder: Mapping[str, Any], name: str, file: Path) -> bytes:
    if holder.get(f"{name}-data"):
        return base64.b64decode(holder[f"{name}-data"])
    return (file.parent / str(holder[name])).read_bytes() if holder.get(name) else b""
