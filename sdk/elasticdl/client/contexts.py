"""Named APIs with their tokens, in a file that this user alone may read: ``elasticdl context``, and ``--context``."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from elasticdl_core.errors import InvalidInputError, NotFoundError
from elasticdl_runtime import durable
from elasticdl_runtime.home import expand_home

CONTEXT_VARIABLE = "ELASTICDL_CONTEXT"
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,59}")


@dataclass(frozen=True, slots=True)
class Context:
    """An API under a name.

    Attributes:
        url: its address.
        token: what opens it; empty for none.
        ca_file: what it is verified by under https; empty for the certificates that this machine trusts.
    """

    url: str
    token: str = field(default="", repr=False)
    ca_file: str = ""


@dataclass(frozen=True)
class Contexts:
    """All contexts of a user.

    Attributes:
        known: contexts by name.
        current: the one in use; empty for none.
    """

    known: Mapping[str, Context] = field(default_factory=dict)
    current: str = ""

    def add(self, name: str, context: Context) -> Contexts:
        """With a context more, or changed.

        Raises:
            InvalidInputError: that is no name.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{name!r} is no name of a context", fix="use letters, digits, dashes, dots and underscores"
            )
        return replace(self, known={**self.known, name: context})

    def use(self, name: str) -> Contexts:
        """With another one in use.

        Raises:
            NotFoundError: there is none of that name.
        """
        self.find(name)
        return replace(self, current=name)

    def remove(self, name: str) -> Contexts:
        """Without one.

        Raises:
            NotFoundError: there is none of that name.
        """
        self.find(name)
        rest = {known: context for known, context in self.known.items() if known != name}
        return Contexts(rest, "" if self.current == name else self.current)

    def find(self, name: str) -> Context:
        """The context of a name.

        Raises:
            NotFoundError: there is none.
        """
        if name not in self.known:
            listed = ", ".join(self.known)
            fix = f"there are: {listed}" if listed else "make one with `elasticdl context add NAME --url URL`"
            raise NotFoundError(f"there is no context {name!r}", fix=fix)
        return self.known[name]


def contexts_file(variables: Mapping[str, str] | None = None) -> Path:
    """The file of contexts: ``$XDG_CONFIG_HOME/elasticdl/contexts.json``, usually below ``~/.config``."""
    base = (os.environ if variables is None else variables).get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else expand_home("~/.config")
    return folder / "elasticdl" / "contexts.json"


def read_contexts(path: Path) -> Contexts:
    """Reads the contexts; none where there is no file.

    Raises:
        InvalidInputError: the file cannot be read, is none of ours, or others may read it.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = json.load(file)
        if mode & 0o077:
            raise InvalidInputError(
                f"others may read {path}, which holds tokens (mode {mode:04o})", fix=f"chmod 600 {path}"
            )
        known = {
            str(name): Context(str(one["url"]), str(one["token"]), str(one.get("ca_file", "")))
            for name, one in data["contexts"].items()
        }
        return Contexts(known, str(data["current"]))
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror}", fix="give it back to this user") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fix = "mend it, or remove it and make the contexts anew with `elasticdl context add`"
        raise InvalidInputError(f"{path} is no file of contexts", fix=fix) from None


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replaces the file, readable for this user alone."""
    durable.make_folder(path.parent, 0o700)
    known = {
        name: {"url": one.url, "token": one.token, "ca_file": one.ca_file} for name, one in contexts.known.items()
    }
    durable.write(path, json.dumps({"current": contexts.current, "contexts": known}, indent=2), 0o600)
