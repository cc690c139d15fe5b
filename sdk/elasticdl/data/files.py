"""Finds and opens data files: a local path, a directory, a glob, a comma-separated list or a URL.

Local files go straight to the operating system. Anything with a scheme (``s3://``, ``gs://``, ``hdfs://``,
``memory://`` ...) goes through fsspec, which is imported only then.
"""

from __future__ import annotations

import difflib
import errno
import glob
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast

from elasticdl.data import listing
from elasticdl.data.steady import SteadyFile, tried
from elasticdl_core.errors import DataError, ElasticDLError, PermissionDeniedError
from elasticdl_core.path_policy import PathPolicy, is_file_url, path_text, refusal, remedy
from elasticdl_runtime.path_checks import open_within, require_data, require_reach

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Identifies one state of a file.

    Attributes:
        size: bytes.
        version: modification time in nanoseconds, or the entity tag of a remote store.
    """

    size: int
    version: str

    def __str__(self) -> str:
        return f"{self.size} bytes, version {self.version or 'unknown'}"


_reach: PathPolicy | None = None


def confine(reach: PathPolicy | None) -> None:
    """Says what this process may read from now on: it works for one job, whose owner may not see all files.

    Args:
        reach: where data may lie; None for anywhere.
    """
    global _reach
    _reach = reach


def is_remote(path: str) -> bool:
    """Whether a path needs fsspec: it has a scheme other than ``file``."""
    return "://" in path and not is_file_url(path)


def local_path(path: str) -> Path:
    """The path of a local file, also of a ``file://`` URL as ``Path.as_uri`` writes it."""
    return Path(path_text(path))


def name_of(path: str) -> str:
    """The name of a file, without the archives and caches that it is reached through."""
    named = next((link for link in path.split("::") if "://" in link), path)
    return PurePosixPath(path_text(named)).name


