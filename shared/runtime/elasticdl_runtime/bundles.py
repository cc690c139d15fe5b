"""Bundles: model code as a zip file, addressed by the SHA-256 of its bytes.

Packing is deterministic: the same files give the same bytes, so that an unchanged zoo is uploaded once. Unpacking
trusts nothing: a bundle may come from anyone.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime import durable
from elasticdl_runtime.home import expand_home

MAX_ZIP_BYTES = 64 << 20
"""Most bytes of a bundle."""
MAX_UNPACKED_BYTES = 256 << 20
"""Most bytes of all its files."""
MAX_FILES = 10_000
"""Most members of it."""
MAX_FOLDERS = 2_000
"""Most folders that they lie in, or are."""
MAX_DEPTH = 20
"""Most folders above one file."""
MAX_FILE_BYTES = 16 << 20
"""Most bytes of one file when packing; larger ones are data, not code."""
IGNORE_FILE = ".elasticdlignore"
"""Patterns of files of a zoo that do not travel."""
ZOO_NAME = "model_zoo"
"""The directory of a bundle that does not say its zoo's name."""
_ZOO_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_IGNORED = frozenset({"__pycache__", "node_modules"})
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PIECE = 1 << 18
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\5\6"
_LARGE_SIGNATURE = b"PK\6\7"
_LARGE_BYTES = 20
_ENTRY = struct.Struct("<4s24x3H12x")
_ENTRY_SIGNATURE = b"PK\1\2"
_Member = tuple[zipfile.ZipInfo, tuple[str, ...]]


def digest_of(data: bytes) -> str:
    """The address of a bundle: ``sha256:`` and 64 hex digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest_hex(digest: str) -> str:
    """The hex digits of an address, which name the bundle's file.

    Raises:
        InvalidInputError: it is not an address of a bundle.
    """
    if not _DIGEST.fullmatch(digest):
        raise InvalidInputError(
            f"{digest[:80]!r} is not the digest of a bundle", fix="give sha256: and 64 lower-case hex digits"
        )
    return digest.removeprefix("sha256:")


def pack_bundle(directory: str | os.PathLike[str], *, data: Iterable[str] = ()) -> tuple[bytes, str]:
    """Packs a directory of model modules and small files.

    Hidden files, ``__pycache__`` and compiled modules are left out, and so are the data of a job that lie in the zoo,
    and what the zoo's ``.elasticdlignore`` names, by the rules of ``.gitignore``.

    Args:
        directory: the model zoo.
        data: data origins of the job: paths, directories or globs, several separated by commas; URLs are passed over.

    Returns:
        The bytes of the zip file, whose comment is the zoo's name, and their digest.

    Raises:
        InvalidInputError: it is no directory, holds no Python file, too much, or a link that leads elsewhere.
    """
    root = Path(directory)
    if not root.is_dir():
        raise InvalidInputError(f"there is no directory {root}", fix="give the directory of the model modules")
    buffer = io.BytesIO()
    total = count = modules = 0
    folders: set[tuple[str, ...]] = set()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        left_out = _below(root, data)
        for path in _files(root):
            if left_out is not None and left_out.match(path.absolute().as_posix()):
                continue
            name = path.relative_to(root).as_posix()
            _add_folders(folders, _parts_of_name(name))
            body = _read(path)
            total, count, modules = total + len(body), count + 1, modules + name.endswith(".py")
            if total > MAX_UNPACKED_BYTES or count > MAX_FILES:
                raise InvalidInputError(
                    f"{root} holds too much for a bundle (more than {MAX_UNPACKED_BYTES >> 20} MiB or {MAX_FILES} "
                    "files)",
                    fix="keep data out of the model zoo, or use --model_zoo with a shared path instead of a bundle",
                )
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, body)
        archive.comment = root.resolve().name.encode()
    if not modules:
        raise InvalidInputError(f"{root} holds no Python file", fix="give the directory of the model modules")
    content = buffer.getvalue()
    if len(content) > MAX_ZIP_BYTES:
        raise InvalidInputError(
            f"the bundle of {root} has {len(content) >> 20} MiB; at most {MAX_ZIP_BYTES >> 20} are taken",
            fix="keep data out of the model zoo",
        )
    return content, digest_of(content)


def unpack_bundle(zip_path: str | os.PathLike[str], target_dir: str | os.PathLike[str], *, suffix: str = "") -> Path:
    """Unpacks a bundle, wholly or not at all.

    Args:
        zip_path: the zip file.
        target_dir: the directory to make. If it is there and not empty, it was unpacked before and is left alone.
        suffix: only files whose names end like that; the others are not even inflated.

    Returns:
        The directory.

    Raises:
        InvalidInputError: the file is no zip, is damaged, too large when unpacked, or has too many members or
            folders, or a member that is a link, encrypted, or outside of the directory.
        OSError: it cannot be read, or the directory cannot be written.
    """
    target = Path(target_dir)
    if target.is_dir() and any(target.iterdir()):
        return target
    durable.make_folder(target.parent)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with _opened(zip_path) as (archive, members):
            _unpack(archive, members, scratch, suffix)
        scratch.chmod(0o755)
        try:
            durable.place(scratch, target)
        except OSError:
            if not (target.is_dir() and any(target.iterdir())):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def examine_bundle(zip_path: str | os.PathLike[str]) -> None:
    """Reads a bundle as ``unpack_bundle`` does, and writes nothing.

    Raises:
        InvalidInputError: it would not be unpacked.
        OSError: it cannot be read.
    """
    with _opened(zip_path) as (archive, members):
        left = MAX_UNPACKED_BYTES
        for member, _ in members:
            if not member.is_dir():
                left -= sum(len(piece) for piece in _inflate(archive, member, left))


def unpack_zoo(zip_path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Unpacks a bundle under the zoo's own name, so that its modules can import each other by that.

    Args:
        zip_path: the zip file.
        folder: where the zoo's directory is to be.

    Returns:
        The zoo's directory.

    Raises:
        InvalidInputError: see ``unpack_bundle``.
        OSError: see ``unpack_bundle``.
    """
    try:
        with zipfile.ZipFile(zip_path) as archive:
            name = archive.comment.decode()
    except (zipfile.BadZipFile, UnicodeDecodeError, ValueError):
        name = ""  # unpacking says what is wrong with it
    return unpack_bundle(zip_path, Path(folder) / (name if _ZOO_NAME.fullmatch(name) else ZOO_NAME))


