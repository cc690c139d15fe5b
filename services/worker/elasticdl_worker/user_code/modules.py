"""Imports a user's model module, and reports what is wrong with it; no other module imports user code.

Everything that the user wrote is called inside ``guarded``, so that whatever happens there, an exception, a
``sys.exit`` or a missing package, becomes a ``UserCodeError`` with the user's own frames.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, cast

from elasticdl.data.reader import Metadata
from elasticdl_core.errors import (
    DataError,
    ElasticDLError,
    FencedError,
    UnauthenticatedError,
    UnavailableError,
    UserCodeError,
)
from elasticdl_core.job import JobSpec
from elasticdl_worker.user_code.fixes import suggest_fix
from elasticdl_worker.user_code.zoo_path import make_importable, refuse_hidden, source_location

IN_GRAPH = re.compile(r"\n([^\n]+)\n+\t \[\[(?:\{\{function_node [^}]*\}\})?\{\{node ([^}]+)\}\}")
"""What is wrong, and with which operation, at the end of what TensorFlow says of a graph."""
_IN_LOADER = re.compile(
    r"Caught \w+ in (DataLoader \w+ process \d+)\.\nOriginal Traceback.*"
    r"\n  File [^\n]*\n(?:    [^\n]*\n)*(?:[\w.]+: )?(.+)",
    re.DOTALL,
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DEFAULTS = {
    "loss": "def loss(labels, predictions): ... returning a scalar",
    "optimizer": "def optimizer(): ... returning an optimizer",
    "collate": "def collate(samples): ... returning a minibatch of them",
    "feed": "def feed(dataset, mode, metadata): ... returning a dataset of (features, labels)",
    "eval_metrics_fn": "def eval_metrics_fn(): ... returning {name: function or metric}",
    "callbacks": "def callbacks(): ... returning a list",
    "custom_data_reader": "def custom_data_reader(data_origin, records_per_task=None, **params): ...",
    "prediction_outputs_processor": "class PredictionOutputsProcessor: def process(self, predictions, worker_id)",
}


@dataclass(frozen=True)
class ModelModule:
    """The entries of a user's model module; ``None`` where the module has none.

    Attributes:
        path: the module's file.
        roots: directories whose code counts as the user's.
        build_model: makes the model; takes no arguments.
        loss: ``loss(labels, predictions)``.
        optimizer: makes the optimizer; takes no arguments.
        feed: ``feed(dataset, mode, metadata)``.
        collate: makes a minibatch of samples.
        eval_metrics_fn: makes ``{name: function or metric}``.
        callbacks: makes the list of callbacks.
        custom_data_reader: makes a reader.
        prediction_outputs_processor: class with ``process(predictions, worker_id)`` or ``process_task``.
        has: which entries there are.
        taken_names: how often each name of a layer was taken when the module was imported.
    """

    path: Path
    roots: tuple[Path, ...]
    build_model: Callable[[], object]
    loss: Callable[[object, object], object] | None = None
    optimizer: Callable[..., object] | None = None
    feed: Callable[[object, str, Metadata], object] | None = None
    collate: Callable[[object], object] | None = None
    eval_metrics_fn: Callable[[], object] | None = None
    callbacks: Callable[[], object] | None = None
    custom_data_reader: Callable[..., object] | None = None
    prediction_outputs_processor: Callable[[], object] | None = None
    has: dict[str, bool] = field(default_factory=dict)
    taken_names: dict[str, int] = field(default_factory=dict)

    def guard(self, what: str, fix: str = "") -> contextlib.AbstractContextManager[None]:
        """A context in which the user's code runs; see ``guarded``."""
        if (
            what.startswith("custom_data_reader") and self.custom_data_reader is None
        ):  # a reader of ours read the data
            what, fix = "reading the data", fix or "check the data and its path"
        return guarded(what, self.roots, fix=fix or f"correct {what} in {self.path}")

    def need(self, name: str) -> Callable[..., object]:
        """An entry that the job cannot do without.

        Raises:
            UserCodeError: the module does not have it.
        """
        entry = getattr(self, name)
        if entry is None:
            raise UserCodeError(
                f"{self.path} has no {name}", fix=f"add `{_DEFAULTS[name]}`, or name another with --{name}"
            )
        return cast(Callable[..., object], entry)


