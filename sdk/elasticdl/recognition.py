"""Recognises the framework of a model module in its source: nothing of it is imported."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.errors import PermissionDeniedError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.path_policy import PathPolicy
from elasticdl_runtime.path_checks import open_within

TENSORFLOW, TORCH = "tensorflow", "torch"
_PACKAGES = {
    "tensorflow": TENSORFLOW,
    "keras": TENSORFLOW,
    "tf_keras": TENSORFLOW,
    "elasticdl_preprocessing": TENSORFLOW,
    "elasticdl.layers": TENSORFLOW,
    "elasticdl.python.elasticdl.feature_column": TENSORFLOW,
    "elasticdl.python.elasticdl.layers": TENSORFLOW,
    "torch": TORCH,
    "torchvision": TORCH,
    "torchaudio": TORCH,
    "torchtext": TORCH,
    "torchmetrics": TORCH,
    "torch_geometric": TORCH,
    "pytorch_lightning": TORCH,
    "lightning": TORCH,
    "elasticdl.torch": TORCH,
}
"""What an import of each package says."""
_ENTRIES = ("model_def", "feed", "loss", "optimizer", "eval_metrics_fn", "callbacks", "collate", "custom_data_reader")
_IMPORTERS = ("import_module", "__import__")
_MOST_BYTES = 512 << 10
_MOST_FILES = 500
_OTHERS = {
    TENSORFLOW: {"torch_compile": "off", "autocast": "off", "collate": "collate"},
    TORCH: {"keras": "default", "xla": "auto"},
}
"""Fields that mean nothing to a framework, and the values that say so."""
_FORMATS = {TENSORFLOW: ("keras", "saved_model"), TORCH: ("safetensors", "pt2")}


@dataclass(frozen=True)
class _FrameworkImport:
    """An import that says which framework it is.

    Attributes:
        framework: the framework.
        place: file and line.
        package: what is imported.
    """

    framework: str
    place: str
    package: str


def resolve_framework(zoo: Path, spec: JobSpec, *, reach: PathPolicy | None = None) -> str:
    """The framework of a job: what it says, or else what its module and the files of the zoo behind it import.

    A module that imports neither is taken for one of TensorFlow.

    Args:
        zoo: directory of the model modules.
        spec: the job.
        reach: what the job may read; files elsewhere are not looked at.

    Returns:
        ``tensorflow`` or ``torch``.

    Raises:
        UserCodeError: the files import both frameworks, or the job asks for something of the other one.
    """
    if spec.runs_script:
        return TORCH
    found = _recognise(zoo, spec, reach) if spec.framework == "auto" else spec.framework
    _refuse_options_of_others(spec, found)
    return found


def _recognise(zoo: Path, spec: JobSpec, reach: PathPolicy | None) -> str:
    framework_imports: dict[str, _FrameworkImport] = {}
    for imported in _framework_imports(zoo, spec, reach):
        framework_imports.setdefault(imported.framework, imported)
    if len(framework_imports) > 1:
        first, second = framework_imports[TENSORFLOW], framework_imports[TORCH]
        raise UserCodeError(
            f"the module of {spec.model_def} imports {first.package} ({first.place}) and {second.package} "
            f"({second.place}), so that its framework is not clear",
            fix="say which one trains the model: --framework tensorflow or --framework torch",
        )
    return next(iter(framework_imports), TENSORFLOW)


def starred_files(path: Path, zoo: Path) -> Iterator[Path]:
    """The files of a zoo of which a file has all names, by ``from other import *``."""
    for name, _ in _imports(path, zoo, None):
        if name.endswith(".*") and (own := _file_of(zoo, tuple(name.split(".")[:-1]))) is not None:
            yield own


def _refuse_options_of_others(spec: JobSpec, framework: str) -> None:
    for name, nothing in _OTHERS[framework].items():
        if getattr(spec, name) != nothing:
            raise UserCodeError(
                f"{name} is {getattr(spec, name)!r}, which means nothing to a model in {framework}",
                fix=f"leave --{name} out, or say with --framework what the model is written in",
            )
    wrong = [one for one in spec.export_formats.split(",") if one not in ("", "auto", *_FORMATS[framework])]
    if wrong:
        raise UserCodeError(
            f"export_formats has {wrong[0]!r}, which a model in {framework} cannot be written as",
            fix=f"give some of {', '.join(_FORMATS[framework])}, or auto",
        )


def _framework_imports(zoo: Path, spec: JobSpec, reach: PathPolicy | None) -> Iterator[_FrameworkImport]:
    """The frameworks that the modules of a job, and the files of the zoo that these import, import."""
    waiting = [path for path in (_file_of(zoo, home) for home in _homes(spec)) if path is not None]
    seen: set[Path] = set()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        for name, line in _imports(path, zoo, reach):
            framework = next((_PACKAGES[p] for p in _prefixes(name) if p in _PACKAGES), None)
            if framework is not None:
                yield _FrameworkImport(framework, f"{path.relative_to(zoo).as_posix()}:{line}", name)
                continue
            waiting += [own for p in _prefixes(name) if (own := _file_of(zoo, tuple(p.split(".")))) is not None]


def _homes(spec: JobSpec) -> Iterator[tuple[str, ...]]:
    for entry in _ENTRIES:
        home = tuple(getattr(spec, entry).split(".")[:-1])
        if home:
            yield home


def _file_of(zoo: Path, home: tuple[str, ...]) -> Path | None:
    """The file of a dotted name; names may begin with that of the zoo, whose parent is importable too."""
    for parts in (home, home[1:] if home[:1] == (zoo.name,) else ()):
        if parts:
            base = zoo.joinpath(*parts)
            for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                if path.is_file():
                    return path
    return None


def _prefixes(name: str) -> Iterator[str]:
    """A dotted name and those of its parents, the longest first."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        yield ".".join(parts[:length])


def _imports(path: Path, zoo: Path, reach: PathPolicy | None) -> Iterator[tuple[str, int]]:
    """The dotted names that a file imports, with their lines; of a file that cannot be parsed, nothing."""
    try:
        with os.fdopen(open_within(path, reach), "rb") as file:
            tree = ast.parse(file.read(_MOST_BYTES))
    except (SyntaxError, ValueError, RecursionError, MemoryError, PermissionDeniedError, OSError):
        return  # the check of the module says so, or the import
    folder = path.parent.relative_to(zoo).parts
    for node in _outside_type_checking(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = _absolute(node.module or "", node.level, folder)
            yield from ((f"{home}.{alias.name}" if home else alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
            bare = name.lstrip(".")
            yield _absolute(bare, len(name) - len(bare), folder), node.lineno


def _absolute(name: str, level: int, folder: tuple[str, ...]) -> str:
    """A dotted name behind so many dots, in a file of a folder of the zoo."""
    base = folder[: len(folder) - level + 1] if level else ()
    return ".".join([*base, *(name.split(".") if name else [])])


def _imported_by_call(call: ast.Call) -> str:
    """The module that ``importlib.import_module("torch")`` or ``__import__("torch")`` imports; else empty."""
    function = call.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if called not in _IMPORTERS:
        return ""
    named = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "name")]
    return next((one.value for one in named if isinstance(one, ast.Constant) and isinstance(one.value, str)), "")


def _outside_type_checking(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from _outside_type_checking(other)
            continue
        yield node
        yield from _outside_type_checking(node)