def unpacked_zoo(folder: str | os.PathLike[str]) -> Path | None:
    """The zoo that was unpacked into a folder; None if there is none."""
    present = Path(folder)
    found = sorted(p for p in present.iterdir() if not p.name.startswith(".")) if present.is_dir() else []
    return found[0] if found else None


def _below(root: Path, data: Iterable[str]) -> re.Pattern[str] | None:
    """The path of data within a zoo; never the zoo itself, whose modules may be beside the records."""
    base = root.absolute()
    parts = [part.strip() for origin in data for part in origin.split(",") if part.strip() and "://" not in part]
    paths = [Path(os.path.normpath(expand_home(part).absolute())) for part in parts]
    # Without the end of text, \Z or \z: what lies below a directory belongs to it.
    shapes = [fnmatch.translate(path.as_posix())[:-2] for path in paths if base in path.parents]
    return re.compile("|".join(f"{shape}(/.*)?\\Z" for shape in shapes)) if shapes else None


def _files(root: Path) -> Iterator[Path]:
    """The files of a zoo, those behind links within it included: modules are imported through links, too."""
    ignored = _ignored_by(root)
    for folder, directories, names in os.walk(root, followlinks=True):
        here = Path(folder).relative_to(root)
        kept = (d for d in directories if not d.startswith(".") and d not in _IGNORED)
        directories[:] = sorted(d for d in kept if not ignored(f"{(here / d).as_posix()}/"))
        for name in directories:
            _check_link(root, Path(folder, name))
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") or name.endswith((".pyc", ".pyo")) or ignored((here / name).as_posix()):
                continue
            _check_link(root, path)
            if path.is_file():
                yield path


def _ignored_by(root: Path) -> Callable[[str], bool]:
    """Whether a zoo's ignore file leaves a path out; relative to the zoo, with a slash at the end of a folder."""
    path = root / IGNORE_FILE
    if not path.is_file():
        return lambda _: False
    from pathspec import GitIgnoreSpec

    try:
        spec = GitIgnoreSpec.from_lines(path.read_text(encoding="utf-8").splitlines())
    except ValueError as error:
        raise InvalidInputError(
            f"{path} cannot be read: {error}", fix="write one pattern a line, as in .gitignore, in UTF-8"
        ) from error
    return spec.match_file


def _check_link(root: Path, path: Path) -> None:
    """Refuses a link that leads to nothing, out of the zoo, or to a folder that holds it.

    Raises:
        InvalidInputError: it is such a link.
    """
    if not path.is_symlink():
        return
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        why, fix = "leads to nothing", "remove it, or put what it stands for into the model zoo"
    else:
        if not target.is_relative_to(root.resolve()):
            why, fix = f"leaves {root}", "put what it leads to into the model zoo"
        elif path.parent.resolve().is_relative_to(target):
            why, fix = "leads to a folder that holds it", "remove it"
        else:
            return
    raise InvalidInputError(f"{path} is a link that {why}", fix=fix)


def _read(path: Path) -> bytes:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidInputError(
            f"{path} has {path.stat().st_size >> 20} MiB; a bundle holds code and small files",
            fix="keep data out of the model zoo",
        )
    return path.read_bytes()