def imported_from(roots: Sequence[Path]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The files below some directories that were imported, each with the names in it, in the order of modules."""
    folders = tuple(f"{root}/" for root in roots)  # strings: each start of a job looks at thousands of modules
    for _, module in sorted(sys.modules.items()):  # a copy: other threads import
        file = getattr(module, "__file__", None)
        if file and file.startswith(folders):
            yield file, dict(vars(module))


def load_model_module(spec: JobSpec, zoo: Path, *, optimizer_takes: int = 0) -> ModelModule:
    """Imports the model module of a job.

    Args:
        spec: names the model and overrides entries by name; a dotted name is an object of another file of the zoo.
        zoo: the model zoo directory; it and its parent become importable, after everything that is installed.
        optimizer_takes: how many arguments by place the optimizer function may leave open.

    Raises:
        UserCodeError: a file or an entry is missing, or importing it failed; with the place and the fix.
    """
    zoo = zoo.resolve()
    if not zoo.is_dir():
        raise UserCodeError(f"the model zoo {zoo} is not a directory", fix="give --model_zoo an existing directory")
    make_importable(zoo)
    roots = (zoo,)
    file_name, _, model_name = spec.model_def.rpartition(".")
    module = _import_file(zoo, file_name, roots, "model_def")
    path = Path(str(module.__file__))
    model = _entry(module, model_name, "model_def")
    entries: dict[str, Any] = {"build_model": _bind(model, spec.model_params, "model_params")}
    for name in _DEFAULTS:
        entries[name] = _find(spec, name, module, zoo, roots)
    if entries["optimizer"] is not None:
        entries["optimizer"] = _bind(entries["optimizer"], spec.optimizer_params, "optimizer_params", optimizer_takes)
    has = {name: entries[name] is not None for name in _DEFAULTS}
    return ModelModule(path=path, roots=roots, has=has, **entries)


@contextlib.contextmanager
def guarded(what: str, roots: Sequence[Path], *, fix: str = "") -> Iterator[None]:
    """Turns whatever the user's code raises into a UserCodeError with the user's frames.

    Args:
        what: what runs, for the message, e.g. ``loss``.
        roots: directories whose code counts as the user's.
        fix: what the user can do.

    Raises:
        UserCodeError: the code raised, or called ``sys.exit``.
        DataError: raised by a reader inside; passed on as it is.
        UnavailableError, FencedError, UnauthenticatedError: raised by what carries the user's code, such as a pull
            inside it; passed on as they are, for no user can correct them.
    """
    try:
        yield
    except (UnavailableError, FencedError, UnauthenticatedError):
        raise
    except (UserCodeError, DataError) as error:
        original = _original(error)
        if original is not error:
            raise original from None
        raise
    except SystemExit as error:
        raise UserCodeError(
            f"{what} called sys.exit({error.code!r}){user_location(error, roots)}",
            fix="return from the function instead of ending the process",
            traceback=user_traceback(error, roots),
        ) from error
    except Exception as error:
        ours = error if isinstance(error, ElasticDLError) else None  # it says itself what to do
        said = _first_lines(str(error) if ours is None else ours.message)
        raise UserCodeError(
            f"{what} raised {type(error).__name__}: {said}{user_location(error, roots)}",
            fix=(ours.fix if ours is not None else suggest_fix(error)) or fix,
            traceback=user_traceback(error, roots),
        ) from error


def _original(error: UserCodeError | DataError) -> UserCodeError | DataError:
    """An error of ours as it was raised: Keras raises a copy of what comes out of a layer, without the fix."""
    found: BaseException | None = error
    while isinstance(found, UserCodeError | DataError):
        if found.fix:
            return found
        found = found.__cause__ or found.__context__
    return error


def user_location(error: BaseException, roots: Sequence[Path]) -> str:
    """`` (file:line)`` of the innermost frame of the user's, or nothing."""
    frames = _user_frames(error.__traceback__, roots)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def user_traceback(error: BaseException, roots: Sequence[Path]) -> str:
    """The traceback of an exception, cut to the frames of the user's files where it has any."""
    lines: list[str] = []
    cause = error.__cause__
    if cause is not None and cause is not error:
        lines += [user_traceback(cause, roots), "\nwhich led to:\n\n"]
    frames = _user_frames(error.__traceback__, roots)
    lines.append("Traceback (most recent call last):\n")
    lines += traceback.format_list(frames or list(traceback.extract_tb(error.__traceback__)))
    lines += traceback.format_exception_only(type(error), error)
    return "".join(lines)


def _user_frames(tb: TracebackType | None, roots: Sequence[Path]) -> list[traceback.FrameSummary]:
    folders = tuple(f"{root}/" for root in roots)
    return [frame for frame in traceback.extract_tb(tb) if frame.filename.startswith(folders)]


def _first_lines(message: str, limit: int = 1200) -> str:
    text = _COLOURS.sub("", message).strip() or "(no message)"
    # TensorFlow says where each operation of a graph was made, dozens of lines, before it says what is wrong.
    if found := IN_GRAPH.search(text):
        text = f"{found[1]} [operation {found[2]}]"
    # PyTorch gives a whole traceback of the other process as the message, with what is wrong in its last lines.
    elif found := _IN_LOADER.match(text):
        text = f"{found[2]} [{found[1]}]"
    return text if len(text) <= limit else text[:limit] + " ..."


def _import_file(zoo: Path, dotted: str, roots: tuple[Path, ...], flag: str) -> ModuleType:
    path = zoo.joinpath(*dotted.split(".")).with_suffix(".py")
    if not path.is_file():
        names = [str(p.relative_to(zoo).with_suffix("")).replace("/", ".") for p in sorted(zoo.rglob("*.py"))]
        near = difflib.get_close_matches(dotted, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserCodeError(
            f"--{flag}: there is no file {path}",
            fix=f"{hint}the zoo {zoo} has: {', '.join(names[:20]) or 'no Python file'}",
        )
    refuse_hidden(zoo, path)
    try:
        return _import_path(dotted, path)
    except SyntaxError as error:
        raise UserCodeError(
            f"{error.filename}:{error.lineno}: {error.msg}: {(error.text or '').strip()}",
            fix="correct the syntax",
            traceback="".join(traceback.format_exception_only(type(error), error)),
        ) from error
    except ImportError as error:
        namesake = _namesake(error, zoo)
        if namesake is None and not isinstance(error, ModuleNotFoundError):
            with guarded(
                f"importing {path}", roots, fix="make the file importable: `python -c 'import ...'` shows it"
            ):
                raise
        raise UserCodeError(
            f"{path} imports {error.name!r}, which is not there{user_location(error, roots)}",
            fix=namesake
            or suggest_fix(error)
            or f"install the package that provides {error.name!r} where workers run, or put the module in the zoo",
            traceback=user_traceback(error, roots),
        ) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        with guarded(f"importing {path}", roots, fix="make the file importable: `python -c 'import ...'` shows it"):
            raise
        raise AssertionError from error


def _namesake(error: ImportError, zoo: Path) -> str | None:
    """A remedy where a package is missing and a folder of the zoo has its name; None if none has."""
    name = (error.name or "").partition(".")[0]
    if not name or not (zoo / name / "__init__.py").is_file():
        return None
    return (
        f"install the package {name} where workers run, and rename the zoo's folder {name}, which has its name; "
        f"if the folder is meant, import it as {zoo.name}.{name}"
    )


def _import_path(dotted: str, path: Path) -> ModuleType:
    """Imports by name where the name leads to the file, else (a name taken by another package) by the file."""
    top = dotted.partition(".")[0]
    taken = sys.modules.get(top)
    top_file = getattr(taken, "__file__", None) or ""
    if taken is None or Path(top_file).resolve().is_relative_to(path.parents[dotted.count(".")]):
        found = None
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            found = importlib.util.find_spec(dotted)
        if found is not None and found.origin is not None and Path(found.origin).resolve() == path.resolve():
            return importlib.import_module(dotted)
    name = f"model_zoo_file.{dotted}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    file_spec = importlib.util.spec_from_file_location(name, path)
    if file_spec is None or file_spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(file_spec)
    sys.modules[name] = module
    try:
        file_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _entry(module: ModuleType, name: str, flag: str) -> Callable[..., object]:
    value = getattr(module, name, None)
    if value is None:
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        has = ", ".join(sorted(names)) or "nothing that can be called"
        raise UserCodeError(f"--{flag}: {module.__file__} has no {name!r}", fix=f"{hint}the file has: {has}")
    # No framework is imported here: models of both have one of these.
    # The class is asked: what is not built yet may raise for its weights.
    made = any(hasattr(type(value), attribute) for attribute in ("trainable_weights", "named_parameters"))
    if flag == "model_def" and made:
        raise UserCodeError(
            f"--{flag}: {name} in {module.__file__} is a model, made when the file is imported, not its maker",
            fix=f"make it in a function: def {name}(): return ...",
        )
    if not callable(value):
        raise UserCodeError(
            f"--{flag}: {name} in {module.__file__} is a {type(value).__name__}, not something to call",
            fix=f"make {name} a function or a class",
        )
    return cast(Callable[..., object], value)


def _find(
    spec: JobSpec, name: str, module: ModuleType, zoo: Path, roots: tuple[Path, ...]
) -> Callable[..., object] | None:
    """An entry by its flag or by its usual name; ``None`` if the user did not ask for it and it is not there."""
    wanted: str = getattr(spec, name)
    usual = str(JobSpec.__dataclass_fields__[name].default)
    if wanted and wanted != usual:
        file_name, _, attribute = wanted.rpartition(".")
        source = _import_file(zoo, file_name, roots, name) if file_name else module
        return _entry(source, attribute, name)
    names = {"feed": ("feed", "dataset_fn"), "custom_data_reader": ("custom_data_reader",)}.get(name, (usual,))
    for candidate in names:
        if getattr(module, candidate, None) is not None:
            return _entry(module, candidate, name)
    return None


def _bind(
    function: Callable[..., object], params: Mapping[str, object], flag: str, takes: int = 0
) -> Callable[..., object]:
    """Fixes keyword arguments, after checking that the function takes them and needs no others but ``takes`` more."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return functools.partial(function, **params)
    name = getattr(function, "__name__", str(function))
    try:
        _bind_any(signature, params, takes)
    except TypeError as error:
        raise UserCodeError(
            f"{name}{signature}{source_location(function)} cannot be called with {params or 'no arguments'}: {error}",
            fix=f"give every argument of {name} a default, or set it with --{flag}",
        ) from None
    return functools.partial(function, **params)


def _bind_any(signature: inspect.Signature, params: Mapping[str, object], takes: int) -> None:
    """Binds keyword arguments and up to ``takes`` others; raises TypeError where that does not go."""
    for count in range(takes):
        try:
            signature.bind(*range(count), **params)
        except TypeError:
            continue
        return
    signature.bind(*range(takes), **params)
