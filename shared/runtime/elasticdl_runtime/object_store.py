"""Folders in object stores (S3, GCS, Azure), named by URL: objects that are there whole or not at all.

fsspec speaks with the stores. What it asks has a deadline and is tried again where another try may help; an answer
that is shorter than it should be is a failure. Credentials are the environment's: none is in a URL.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import ConflictError, DataError, InvalidInputError, PermissionDeniedError, UnavailableError
from elasticdl_core.installation import install_command

TRIES = 5
_PAUSES = Backoff(first_s=0.2, longest_s=5.0)
_DEADLINE_S = 60.0
_SLOWEST_BYTES_S = 2e6
_TRIES_AT_THE_DOOR, _DEADLINE_AT_THE_DOOR_S = 3, 10.0
"""Somebody waits there for the answer."""
_FETCHED_BYTES = 8 << 20
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, NotImplementedError, ImportError)
"""What another try does not change."""
Result = TypeVar("Result")


class ObjectStore:
    """A folder of an object store. Nothing is renamed there: an object is put whole, under its name.

    Args:
        url: of the folder.
        tries: how often something is asked.
        deadline_s: of a request, in seconds, beside the time that its bytes take.

    Raises:
        InvalidInputError: there is no package for its scheme.
    """

    def __init__(self, url: str, *, tries: int = TRIES, deadline_s: float = _DEADLINE_S) -> None:
        import fsspec

        self.url = url.rstrip("/")
        try:
            # A listing that was kept would not have what others put meanwhile.
            self._fs, path = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise InvalidInputError(
                f"{url} cannot be opened: {error}",
                fix="install the fsspec package of that scheme where the command line, the api and jobs run "
                f"(s3://: {install_command('s3')}; gs://: gcsfs; az://: adlfs)",
            ) from None
        self._tries = tries
        self._deadline_s = deadline_s
        self._root = str(path).rstrip("/")

    def put(self, name: str, content: bytes | Path) -> None:
        """Puts an object, in the place of one of that name.

        Args:
            name: relative to the folder.
            content: it, or a file that has it.

        Raises:
            UnavailableError: the store does not take it.
            PermissionDeniedError: nor does it allow it.
            DataError: there is no such bucket.
        """
        path = self._path(name)
        if isinstance(content, Path):
            file, size = str(content), content.stat().st_size

            def send() -> None:
                self._fs.put_file(file, path)
        else:
            data, size = content, len(content)

            def send() -> None:
                self._fs.pipe_file(path, data)

        def put() -> None:
            send()
            if (there := int(self._fs.info(path)["size"])) != size:
                raise OSError(f"the store has {there} of {size} bytes")

        self._ask("written", name, put, size)

    def put_new(self, name: str, content: bytes) -> None:
        """Puts a small object only if there is none of that name (``If-None-Match: *``).

        Raises:
            ConflictError: there is another one.
            UnavailableError, PermissionDeniedError, DataError: as ``put`` does.
        """
        path = self._path(name)

        def put() -> None:
            try:
                self._fs.pipe_file(path, content, mode="create")
            except Exception as error:
                # Stores differ in how they refuse it; and the answer to an earlier try, which was taken, may be lost.
                with contextlib.suppress(FileNotFoundError):
                    if bytes(self._fs.cat_file(path)) == content:
                        return
                    raise FileExistsError(path) from error
                raise

        self._ask("written", name, put, len(content))

    def read(self, name: str) -> bytes:
        """A small object.

        Raises:
            FileNotFoundError: there is none.
            UnavailableError, PermissionDeniedError: the store does not give it.
        """
        return self.part(name, 0, self.size(name))

    def part(self, name: str, start: int, end: int) -> bytes:
        """The bytes of an object from a first one to one before the last; raises as ``read`` does."""
        path = self._path(name)

        def get() -> bytes:
            data = bytes(self._fs.cat_file(path, start=start, end=end)) if start < end else b""
            if len(data) != end - start:
                raise OSError(f"the store gave {len(data)} of {end - start} bytes from byte {start} on")
            return data

        return self._ask("read", name, get, end - start)

    def size(self, name: str) -> int:
        """The bytes of an object; raises as ``read`` does."""
        path = self._path(name)
        return int(self._ask("read", name, lambda: self._fs.info(path)["size"]))

    def open(self, name: str) -> BinaryIO:
        """Opens an object for reading; raises as ``read`` does, then and later."""
        return cast(BinaryIO, io.BufferedReader(_OpenObject(self, name, self.size(name)), _FETCHED_BYTES))

    def fetch(self, name: str, target: Path, size: int, sha256: str) -> bool:
        """Copies an object into a new file; returns whether it is what it should be, and raises as ``read`` does."""
        digest = hashlib.sha256()
        if self.size(name) != size:
            return False
        with self.open(name) as source, target.open("xb") as file:
            while piece := source.read(_FETCHED_BYTES):
                digest.update(piece)
                file.write(piece)
        return digest.hexdigest() == sha256

    def sizes(self) -> dict[str, int]:
        """The bytes of all objects in the folder and those in it, by name; raises as ``read`` does."""
        found = self._ask("listed", "", lambda: self._fs.find(self._root, detail=True))
        return {str(path).removeprefix(self._root).lstrip("/"): int(one["size"] or 0) for path, one in found.items()}

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; those that are not there are as they should be.

        Raises:
            UnavailableError, PermissionDeniedError: the store does not do it.
        """
        for name in names:
            path = self._path(name)
            with contextlib.suppress(FileNotFoundError):
                self._ask("removed", name, partial(self._fs.rm_file, path))

    def try_out(self) -> None:
        """Sees that objects can be put here, put only where there is none, and removed.

        Raises:
            InvalidInputError: the store does not know the condition, and puts an object over another one.
            UnavailableError, PermissionDeniedError, DataError: as ``put`` does.
        """
        name = f".elasticdl-{secrets.token_hex(8)}"
        self.put_new(name, b"first")
        try:
            self.put_new(name, b"other")
        except ConflictError:
            return
        finally:
            self.delete([name])
        raise InvalidInputError(
            f"the store of {self.url} puts an object over one that is there, though it was asked not to "
            "(If-None-Match: *)",
            fix="give a store that knows conditional writes, or a folder",
        )

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _ask(self, what: str, name: str, work: Callable[[], Result], size: int = 0) -> Result:
        deadline_s = self._deadline_s + size / _SLOWEST_BYTES_S
        about = f"{self.url}/{name}" if name else self.url
        try:
            return _PAUSES.retry(lambda: _in_time(work, deadline_s), self._tries, _FINAL)
        except FileExistsError:
            raise ConflictError(f"{about} is there already, and another one", fix="give another folder") from None
        except FileNotFoundError as error:
            if what != "written":
                raise FileNotFoundError(f"{about} is not there") from None
            reason = f"{about} cannot be written: {error}"
            raise DataError(reason, fix="make the bucket, or give one that is there") from None
        except PermissionError as error:
            raise PermissionDeniedError(
                f"{about} may not be {what}: {error}",
                fix="give the processes credentials that allow it, in their environment",
            ) from None
        except Exception as error:  # a store may raise anything
            raise UnavailableError(
                f"{about} cannot be {what}: {str(error) or type(error).__name__}",
                fix="see to the store, the network and the credentials in the environment of the processes",
            ) from error


def try_out(urls: Iterable[str]) -> None:
    """Sees that what a job makes can be put into folders of stores; raises as ``ObjectStore.try_out`` does."""
    for url in urls:
        ObjectStore(url, tries=_TRIES_AT_THE_DOOR, deadline_s=_DEADLINE_AT_THE_DOOR_S).try_out()


class _OpenObject(io.RawIOBase):
    def __init__(self, store: ObjectStore, name: str, size: int) -> None:
        super().__init__()
        self._store, self._name, self._size, self._at = store, name, size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._store.part(self._name, self._at, min(self._size, self._at + len(buffer)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextlib.contextmanager
def scratch_file(suffix: str = "") -> Iterator[Path]:
    """A new file's path, in a folder of temporary files, for what is put whole; removed in the end."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="elasticdl-put-") as folder:
        yield Path(folder, f"object{suffix}")


def _in_time(work: Callable[[], Result], seconds: float) -> Result:
    """Work's result, in so many seconds: drivers of stores have deadlines for parts of a request, if any."""
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((work(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, name="object store", daemon=True).start()
    try:
        result, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer in {seconds:.0f} s") from None
    if error is not None:
        raise error
    return cast(Result, result)
