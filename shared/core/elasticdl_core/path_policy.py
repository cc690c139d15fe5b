"""Paths and URLs that a job may read and write, decided on their text.

``PathPolicy`` is what one job may touch. What is said here of a path's text is said again of the file that it leads
to when it is opened (``elasticdl_runtime.path_checks``): a link can be made after the check.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from elasticdl_core.errors import InvalidInputError, Problem, SpecError
from elasticdl_core.job import JobSpec

DATA_FIELDS = ("training_data", "validation_data", "prediction_data")
READ_FIELDS = ("model_zoo", "checkpoint_dir_for_init")
WRITTEN_FIELDS = ("output", "checkpoint_dir")
STORED_FIELDS = (*WRITTEN_FIELDS, "checkpoint_dir_for_init")
"""What may lie in an object store."""
REMOTE_SCHEMES = frozenset(
    (
        *("abfs", "abfss", "adl", "az", "ftp", "gcs", "github", "gs", "hdfs", "hf", "http", "https", "oci", "oss"),
        *("s3", "s3a", "sftp", "webhdfs"),
    )
)
"""Schemes of data that stand for one store; those that wrap another URL or name a local file are not among them."""
STORE_SCHEMES = frozenset(("abfs", "abfss", "az", "gcs", "gs", "s3", "s3a"))
"""Schemes of stores into which jobs write: those that put an object only if there is none of its name."""
INDEX_FOLDER = "index_cache"
"""The reader parameter that names a folder to write into."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WILD = re.compile(r"[*?\[{]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_STORED = f"give an absolute path, or a URL such as s3://bucket/folder ({', '.join(sorted(STORE_SCHEMES))})"
_ABSOLUTE = "give an absolute path that every process of the job can reach"


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """The paths that a job may touch.

    Attributes:
        read: folders and URL prefixes that it may read.
        write: those that it may write, and read as well.
        closed: folders that a root above them does not open: the cluster's own.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    def allows(self, place: str, *, writing: bool = False) -> bool:
        """Whether a path or URL without wildcards lies below a root.

        Args:
            place: an absolute path without ``..``, or a URL.
            writing: whether it is to be written.
        """
        roots = self.write if writing else (*self.read, *self.write)
        shut = [folder for folder in self.closed if is_below(place, folder)]
        return any(is_below(place, root) and all(is_below(root, folder) for folder in shut) for root in roots)

    def to_mapping(self) -> dict[str, Any]:
        """As JSON data."""
        return {"read": list(self.read), "write": list(self.write), "closed": list(self.closed)}

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> PathPolicy:
        """Reads what ``to_mapping`` gave."""
        return cls(*(tuple(map(str, data.get(name) or ())) for name in ("read", "write", "closed")))


def is_below(place: str, root: str) -> bool:
    """Whether a path or URL is a root or lies below it, component by component."""
    inner, outer = _URL.fullmatch(place), _URL.fullmatch(root)
    if (inner is None) != (outer is None):
        return False
    if inner is not None and outer is not None:
        if inner[1].lower() != outer[1].lower():
            return False
        place, root = inner[2], outer[2]
    trimmed = root.rstrip("/")
    return place in (trimmed, root) or place.startswith(f"{trimmed}/")


def is_file_url(place: str) -> bool:
    """Whether a place is a ``file://`` URL, which names a local path."""
    return place[:7].lower() == "file://"


def is_url(place: str) -> bool:
    """Whether a place is a URL of anything but a local path."""
    return "://" in place and not is_file_url(place)


def join_place(place: str, *names: str) -> str:
    """A place within a folder, which is a path or a URL."""
    return "/".join((place.rstrip("/"), *names)) if is_url(place) else posixpath.join(place, *names)


def path_text(place: str) -> str:
    """The local path that a ``file://`` URL names, percent signs and all; another place as it is.

    Names that are not UTF-8 have lone surrogates in it, as ``os.fsdecode`` makes them.
    """
    return unquote(place[7:], errors="surrogateescape") if is_file_url(place) else place


def split_places(origin: str) -> list[str]:
    """The parts of a data origin: paths, globs and URLs, separated by commas."""
    return [part.strip() for part in origin.split(",") if part.strip()]


def without_wildcards(place: str) -> str:
    """The part of a glob that every match lies below; a place without wildcards as it is."""
    found = _WILD.search(place)
    return place if found is None else place[: place.rindex("/", 0, found.start()) + 1] or "/"


def check_root(root: str) -> None:
    """Refuses what cannot be a root: an absolute folder, or a prefix of URLs of a known store.

    Raises:
        InvalidInputError: says what is wrong with it.
    """
    url = _URL.fullmatch(root)
    if url is None or _CONTROL.search(root):
        wrong = malformed(root)
    elif url[1].lower() not in REMOTE_SCHEMES or not url[2].strip("/") or ".." in url[2].split("/"):
        wrong = "is no prefix of URLs of a store such as s3://bucket/folder"
    else:
        wrong = ""
    if not wrong and _WILD.search(root):
        wrong = "has a wildcard"
    if wrong:
        raise InvalidInputError(
            f"the data root {root[:200]!r} {wrong}",
            fix="give an absolute folder, or a URL such as s3://bucket/folder",
        )


def check_places(spec: JobSpec, reach: PathPolicy | None) -> None:
    """Refuses a specification whose places cannot work, or that the job may not touch.

    Args:
        spec: the job.
        reach: what it may touch; None for everything.

    Raises:
        SpecError: with every problem found.
    """
    problems = [*_folder_problems(spec, reach), *_data_problems(spec, reach), *_index_problems(spec, reach)]
    if problems:
        raise SpecError(problems)


def malformed(place: str) -> str:
    """The fault of an absolute path's text; empty if there is none."""
    if _CONTROL.search(place):
        return "holds a control character"
    if place.startswith("~"):
        return "begins with ~, which nobody expands here"
    if "\\" in place or place.startswith("//"):
        return "is no path of this system"
    if not place.startswith("/"):
        return "is not an absolute path"
    if ".." in place.split("/"):
        return "has a part '..'"
    return ""


def malformed_store(url: str) -> str:
    """The fault of the URL of a folder in a store that a job reads and writes; empty if there is none."""
    found = _URL.fullmatch(url)
    if found is None or "::" in url:
        return "chains file systems, which may lead anywhere"
    if found[1] not in STORE_SCHEMES:
        return "is of a scheme into which no job writes"
    bucket, _, folder = found[2].rstrip("/").partition("/")
    if not bucket or "@" in bucket:
        return "names no bucket" if not bucket else "has a user or a password in it"
    if any(ord(character) < 33 or ord(character) == 127 or character in "*?[]{}#%\\" for character in found[2]):
        return "has a wildcard, a space or another character that names no object"
    if folder and {"", ".", ".."} & set(folder.split("/")):
        return "has an empty part, '.' or '..'"
    return ""


def stores_written(spec: JobSpec) -> list[str]:
    """URLs of folders in stores that a job writes to."""
    return [place for name in WRITTEN_FIELDS if is_url(place := getattr(spec, name))]


def allows(place: str, reach: PathPolicy, *, writing: bool = False) -> bool:
    """Whether a job may touch a path or URL, by its text."""
    return reach.allows(place if is_url(place) else posixpath.normpath(place), writing=writing)


def refusal(place: str) -> str:
    """Says that a job may not touch a place: the same words whether it exists or not."""
    return f"{place[:200]!r} lies outside of what this namespace may use"


def remedy(roots: Sequence[str]) -> str:
    """The remedy for a refusal."""
    listed = ", ".join(roots)
    return f"use one of {listed}" if listed else "ask an administrator for a data root of your namespace"


def _folder_problems(spec: JobSpec, reach: PathPolicy | None) -> Iterator[Problem]:
    for name in (*READ_FIELDS, *WRITTEN_FIELDS):
        place = getattr(spec, name)
        writing = name in WRITTEN_FIELDS
        if not place:
            continue
        if wrong := malformed_store(place) if is_url(place) else malformed(place):
            yield Problem(name, f"{place[:200]!r} {wrong}", _STORED if "://" in place else _ABSOLUTE)
        elif is_url(place) and name not in STORED_FIELDS:
            yield Problem(name, f"{place[:200]!r} is a URL", f"{_ABSOLUTE}; code is sent as a bundle otherwise")
        elif reach is not None and not allows(place, reach, writing=writing):
            roots = reach.write if writing else (*reach.read, *reach.write)
            leave = ", or leave it out: the job has a folder of its own" if writing else ""
            yield Problem(name, refusal(place), remedy(roots) + leave)


def _data_problems(spec: JobSpec, reach: PathPolicy | None) -> Iterator[Problem]:
    for name in DATA_FIELDS:
        for place in split_places(getattr(spec, name)):
            wrong = _wrong_data(place, reach, words=bool(spec.custom_data_reader))
            if wrong:
                roots = (*reach.read, *reach.write) if reach is not None else ()
                yield Problem(name, wrong, remedy(roots) if reach is not None else _ABSOLUTE)


def _wrong_data(place: str, reach: PathPolicy | None, *, words: bool) -> str:
    if "\0" in place:
        return f"{place[:200]!r} holds a control character"
    if reach is None:
        return ""
    if words and "/" not in place and not place.startswith(("~", "\\")) and ":" not in place:
        return ""  # a name that the job's own reader understands: no process of ours opens it
    return outside(place, reach)


def outside(place: str, reach: PathPolicy) -> str:
    """Why a job may not read a path, glob or URL of data; empty if it may."""
    if "::" in place:
        return f"{place[:200]!r} chains file systems, which may lead anywhere"
    place = path_text(place)
    url = _URL.fullmatch(place)
    if url is None and ":" in place.split("/", 1)[0]:
        return f"{place[:200]!r} is no path and no URL of a known store"
    if url is not None:
        if url[1].lower() not in REMOTE_SCHEMES:
            return f"{place[:200]!r} is of a scheme that is not taken here"
        if {".", ".."} & set(unquote(url[2]).split("/")) or any(ord(c) < 33 for c in unquote(place)):
            return f"{place[:200]!r} has a part '..' or a control character"
    elif wrong := malformed(place):
        return f"{place[:200]!r} {wrong}"
    bare = without_wildcards(place)
    return "" if reach.allows(bare if url else posixpath.normpath(bare)) else refusal(place)


def _index_problems(spec: JobSpec, reach: PathPolicy | None) -> Iterator[Problem]:
    folder = spec.data_reader_params.get(INDEX_FOLDER)
    if reach is None or not isinstance(folder, str) or folder in ("off", ""):
        return
    if malformed(folder) or not reach.allows(posixpath.normpath(folder), writing=True):
        yield Problem("data_reader_params", refusal(folder), f"{INDEX_FOLDER}=off, or {remedy(reach.write)}")
