"""The files of the page: read once, kept compressed, at addresses that change when any of them does.

All files lie below one folder that is named by a hash of all of them: a browser keeps them for good, and never has
files of two releases at once. Their references to each other are relative. Only the page itself is asked for anew.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import posixpath
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from urllib.parse import urlsplit

PAGE = "/"
FOLDER = "/dashboard"
INDEX = "index.html"
_BASE = b"/dashboard/base"
"""Stands in the page for the folder of its files."""
_TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; script-src 'self'; "
    "style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'"
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file.

    Attributes:
        name: relative to the folder of all.
        media_type: what it is.
        packed: its content, compressed.
    """

    name: str
    media_type: str
    packed: bytes

    @property
    def content(self) -> bytes:
        """Its content."""
        return gzip.decompress(self.packed)


def _walk(folder: Traversable, prefix: str = "") -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for item in sorted(folder.iterdir(), key=lambda one: one.name):
        if item.is_dir():
            found |= _walk(item, f"{prefix}{item.name}/")
        elif item.name.rpartition(".")[2] in _TYPES:
            found[prefix + item.name] = item
    return found


_HOME = resources.files("elasticdl_api") / "dashboard"
_FILES = _walk(_HOME / "static")
LICENCES = _HOME / "licences"
"""Of what comes with the page and is not ours."""


@cache
def release() -> str:
    """Names the files as they are: a hash of all of them."""
    digest = hashlib.sha256()
    for name, item in _FILES.items():
        content = item.read_bytes()
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


def base() -> str:
    """The folder of the files."""
    return f"{FOLDER}/{release()}"


def names() -> list[str]:
    """The names of all files."""
    return list(_FILES)


@cache
def open_paths() -> frozenset[str]:
    """The paths that need no token: the page with all its files, which say nothing of the cluster."""
    return frozenset({PAGE, *(f"{base()}/{name}" for name in _FILES if name != INDEX)})


_IMPORTED = re.compile(r"""^(?:import|export)\s[^;"']*?["'](\.{1,2}/[^"']+)["']""", re.MULTILINE)
_VIEW = re.compile(r"""name: "(\w+)",.*import\("\./([^"]+)"\)""")
_VIEWS = b'data-views="{}"'
_SESSION = b'data-session="none"'
"""Stands in the page for whether the request for it had a session: a script cannot see the cookie."""


def _needed(name: str, known: dict[str, None]) -> None:
    """Adds a module and all that it imports, in the order in which it is needed."""
    if name in known:
        return
    known[name] = None
    for address in _IMPORTED.findall(_FILES[name].read_text()):
        _needed(posixpath.normpath(posixpath.join(posixpath.dirname(name), address)), known)


def modules_of(name: str) -> list[str]:
    """A module and all that it imports, also through others."""
    known: dict[str, None] = {}
    _needed(name, known)
    return list(known)


def modules_of_views() -> dict[str, list[str]]:
    """By the names of views: the modules that each needs besides those of every view."""
    common = set(modules_of("app.js"))
    views = _VIEW.findall(_FILES["router.js"].read_text())
    return {view: [one for one in modules_of(name) if one not in common] for view, name in views}


def _with_modules(content: bytes) -> bytes:
    """The page with all modules named at its head: else a browser learns of each from the one before."""
    needed = {"": modules_of("app.js"), **modules_of_views()}
    views = html.escape(json.dumps(needed, separators=(",", ":")))
    return content.replace(_VIEWS, f'data-views="{views}"'.encode())


@cache
def page(*, session: bool) -> PageFile:
    """The page itself.

    Args:
        session: whether the request for it has one: then it asks at once for what it shows.
    """
    content = _with_modules(_FILES[INDEX].read_bytes()).replace(_BASE, base().encode())
    if session:
        content = content.replace(_SESSION, _SESSION.replace(b"none", b"sent"))
    return PageFile(INDEX, _TYPES["html"], gzip.compress(content, 9, mtime=0))


@cache
def read(name: str) -> PageFile | None:
    """A file, if there is one of that name."""
    item = _FILES.get(name)
    if item is None:
        return None
    if name == INDEX:
        return page(session=False)
    return PageFile(name, _TYPES[name.rpartition(".")[2]], gzip.compress(item.read_bytes(), 9, mtime=0))


def policy(*addresses: str) -> str:
    """The content security policy of the page: files of this origin, no inline script, no inline style.

    Args:
        addresses: other places that its scripts may ask: those of the identity provider.
    """
    parts = [urlsplit(address) for address in addresses]
    origins = sorted({f"{part.scheme}://{part.netloc}" for part in parts if part.scheme and part.netloc})
    return " ".join([_POLICY, *origins])