def _listed(path: str | Path) -> str:
    """A local path as it is listed: as a URL, if it is not UTF-8 and could not be sent."""
    text = os.fspath(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return Path(text).as_uri()
    return text


def _filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the URL's path in it."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        scheme = url.split("://", 1)[0]
        raise DataError(
            f"{url}: cannot open a {scheme}:// URL: {error}",
            fix="install the fsspec package for that scheme where the command line and the workers run (s3fs: pip "
            "install 'elasticdl-train[s3]'; gcsfs, adlfs, ...), or give a local path",
        ) from error
    return fs, path


def store_of(path: str) -> tuple[Any, str]:
    """The fsspec file system of the URL of data, and the URL's path in it.

    Raises:
        DataError: there is no package for the scheme, or this process may not read it.
    """
    require_data(path, _reach)
    return _filesystem(path)


def unreadable(path: str, error: Exception, about: str = "") -> DataError:
    """An error of the operating system or of a remote store, as one of ours; about some records, if known."""
    if isinstance(error, PermissionDeniedError):
        return DataError(error.message, fix=error.fix)
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: no such file or directory", fix=_suggest(path))
    if isinstance(error, PermissionError):
        return DataError(
            f"{path}: permission denied",
            fix=f"make it readable for the user that runs the job (chmod a+r {path})",
        )
    if isinstance(error, IsADirectoryError):
        return DataError(f"{path}: is a directory, not a file", fix="give a file, or use the directory as the data")
    return DataError(
        f"{path}: {about}{' ' * bool(about)}cannot be read: {error}",
        fix="check the path, the network and the credentials",
    )


def _suggest(path: str) -> str:
    """A fix for a missing local path: names that are near in the nearest directory that exists."""
    if is_remote(path):
        return "check the URL; list its parent with the tool of that store"
    wanted = local_path(path).absolute()
    parent = wanted
    try:
        while not parent.is_dir() and parent != parent.parent:
            wanted, parent = parent, parent.parent
        require_reach(parent, _reach)
        names = sorted(entry.name for entry in parent.iterdir())
    except (OSError, PermissionDeniedError):
        return "check the path"
    near = difflib.get_close_matches(wanted.name, names, n=3, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(str(parent / name) for name in near) + "?"
    if names:
        return f"{parent} holds {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}; check the path"
    return f"{parent} is empty; check the path"


def open_for_reading(path: str, *, block_size: int | None = None) -> BinaryIO:
    """Opens a file for binary reading.

    Args:
        path: a local path or an fsspec URL.
        block_size: bytes that a remote file fetches ahead; 0 for none (for hopping from header to header).

    Raises:
        DataError: missing, unreadable, or a directory.
    """
    require_data(path, _reach)
    try:
        if not is_remote(path):
            if _reach is not None:
                return os.fdopen(open_within(local_path(path), _reach), "rb")
            return local_path(path).open("rb")
        fs, inner = _filesystem(path)
        if "::" in path:
            file = fs.open(inner, "rb")
            file.held_open = fs  # an archive is closed with its file system
            return cast(BinaryIO, file)
        kept: dict[str, Any] = {} if block_size is None else {"block_size": block_size}
        if block_size == 0:
            kept = {"cache_type": "none"}
        return cast(
            BinaryIO, SteadyFile(path, lambda: fs.open(inner, "rb", **kept), lambda file: stamp_of(file, path))
        )
    except DataError:
        raise
    except Exception as error:  # a remote store may raise anything
        raise unreadable(path, error) from error


class OpenFile:
    """A local file of which parts are read, by several threads at once; closed when nobody has it any more.

    Args:
        file: it, open; may be closed then.
        whole: read it into memory at once.

    Attributes:
        part: gives the bytes from a first one to one before the last.
    """

    def __init__(self, file: BinaryIO, *, whole: bool = False) -> None:
        self._descriptor = descriptor = os.dup(file.fileno())
        self.part: Callable[[int, int], bytes]
        if whole:
            data = file.read()
            self.part = lambda start, end: data[start:end]
        else:
            read = os.pread
            self.part = lambda start, end: read(descriptor, end - start, start)

    def stamp(self) -> FileStamp:
        """Its size and version now."""
        return _stamp_by(os.fstat(self._descriptor))

    def __del__(self) -> None:
        os.close(self._descriptor)


def stamp(path: str, *, listed: bool = False) -> FileStamp:
    """Size and version of a file.

    Args:
        path: the file.
        listed: what its store said when its folder was listed just now is new enough.

    Raises:
        DataError: missing, unreadable, or of unknown size.
    """
    require_data(path, _reach)
    try:
        if not is_remote(path):
            return _stamp_by(require_reach(local_path(path), _reach).stat())
        fs, inner = _filesystem(path)
        if not listed:
            fs.invalidate_cache(inner)  # what was listed earlier may have changed since
        info = tried(lambda: fs.info(inner))
    except DataError:
        raise
    except Exception as error:  # a remote store may raise anything
        raise unreadable(path, error) from error
    if info.get("size") is None:
        raise DataError(f"{path}: the store does not tell the file's size", fix="copy the file to a store that does")
    return _stamp_from(info)


def _stamp_from(info: Mapping[str, Any]) -> FileStamp:
    version = next((str(info[k]) for k in ("ETag", "etag", "mtime", "LastModified", "created") if info.get(k)), "")
    return FileStamp(int(info["size"]), version)


def stamp_of(file: BinaryIO, path: str) -> FileStamp | None:
    """Size and version of an open file; None where its store does not tell them."""
    if is_remote(path):
        info = getattr(file, "details", None)
        return _stamp_from(info) if isinstance(info, dict) and info.get("size") is not None else None
    return _stamp_by(os.fstat(file.fileno()))


def _stamp_by(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_size, str(status.st_mtime_ns))


def list_files(origin: str) -> Iterator[str]:
    """The data files that a data origin names, one by one, in a fixed order.

    Directories are walked in name order while the caller works on what came already. Links are followed; a file that
    is reached by several names comes once, by the first of them.

    Args:
        origin: a file, directory, glob or URL, or several of them separated by commas.

    Yields:
        Absolute local paths, or URLs with their scheme.

    Raises:
        DataError: a path does not exist, a glob matches nothing, a directory holds no data file, or a link leads to
            nothing or to a directory that holds it.
    """
    seen: set[object] = set()
    for part in split_origin(origin):
        require_data(part, _reach)
        for path, identity in _expand(part):
            if identity not in seen:
                seen.add(identity)
                yield path


def split_origin(origin: str) -> list[str]:
    """The parts of a comma-separated data origin; a local path with a comma in its name stays whole.

    Raises:
        DataError: the origin is empty.
    """
    if "," not in origin and origin.strip():
        return [origin.strip()]
    if not is_remote(origin) and _exists(local_path(origin)):
        return [origin]
    parts = [part.strip() for part in origin.split(",") if part.strip()]
    if not parts:
        raise DataError("the data path is empty", fix="name a file, a directory, a glob or a URL")
    return parts


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


_Found = tuple[str, object]
"""A file as it is listed, and what is the same for all names of it."""


def _expand(part: str) -> Iterator[_Found]:
    if is_remote(part):
        fs, inner = _filesystem(part)
        try:
            found = listing.files_of(fs, inner)
            what = "pattern matches no file" if listing.is_pattern(inner) else "directory holds no data files"
            for inner in _not_empty(found, f"{part}: the {what}"):
                url = _url_of(part, fs, inner)
                yield url, url
        except ElasticDLError:
            raise
        except Exception as error:  # a remote store may raise anything
            raise unreadable(part, error) from error
        return
    path = local_path(part)
    if not listing.is_pattern(part):
        _require_inside(path, part)
    try:
        path.stat()
    except OSError as error:
        if error.errno in (errno.EACCES, errno.ENAMETOOLONG):
            raise unreadable(part, error) from error
        # Missing, or a pattern: told apart below.
    if path.is_file():
        yield _found(path)
    elif path.is_dir():
        walked = _walk(path.absolute(), (_identity(path.stat()),))
        yield from _not_empty(walked, f"{part}: the directory holds no data files")
    elif listing.is_pattern(part):
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
        files = (_found(_require_inside(Path(match), part)) for match in matches if _is_file(Path(match)))
        yield from _not_empty(files, f"{part}: the pattern matches no file")
    elif path.exists():
        raise _no_file(part)
    else:
        raise unreadable(part, FileNotFoundError(part))


def _require_inside(path: Path, named: str) -> Path:
    """A path as it came, if it leads to where this process may read; else the refusal names what the user named."""
    try:
        require_reach(path, _reach)
    except PermissionDeniedError:
        assert _reach is not None
        raise DataError(refusal(named), fix=remedy((*_reach.read, *_reach.write))) from None
    return path


def _url_of(part: str, fs: Any, path: str) -> str:
    """The URL of a file of a file system; one that is reached through others keeps them."""
    if "::" not in part:
        return str(fs.unstrip_protocol(path))
    links = part.split("::")
    at = next(number for number, link in enumerate(links) if "://" in link)
    links[at] = f"{links[at].split('://', 1)[0]}://{path}"
    return "::".join(links)


def _not_empty(paths: Iterator[T], problem: str) -> Iterator[T]:
    first = next(paths, None)
    if first is None:
        raise DataError(problem, fix="check the path; hidden files and names that begin with _ are not data")
    yield first
    yield from paths


def _walk(directory: Path, above: tuple[tuple[int, int], ...]) -> Iterator[_Found]:
    """Data files below a directory, depth first in name order, listing lazily.

    Args:
        directory: the directory.
        above: what it is, and each directory that it was reached through.
    """
    try:
        with os.scandir(directory) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(str(directory), error) from error
    listing.refuse_lake(str(directory), (entry.name for entry in entries))
    for entry in entries:
        if not listing.is_data_name(entry.name):
            continue
        path = Path(entry.path)
        if entry.is_symlink():
            _require_inside(path, entry.path)
            _require_target(path)
        if entry.is_dir():
            inside = _identity(entry.stat())
            if inside in above:
                raise DataError(
                    f"{_listed(path)}: is a link to {path.resolve()}, which holds it",
                    fix="remove the link, or name the files and directories that are the data",
                )
            yield from _walk(path, (*above, inside))
        elif entry.is_file():
            # Not what the listing says: mounted buckets give all entries of a folder the same number there.
            yield _listed(path), _identity(entry.stat())
        else:
            raise _no_file(_listed(path))


def _found(path: Path) -> _Found:
    return _listed(path.absolute()), _identity(path.stat())


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_file(path: Path) -> bool:
    """Whether a match of a pattern is a file, and no directory."""
    if path.is_symlink():
        _require_target(path)
    if not path.is_file() and not path.is_dir():
        raise _no_file(_listed(path))
    return path.is_file()


def _no_file(path: str) -> DataError:
    """A named pipe, a socket or a device: it has no records that could be read again."""
    return DataError(
        f"{path}: is neither a file nor a directory (a named pipe, a socket or a device)",
        fix="write what comes out of it to a file and give that, or remove it from the data",
    )


def _require_target(path: Path) -> None:
    """Refuses a link that leads to nothing, as those of git-annex and DVC do before their data is there."""
    try:
        path.stat()
    except FileNotFoundError:
        raise DataError(
            f"{_listed(path)}: is a link to {os.readlink(path)}, which is not there",  # noqa: PTH115 - its text
            fix="fetch what it stands for (git annex get, dvc pull), or remove the link",
        ) from None
    except OSError as error:
        raise unreadable(_listed(path), error) from error