@contextlib.contextmanager
def _opened(zip_path: str | os.PathLike[str]) -> Iterator[tuple[zipfile.ZipFile, list[_Member]]]:
    """A zip and its members, once all that stands in its directory was checked.

    Raises:
        InvalidInputError: it is not sound, or is refused; while the block reads it, too.
    """
    try:
        with Path(zip_path).open("rb") as file:
            _count_entries(file)
            with zipfile.ZipFile(file) as archive:
                yield archive, _members(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, struct.error) as error:
        raise _refused(f"it is not a sound zip file ({error})") from None


def _count_entries(file: IO[bytes]) -> None:
    """Counts the members before ``zipfile`` makes an object of each; what the end says of their number is not read.

    Finds the directory exactly where ``zipfile`` does: the last record, or the last that looks like one.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - (1 << 16) - _END.size, 0))
    tail = file.read()
    place = len(tail) - _END.size
    if not (tail[max(place, 0) :].startswith(_END_SIGNATURE) and tail.endswith(b"\0\0")):
        place = tail.rfind(_END_SIGNATURE)
    if place < 0 or len(tail) - place < _END.size:
        raise _refused("it is not a sound zip file (it has no end)")
    if tail[max(place - _LARGE_BYTES, 0) : place].startswith(_LARGE_SIGNATURE):
        raise _refused("it is of the kind for more than 4 GiB")
    length = _END.unpack_from(tail, place)[5]
    begin = size - len(tail) + place - length
    if begin < 0:
        raise _refused("it is not a sound zip file (its directory lies before its beginning)")
    file.seek(begin)
    directory, position, count = file.read(length), 0, 0
    while position + _ENTRY.size <= len(directory):
        signature, *lengths = _ENTRY.unpack_from(directory, position)
        if signature != _ENTRY_SIGNATURE:
            break  # zipfile says what is wrong with it
        position, count = position + _ENTRY.size + sum(lengths), count + 1
        if count > MAX_FILES:
            raise _refused(f"it has more than {MAX_FILES} members")
    file.seek(0)


def _members(archive: zipfile.ZipFile) -> list[_Member]:
    """The members and where they belong, when all of them can be taken."""
    folders: set[tuple[str, ...]] = set()
    files: set[tuple[str, ...]] = set()
    members = []
    for member in archive.infolist():
        parts = _member_parts(member)
        _add_folders(folders, parts)
        members.append((member, parts))
        if member.is_dir():
            folders.add(parts)
        elif parts in files:
            raise _refused(f"{member.filename!r} occurs twice")
        else:
            files.add(parts)
    both = files & folders
    if both:
        raise _refused(f"{'/'.join(min(both))!r} occurs twice, as a file and as a folder")
    return members


def _add_folders(folders: set[tuple[str, ...]], parts: tuple[str, ...]) -> None:
    """Adds the folders above a file.

    Raises:
        InvalidInputError: they are too many, or too deep.
    """
    if len(parts) - 1 > MAX_DEPTH:
        raise _refused(f"{'/'.join(parts)[:100]!r} lies more than {MAX_DEPTH} folders deep")
    folders.update(parts[:depth] for depth in range(1, len(parts)))
    if len(folders) > MAX_FOLDERS:
        raise _refused(f"it has more than {MAX_FOLDERS} folders")


def _unpack(archive: zipfile.ZipFile, members: list[_Member], target: Path, suffix: str) -> None:
    left = MAX_UNPACKED_BYTES
    for member, parts in members:
        if not parts[-1].endswith(suffix):
            continue
        path = target.joinpath(*parts)
        try:
            if member.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as output:
                for piece in _inflate(archive, member, left):
                    left -= output.write(piece)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            # By other names on a file system that does not tell them apart.
            raise _refused(f"{member.filename!r} occurs twice") from None


def _inflate(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> Iterator[bytes]:
    """The content of a member, counted while it is inflated: what the header says is not believed."""
    with archive.open(member) as source:
        while piece := source.read(_PIECE):
            limit -= len(piece)
            if limit < 0:
                raise _refused(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB")
            yield piece


def _parts_of_name(name: str) -> tuple[str, ...]:
    """The folders and the name of a member.

    Raises:
        InvalidInputError: it leaves the directory, or is one that not every file system takes.
    """
    parts = tuple(name.removesuffix("/").split("/"))
    bad = any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 255 for part in parts)
    if bad or len(name) > 1024 or any(char in name for char in "\\:\0") or not name.isprintable():
        raise _refused(f"the member {name[:100]!r} has a name that is not taken")
    return parts


def _member_parts(member: zipfile.ZipInfo) -> tuple[str, ...]:
    name = member.filename
    parts = _parts_of_name(name)
    if member.header_offset < 0:
        raise _refused("it is not a sound zip file (an offset lies before its beginning)")
    if member.flag_bits & 0x1:
        raise _refused(f"{name!r} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _refused(f"{name!r} is compressed with a method other than deflate")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > member.is_dir():
        raise _refused(f"{name!r} is a link or a special file")
    return parts


def _refused(why: str) -> InvalidInputError:
    return InvalidInputError(
        f"the bundle is refused: {why}", fix="pack the directory anew: a plain zip of .py and small files"
    )
