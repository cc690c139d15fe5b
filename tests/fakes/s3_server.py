"""An S3 server (moto's, over HTTP) some of whose answers are refused, end early or are lost."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "reader",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",  # ours are what is tested
}


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


@contextlib.contextmanager
def serving_s3(bucket: str) -> Iterator[FaultyS3]:
    """A server with an empty bucket, which the environment names; needs the extra ``s3-dev``."""
    import s3fs
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    application = FaultyS3(DomainDispatcherApplication(create_backend_app))
    listening = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listening.server_port}")
            for name, value in ENVIRONMENT.items():
                patch.setenv(name, value)
            # Servers of a process share what they hold.
            reset = urllib.request.Request(f"http://127.0.0.1:{listening.server_port}/moto-api/reset", method="POST")
            urllib.request.urlopen(reset, timeout=60).close()
            s3fs.S3FileSystem.clear_instance_cache()
            s3fs.S3FileSystem().mkdir(bucket)
            yield application
            s3fs.S3FileSystem.clear_instance_cache()
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join(30)
