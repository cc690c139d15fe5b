"""S3 servers (moto's and s3rver, over HTTP) some of whose answers are refused, end early or are lost."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import random
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "reader",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",  # ours are what is tested
}
S3RVER = "ELASTICDL_TEST_S3RVER"
"""The variable that names the program of s3rver, where it is not on PATH (``npm install s3rver``)."""
_S3RVER_KEY = "S3RVER"


class FaultyS3:
    """A server in front of which some answers are spoilt.

    Attributes:
        share: of the answers to the methods.
        methods: of requests whose answers may be spoilt.
        kinds: how: ``refused`` before anything is done, ``cut`` short, ``lost`` after it was done.
        faults: how many were spoilt.
        headers: method and headers of each request.
    """

    def __init__(self, application: Any) -> None:
        self._application, self._draw, self._lock = application, random.Random(1), threading.Lock()
        self.share, self.methods, self.kinds = 0.0, ("GET",), ("refused", "cut")
        self.faults = 0
        self.headers: list[tuple[str, dict[str, str]]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        with self._lock:
            headers = {name: value for name, value in environ.items() if name.startswith("HTTP_")}
            self.headers.append((method, headers))
            spoilt = method in self.methods and self._draw.random() < (
                self.share if self.faults else bool(self.share)
            )
            kind = self._draw.choice(self.kinds) if spoilt else ""
            self.faults += spoilt
        if kind == "refused":
            return _slow_down(start_response)
        if kind == "lost":
            b"".join(self._application(environ, lambda *_: None))
            return _slow_down(start_response)
        answer = b"".join(self._application(environ, start_response))
        return [answer[: len(answer) // 2]] if kind == "cut" else [answer]

    @contextlib.contextmanager
    def spoiling(
        self, share: float, *methods: str, kinds: tuple[str, ...] = ("refused", "cut")
    ) -> Iterator[FaultyS3]:
        """A context in which a share of the answers is spoilt, and the first one always."""
        self.share, self.methods, self.kinds, self.faults = share, methods or ("GET",), kinds, 0
        try:
            yield self
        finally:
            self.share = 0.0


def _slow_down(start_response: Any) -> list[bytes]:
    start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", "0")])
    return [b""]


class _Behind:
    """An application that another server answers for.

    Args:
        port: of the server, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        headers = {
            name.removeprefix("HTTP_").replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or (name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value)
        }
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request(environ["REQUEST_METHOD"], environ["RAW_URI"], body, headers)
            answer = connection.getresponse()
            content = answer.read()
        passed = [one for one in answer.getheaders() if one[0].lower() not in ("connection", "transfer-encoding")]
        start_response(f"{answer.status} {answer.reason}", passed)
        return [content]


def _s3rver() -> str:
    """The program; a test that needs it is skipped where it is not."""
    found = os.environ.get(S3RVER) or shutil.which("s3rver")
    if not found:
        pytest.skip(f"needs s3rver (npm install s3rver) on PATH, or its program in {S3RVER}")
    return found


@contextlib.contextmanager
def serving_s3rver(bucket: str, folder: Path) -> Iterator[FaultyS3]:
    """An independent server with an empty bucket, which the environment names; needs ``s3-dev`` and s3rver."""
    options = ["--directory", str(folder), "--address", "127.0.0.1", "--port", "0", "--configure-bucket", bucket]
    with subprocess.Popen([_s3rver(), *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(int(line.rpartition(":")[2]) for line in process.stdout if "listening on" in line)
            with _served(FaultyS3(_Behind(port))) as (application, _), pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_ACCESS_KEY_ID", _S3RVER_KEY)
                patch.setenv("AWS_SECRET_ACCESS_KEY", _S3RVER_KEY)
                yield application
        finally:
            process.kill()


@contextlib.contextmanager
def serving_s3(bucket: str) -> Iterator[FaultyS3]:
    """A server with an empty bucket, which the environment names; needs the extra ``s3-dev``."""
    import s3fs
    from moto.server import DomainDispatcherApplication, create_backend_app

    with _served(FaultyS3(DomainDispatcherApplication(create_backend_app))) as (application, url):
        # Servers of a process share what they hold.
        reset = urllib.request.Request(f"{url}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset, timeout=60).close()
        s3fs.S3FileSystem().mkdir(bucket)
        yield application


@contextlib.contextmanager
def _served(application: FaultyS3) -> Iterator[tuple[FaultyS3, str]]:
    """An application over HTTP, at an address that the environment names."""
    import s3fs
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    listening = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            url = f"http://127.0.0.1:{listening.server_port}"
            patch.setenv("AWS_ENDPOINT_URL", url)
            for name, value in ENVIRONMENT.items():
                patch.setenv(name, value)
            s3fs.S3FileSystem.clear_instance_cache()
            yield application, url
            s3fs.S3FileSystem.clear_instance_cache()
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join(30)
