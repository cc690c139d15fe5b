"""Makes the files of a model zoo importable without hiding installed packages of the same names.

The zoo and its parent come last on ``sys.path``: a zoo may have a file ``rich.py``, and whatever imports the
installed ``rich`` must get that. Where a module of the zoo means its own file of such a name, it is told to say so.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from elasticdl_core.errors import UserCodeError


@dataclass
class _Importable:
    """The zoo that this process imports from.

    Attributes:
        folders: what was added to ``sys.path`` for it.
        before: the modules that were there before it.
    """

    zoo: Path | None = None
    folders: list[str] = field(default_factory=list)
    before: frozenset[str] = frozenset()


_present = _Importable()


def make_importable(zoo: Path) -> None:
    """Puts a zoo and its parent at the end of ``sys.path``, in place of an earlier one, whose modules are forgotten.

    Args:
        zoo: the directory, absolute.
    """
    if _present.zoo is not None:
        _forget(_present.zoo)
        for folder in _present.folders:
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)
    _present.zoo = zoo
    _present.folders = [folder for folder in (str(zoo), str(zoo.parent)) if folder not in sys.path]
    _present.before = frozenset(sys.modules)
    sys.path.extend(_present.folders)
    importlib.invalidate_caches()


def source_location(function: object) -> str:
    """File and line of a function in brackets, the file relative to the zoo; empty if that is unknown."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    file = Path(code.co_filename)
    if _present.zoo is not None and file.is_relative_to(_present.zoo):
        file = file.relative_to(_present.zoo)
    return f" ({file}:{code.co_firstlineno})"


@contextlib.contextmanager
def importing_apart(zoo: Path) -> Iterator[None]:
    """A context in which files of a zoo are imported as modules of their own; those that were there come back then.

    Functions of either keep the globals of their own module.

    Args:
        zoo: the directory, absolute.
    """
    kept = _modules_of(zoo)
    try:
        yield
    finally:
        _forget(zoo)
        sys.modules.update(kept)


def _forget(zoo: Path) -> None:
    for name in _modules_of(zoo):
        del sys.modules[name]


def _modules_of(zoo: Path) -> dict[str, ModuleType]:
    found = {}
    for name, module in list(sys.modules.items()):
        if name in _present.before:  # thousands
            continue
        folders = getattr(module, "__path__", None)  # of no such kind in the odd modules that PyTorch makes
        places = [getattr(module, "__file__", None) or "", *(folders if isinstance(folders, Iterable) else ())]
        if not any("site-packages" in place for place in places) and any(
            place == str(zoo) or place.startswith(f"{zoo}/") for place in places
        ):
            found[name] = module
    return found


def refuse_hidden(zoo: Path, path: Path) -> None:
    """Refuses an import in a file of the zoo that could mean a file of the zoo as well as an installed module.

    Args:
        zoo: the directory.
        path: the file; files of the zoo that it imports are looked at too.

    Raises:
        UserCodeError: the file imports a name that both have.
    """
    waiting, seen = [path], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for name, line in _imports(file):
            own = _file_of(zoo, name)
            if own is None or own == file or name in sys.stdlib_module_names:
                continue
            other = _elsewhere(zoo, name)
            if other is not None:
                raise UserCodeError(
                    f"{file}:{line} imports {name!r}, which is {own} as well as the installed {other}",
                    fix=f"rename {own.relative_to(zoo)}, or import it as {zoo.name}.{name}",
                )
            waiting.append(own)


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """The first parts of the names that a file imports, with their lines."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return  # importing it will say so
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], node.lineno


def _file_of(zoo: Path, name: str) -> Path | None:
    return next((file for file in (zoo / f"{name}.py", zoo / name / "__init__.py") if file.is_file()), None)


def _elsewhere(zoo: Path, name: str) -> str | None:
    """The file of an installed module of a name; None if only the zoo has it."""
    others = [folder for folder in sys.path if folder not in _present.folders]
    found = None
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        found = PathFinder.find_spec(name, others)
    if found is None or found.origin is None or Path(found.origin).is_relative_to(zoo):
        return None
    return found.origin
