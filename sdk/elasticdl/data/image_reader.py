"""Reads images in files, of a folder for each class or of a list: a record has a file's bytes, path and label."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from elasticdl.data import files, fingerprints
from elasticdl.data.columns import ColumnSpec, type_words
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.files import FileStamp
from elasticdl.data.images import IMAGE_SUFFIXES, decode_image, is_image
from elasticdl.data.listing import is_pattern
from elasticdl.data.params import TRAINED_COLUMNS, refuse_unknown, take_names
from elasticdl.data.reader import DataReader, Metadata, Record, RecordSpec, Shard, ShardLike
from elasticdl.data.remote_ranges import FETCHED_BYTES, FetchedFile, RangeFetcher, is_fetched

IMAGE, LABEL, PATH = "image", "label", "path"
_PIECE_RECORDS = 64
_STAMPED = 1024
"""Files of a list whose states are asked for at once."""


@dataclass(frozen=True, slots=True)
class _Image:
    path: str
    shown: str
    """The path below the folder, or as the list has it."""
    label: str | None
    stamp: FileStamp


class ImageDataReader(DataReader):
    """Reads images.

    Args:
        data_origin: folders, globs or URLs, separated by commas, whose first folder below is the class
            (``photos/cat/1.jpg``), or a list: a file of lines ``path,label`` or ``path``.
        records_per_task: cut shards to at most this many images; by default all of a folder or list are one shard.
        reader_params: all optional.
            ``classes``: names of the classes in the order of their labels; by default all there are, in the order of
            the alphabet, or of their value if all are whole numbers;
            ``trained_columns``: the classes that the model was trained on; jobs say it by themselves.
        predicting: images need no class, and records have no label.

    Raises:
        ReaderParamsError: a parameter is unknown or has an impossible value.
        DataError: the data is missing or unreadable, a file is no image, or only some images have a class.
    """

    kind: ClassVar[str] = "images"
    params: ClassVar[tuple[str, ...]] = ("kind", "classes", TRAINED_COLUMNS)

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
        *,
        predicting: bool = False,
    ) -> None:
        params = dict(reader_params or {})
        refuse_unknown(params, self.params, reader=self.kind)
        self._given, self._trained = (take_names(params, name) for name in ("classes", TRAINED_COLUMNS))
        if self._given and self._trained and self._given != self._trained:
            raise ReaderParamsError(
                f"classes={self._given}, and the model was trained on {self._trained}", fix="leave classes out"
            )
        self._origin, self._records_per_task, self._predicting = data_origin, records_per_task, predicting
        self._lock = threading.Lock()
        self._fetcher = RangeFetcher()

    @functools.cached_property
    def _sources(self) -> dict[str, list[_Image]]:
        """The images of each part of the data origin, in the order of their names or of the list."""
        found = {}
        for part in files.split_origin(self._origin):
            name = part if files.is_remote(part) else str(files.local_path(part).absolute())
            found[name] = list(_listed(part) if _is_list(part) else _below(part))
        return found

    def _images(self, name: str) -> list[_Image]:
        with self._lock:  # listing is dear, and threads may ask at once
            sources = self._sources
        if name not in sources:
            raise DataError(f"{name}: is none of {', '.join(sources)}", fix="submit the job again")
        return sources[name]

    @functools.cached_property
    def classes(self) -> list[str]:
        """The names of the classes in the order of their labels; empty where images have no class.

        Raises:
            DataError: some images have no class, or one that is not known.
        """
        known = self._trained or self._given
        if self._predicting:
            return known or []
        seen: dict[str | None, _Image] = {}
        for image in itertools.chain.from_iterable(map(self._images, self._sources)):
            seen.setdefault(image.label, image)
        without = seen.pop(None, None)
        if without is not None and (seen or known):
            raise DataError(
                f"{without.path}: has no class, as others have",
                fix="put each image into the folder of its class, or give each line of the list a label",
            )
        for label, image in sorted(seen.items(), key=str):
            if known and label not in known:
                raise DataError(
                    f"{image.path}: is of the class {label!r}, which is none of {', '.join(known)}",
                    fix="leave those images out, or train a model anew with all classes",
                )
        return known or _in_order([label for label in seen if label is not None])

    @property
    def column_specs(self) -> Mapping[str, ColumnSpec]:
        """The columns of a record: there is a label where images have a class, unless it is to be predicted."""
        labelled = {LABEL: ColumnSpec("int64")} if self.classes and not self._predicting else {}
        return {IMAGE: ColumnSpec("bytes"), PATH: ColumnSpec("str"), **labelled}

    @functools.cached_property
    def metadata(self) -> Metadata:
        """The columns, their types, and the classes."""
        return Metadata(list(self.column_specs), type_words(self.column_specs), self.kind, self.classes)

    @functools.cached_property
    def records_kind(self) -> RecordSpec:
        """Dictionaries of the columns."""
        return RecordSpec("table", columns=self.column_specs)

    def create_shards(self) -> Iterator[Shard]:
        """One shard a folder or list, or several of ``records_per_task`` images."""
        _ = self.classes  # refuses images without a class before the first task
        for name in self._sources:
            total = len(self._images(name))
            step = self._records_per_task or total
            yield from (Shard(name, start, min(start + step, total)) for start in range(0, total, step))

    @functools.cached_property
    def _fingerprints(self) -> dict[str, str]:
        return {name: _fingerprint(self._images(name)) for name in self._sources}

    def fingerprint(self, name: str) -> str:
        """The number of images, their bytes, and a digest of their paths, states and labels."""
        self._images(name)
        return self._fingerprints[name]

    @property
    def reads_by_index(self) -> bool:
        """Each image is a file of its own."""
        return True

    @property
    def gathers(self) -> bool:
        """There is nothing to gather."""
        return True

    def read_records(self, shard: ShardLike) -> Iterator[Record]:
        """The images of a shard, one by one."""
        for start in range(shard.start, shard.end, _PIECE_RECORDS):
            yield from self.read_numbers(shard.name, range(start, min(start + _PIECE_RECORDS, shard.end)))

    def read_ranges(self, ranges: Sequence[ShardLike]) -> list[Record]:
        """The images of several ranges; those of stores are fetched many at once."""
        return self.read_places([(one.name, range(one.start, one.end)) for one in ranges])

    def read_numbers(self, name: str, numbers: Sequence[int]) -> list[Record]:
        """Single images of a folder or list."""
        return self.read_places([(name, numbers)])

    def read_places(self, places: Sequence[tuple[str, Sequence[int]]]) -> list[Record]:
        """Single images of several folders or lists; those of stores are fetched many at once."""
        wanted: list[_Image] = []
        for name, numbers in places:
            images, planned = self._images(name), self.fingerprint(name)
            fingerprints.require(name, planned)
            if len(numbers) and not 0 <= numbers[0] <= numbers[-1] < len(images):
                raise DataError(
                    f"{name}: has {len(images)} images, the images {numbers[0]} to {numbers[-1] + 1} are asked for",
                    fix="the data changed after its tasks were planned: submit the job again",
                )
            wanted += [images[number] for number in numbers]
        labels = {name: number for number, name in enumerate(self.classes)} if LABEL in self.column_specs else {}
        contents = itertools.chain.from_iterable(map(self._contents, _bundles(wanted)))
        return [
            {IMAGE: data, PATH: one.shown, **({LABEL: labels[one.label]} if one.label in labels else {})}
            for one, data in zip(wanted, contents, strict=True)
        ]

    def _contents(self, images: Sequence[_Image]) -> Iterator[bytes]:
        """The bytes of some images, which are as they were listed."""
        stored = [one for one in images if is_fetched(one.path)]
        fetched = self._fetcher.fetch([(one.path, 0, one.stamp.size) for one in stored]) if stored else {}
        now = dict(zip(fetched, self._fetcher.stamps(list(fetched)), strict=True)) if fetched else {}
        for one in images:
            if one.path in fetched:
                self._require_unchanged(one, now[one.path])
                with FetchedFile(one.path, fetched[one.path], functools.partial(self._open, one)) as parts:
                    yield parts.read(one.stamp.size)
                continue
            with self._open(one) as file:
                try:
                    yield file.read()
                except OSError as error:
                    raise files.unreadable(one.path, error) from error

    def _open(self, image: _Image) -> Any:
        file = files.open_for_reading(image.path)
        stamp = files.stamp_of(file, image.path)
        if stamp is not None:
            try:
                self._require_unchanged(image, stamp)
            except DataError:
                file.close()
                raise
        return file

    def _require_unchanged(self, image: _Image, stamp: FileStamp) -> None:
        if stamp == image.stamp or (stamp.size == image.stamp.size and not stamp.version):
            return
        name = next(name for name, images in self._sources.items() if image in images)
        raise DataError(
            f"{image.path}: was changed after its tasks were planned: it was {image.stamp}, it is {stamp} "
            f"(one of {self._fingerprints[name]})",
            fix="submit the job again, and give files that are written later names of their own",
        )

    def bytes_of(self, name: str) -> int:
        """The size of all images of a folder or list."""
        return sum(one.stamp.size for one in self._images(name))

    def counts(self) -> dict[str, int]:
        """The number of images of each class, by the order of their labels."""
        found = dict.fromkeys(self.classes, 0)
        for image in itertools.chain.from_iterable(self._sources.values()):
            if image.label in found:
                found[image.label] += 1
        return found


def require_sound(records: Sequence[Record]) -> None:
    """Refuses images that cannot be decoded, by their path.

    Raises:
        DataError: one cannot be.
    """
    for record in records:
        try:
            decode_image(record[IMAGE])
        except DataError as error:
            raise DataError(f"{record[PATH]}: {error.message}", fix="restore the file from its source") from error


def _fingerprint(images: Sequence[_Image]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for image in images:
        digest.update(f"{image.path}\0{image.stamp}\0{image.label or ''}\0".encode(errors="surrogateescape"))
    return f"{len(images)} images of {sum(one.stamp.size for one in images)} bytes, digest {digest.hexdigest()}"


def _bundles(images: Sequence[_Image]) -> Iterator[Sequence[_Image]]:
    """Cuts images into runs of which the bytes may be held at once."""
    start = size = 0
    for at, image in enumerate(images):
        if at > start and size + image.stamp.size > FETCHED_BYTES:
            yield images[start:at]
            start, size = at, 0
        size += image.stamp.size
    if start < len(images):
        yield images[start:]


def _in_order(labels: Iterable[str]) -> list[str]:
    """Names of classes as they are numbered: in the order of the alphabet, whole numbers by their value."""
    names = sorted(labels)
    return sorted(names, key=int) if all(name.isascii() and name.isdigit() for name in names) else names


def _is_list(part: str) -> bool:
    """Whether a part of a data origin is one file that is no image."""
    if is_pattern(part) or is_image(files.name_of(part)):
        return False
    if files.is_remote(part):
        store, inner = files.store_of(part)
        return not store.isdir(inner)
    return files.local_path(part).is_file()


def _below(part: str) -> Iterator[_Image]:
    """The images of a folder or pattern; the class is the first folder below the one that is named."""
    steps = list(itertools.takewhile(lambda step: not is_pattern(step), part.split("/")))
    root = part if len(steps) == part.count("/") + 1 else "/".join(steps)
    depth = len(PurePosixPath(root if files.is_remote(root) else files.local_path(root).absolute()).parts)
    for path in files.list_files(part):
        if not is_image(path):
            raise DataError(
                f"{path}: is no image: its name ends in none of {', '.join(IMAGE_SUFFIXES)}",
                fix="take it out of the folder, or name the images with a glob such as 'photos/*/*.jpg'",
            )
        steps = [*PurePosixPath(path).parts[depth:]] or [files.name_of(path)]
        stamp = files.stamp(path, listed=True)
        if not stamp.size:
            raise DataError(f"{path}: is empty", fix="remove it, or restore it from its source")
        yield _Image(path, "/".join(steps), steps[0] if len(steps) > 1 else None, stamp)


def _listed(part: str) -> Iterator[_Image]:
    """The images of a list: lines ``path,label`` or ``path``, also divided by a tab; a header is passed over."""
    with files.open_for_reading(part) as file:
        try:
            text = file.read().decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{part}: is no list of images: {error}", fix="write it as UTF-8") from None
    separator = "\t" if "\t" in text.partition("\n")[0] else ","
    folder = part.rpartition("/")[0] if "/" in part else "."
    rows: list[tuple[int, str, str | None]] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    for row in reader:
        if row and not (reader.line_num == 1 and [cell.strip().lower() for cell in row] in ([PATH], [PATH, LABEL])):
            if len(row) > 2 or not row[0].strip() or not is_image(row[0].strip()):
                raise DataError(
                    f"{part}: line {reader.line_num}: {separator.join(row)!r} is not path{separator}label, or its "
                    f"path ends in none of {', '.join(IMAGE_SUFFIXES)}",
                    fix="write a line for each image: its path, from the list's folder on, and its label",
                )
            rows.append((reader.line_num, row[0].strip(), row[1].strip() if len(row) > 1 else None))
    if not rows:
        raise DataError(f"{part}: names no image", fix="write a line for each image: path,label")
    whole = [shown if shown.startswith("/") or "://" in shown else f"{folder}/{shown}" for _, shown, _ in rows]
    paths = [path if files.is_remote(path) else str(files.local_path(path).absolute()) for path in whole]
    fetcher = RangeFetcher()
    for start in range(0, len(rows), _STAMPED):
        some = slice(start, start + _STAMPED)
        for (line, shown, label), path, stamp in zip(
            rows[some], paths[some], _stamps(part, fetcher, rows[some], paths[some]), strict=True
        ):
            if label == "" or not stamp.size:
                what = "the label is empty" if label == "" else f"{path} is empty"
                raise DataError(f"{part}: line {line}: {what}", fix="mend the line, or leave it out")
            yield _Image(path, shown, label, stamp)


def _stamps(
    part: str, fetcher: RangeFetcher, rows: Sequence[tuple[int, str, str | None]], paths: Sequence[str]
) -> list[FileStamp]:
    """The states of files of a list; one that is not there is told with its line."""
    if all(map(is_fetched, paths)):
        return fetcher.stamps(paths)
    found = []
    for (line, _, _), path in zip(rows, paths, strict=True):
        try:
            found.append(files.stamp(path))
        except DataError as error:
            raise DataError(f"{part}: line {line}: {error.message}", fix=error.fix) from error
    return found
