"""Checks a model module without running it: rejects invalid code at submission.

The file is parsed, never imported. A module that makes names in ways that parsing cannot see (star imports,
``__getattr__``, ``globals()``, ``exec``) is only checked for its syntax.
"""

from __future__ import annotations

import ast
import difflib
import errno
import itertools
import os
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elasticdl.contract_check import check_contract
from elasticdl.opened_files import check_opened_files
from elasticdl.recognition import TENSORFLOW, TORCH, resolve_framework
from elasticdl_core.contract.argument_order import names_swapped, swapped_words
from elasticdl_core.devices import WHOLE
from elasticdl_core.errors import PermissionDeniedError, UserCodeError
from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.job.fields import NCCL
from elasticdl_core.path_policy import PathPolicy
from elasticdl_runtime.path_checks import open_within

_DEFAULTS = {
    "eval_metrics_fn": "eval_metrics_fn",
    "callbacks": "callbacks",
    "collate": "collate",
    "prediction_outputs_processor": "PredictionOutputsProcessor",
}
_RATES = (
    "learning_rate_scheduler",
    "learning_rate_schedule",
    "learning_rate",
    "lr_scheduler",
    "lr_schedule",
    "lr_lambda",
    "scheduler",
)
"""What a function of the learning rate is called, as the original had one by a flag of its own."""
_LOOKALIKES = {
    "feed": "feeds feed_fn feed_function input_fn dataset data_fn dataset_function",
    "eval_metrics_fn": "metrics eval_metrics metrics_fn metric_fn eval_fn evaluation_metrics get_metrics",
    "callbacks": "callback callbacks_fn get_callbacks make_callbacks",
    "custom_data_reader": "data_reader reader custom_reader get_data_reader make_reader",
    "collate": "collate_fn collate_function collater collator",
    "prediction_outputs_processor": "prediction_outputs_processor OutputsProcessor PredictionProcessor",
}
"""What functions are called that are meant as an entry, and are none."""
_ALIKE = 0.84
"""How like a name must be to that of an entry to be taken for it, as ``difflib`` has it."""
_LOSS_ARGUMENTS = ("labels", "predictions")
_LOOPS = ("elasticdl", "elasticai_api")
"""Packages from which a script takes its records."""
_FEEDS = ("feed", "dataset_fn")
_MODELS = {TENSORFLOW: "keras.Sequential([...])", TORCH: "torch.nn.Sequential(...)"}
_METRICS = {
    TENSORFLOW: "keras.metrics.SparseCategoricalAccuracy()",
    TORCH: "lambda labels, predictions: predictions.argmax(1) == labels",
}
_FEED_BODIES = {
    TENSORFLOW: "return dataset.map(parse)",
    TORCH: "for record in dataset:\n        yield features, label",
}
MAX_SOURCE_BYTES = 512 << 10
"""Most bytes of a model module: code, not data."""
_LOOKED_AT = 2000
"""Entries of a zoo that are looked at for a name like the missing one."""


def check_model_module(
    zoo_dir: str | os.PathLike[str],
    spec: JobSpec,
    *,
    reach: PathPolicy | None = None,
    local: bool = False,
    workers_see: Callable[[str], bool] | None = None,
) -> str:
    """Checks that the module of a job parses and defines what that type of job needs.

    Args:
        zoo_dir: directory of the model modules.
        spec: names the module and its entries.
        reach: what the job may read; a file of the zoo that leads elsewhere is refused, and nothing of it is shown.
        local: whether the job runs in the process that asks, which opens any file of its machine.
        workers_see: whether a file outside of the zoo is there for the workers; None where this machine cannot know.

    Returns:
        The framework that the module is written for.

    Raises:
        UserCodeError: the directory, the file or an entry is missing, a file does not parse or is too large, or the
            module plainly asks for what is refused; with file and line.
    """
    zoo = Path(zoo_dir)
    try:
        if not zoo.is_dir():
            raise UserCodeError(f"there is no directory {zoo}", fix="give the directory of the model modules")
        framework, modules = _check(zoo, spec, reach)
        if not local:
            modules.check_opened_files(spec, workers_see)
        return framework
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EACCES):
            raise  # it may pass
        raise UserCodeError(
            f"{error.filename or zoo} cannot be read: {error.strerror}",
            fix="give a directory of modules, and names of files in it, that this machine can read",
        ) from None
    except RecursionError:
        raise UserCodeError(
            f"the module of {spec.model_def} is nested too deeply to be checked",
            fix="write its longest expressions as several, or read them from a file",
        ) from None


def _check(zoo: Path, spec: JobSpec, reach: PathPolicy | None) -> tuple[str, _Modules]:
    home, model = _split(spec.model_def)
    modules = _Modules(zoo, home, reach)
    if spec.runs_script:
        modules.require_records()
        return TORCH, modules
    framework = resolve_framework(zoo, spec, reach=reach)
    if framework == TORCH and spec.device_share > WHOLE:
        raise UserCodeError(
            f"a worker computes a model in PyTorch on one device, so that with {spec.worker_resource_request} others "
            "would lie idle",
            fix="give worker_resource_request gpu=1 and more workers; a script with its own training loop may use "
            "several devices",
        )
    if framework != TORCH and spec.collective == NCCL:
        raise UserCodeError(
            "NCCL adds gradients of models in PyTorch only; those of TensorFlow are summed in the host's memory",
            fix="leave --collective out",
        )
    modules.require(model, "model_def", "the model", f"def {model}():\n    return {_MODELS[framework]}")
    for entry in _entries(spec, framework):
        modules.require(entry.name, entry.flag, entry.what, entry.example)
    if spec.type is JobType.TRAINING:
        modules.require_arguments(spec.loss, _LOSS_ARGUMENTS)
    modules.require_arguments(spec.feed or "feed", ("dataset", "mode", "metadata"))
    if framework == TORCH:
        modules.require_arguments(spec.collate, ("samples",))
    if spec.type is JobType.TRAINING or spec.validation_data or spec.prediction_data:
        _check_feed(spec, modules, framework)
    modules.check_contract(model, spec, framework)
    modules.refuse_lookalikes(spec)
    return framework, modules


@dataclass(frozen=True)
class _Entry:
    name: str
    flag: str
    what: str
    example: str


def _entries(spec: JobSpec, framework: str) -> Iterator[_Entry]:
    if spec.type is JobType.TRAINING:
        yield _Entry(spec.loss, "loss", "the loss function", f"def {spec.loss}(labels, predictions): ...")
        yield _Entry(spec.optimizer, "optimizer", "the optimizer function", f"def {spec.optimizer}(): ...")
    if spec.type is JobType.EVALUATION and spec.eval_metrics_fn == _DEFAULTS["eval_metrics_fn"]:
        yield _Entry(
            spec.eval_metrics_fn,
            "eval_metrics_fn",
            "the metrics function",
            f"def eval_metrics_fn():\n    return {{'accuracy': {_METRICS[framework]}}}",
        )
    for flag, default in _DEFAULTS.items():
        name = getattr(spec, flag)
        if name and name != default:
            yield _Entry(name, flag, f"what --{flag} names", f"def {name}(): ...")
    if spec.custom_data_reader:
        name = spec.custom_data_reader
        example = f"def {name}(data_origin, records_per_task=None, **params): ..."
        yield _Entry(name, "custom_data_reader", "the data reader", example)


def _check_feed(spec: JobSpec, modules: _Modules, framework: str) -> None:
    if spec.feed:
        modules.require(
            spec.feed, "feed", "the feed function", f"def {spec.feed}(dataset, mode, metadata):\n    return dataset"
        )
        return
    reader_may_feed = (
        bool(spec.custom_data_reader) or modules.defines("custom_data_reader") or "label" in spec.data_reader_params
    )
    if not reader_may_feed and not any(modules.defines(name) for name in _FEEDS):
        modules.require(
            _FEEDS[0],
            "feed",
            "the feed function (feed or dataset_fn), which turns raw records into features and labels",
            f"def feed(dataset, mode, metadata):\n    {_FEED_BODIES[framework]}\nor, of columns of numbers, name "
            "that of the labels: --data_reader_params 'label=NAME'",
        )


def _names_of(node: ast.AST) -> tuple[object, ...]:
    """The names that a node may bind, itself."""
    if isinstance(node, ast.Name):
        return () if isinstance(node.ctx, ast.Load) else (node.id,)
    return getattr(node, "name", None), getattr(node, "asname", None)


class _Modules:
    """The parsed files of a zoo that define entries; each is parsed once.

    Args:
        zoo: the directory.
        home: path of the module that names without a dot are looked up in.
        reach: what the job may read.

    Raises:
        UserCodeError: that file is missing or does not parse.
    """

    def __init__(self, zoo: Path, home: tuple[str, ...], reach: PathPolicy | None) -> None:
        self._zoo = zoo
        self._reach = reach
        self._home = home
        self._names: dict[tuple[str, ...], set[str] | None] = {}
        self._trees: dict[tuple[str, ...], tuple[ast.Module, str]] = {}
        self._load(home, "model_def")

    def defines(self, name: str) -> bool:
        """Whether the entry module defines a name, or may define it dynamically."""
        names = self._load(self._home, "model_def")
        return names is None or name in names

    def require(self, dotted: str, flag: str, what: str, example: str) -> None:
        """Checks that an entry exists.

        Raises:
            UserCodeError: it is not, or its file is missing or does not parse.
        """
        if "." in dotted:
            home, name = _split(dotted)
        else:
            home, name = self._home, dotted
        names = self._load(home, flag)
        if names is None or name in names:
            return
        place = Path(*home).with_suffix(".py").as_posix()
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean --{flag} with {near[0]!r}, which it defines?" if near else ""
        raise UserCodeError(
            f"{place} does not define {name!r}, {what}",
            fix="; ".join(part for part in (hint, f"add to {place}:  {example}") if part),
        )

    def require_arguments(self, dotted: str, given: tuple[str, ...]) -> None:
        """Checks that a function can be called with so many arguments, where its file says that beyond doubt.

        Raises:
            UserCodeError: it takes fewer, or needs more.
        """
        home, name = _split(dotted) if "." in dotted else (self._home, dotted)
        if not self._names.get(home):
            return
        tree, place = self._trees[home]
        # Decorators, branches and whatever else binds the name may make it another one.
        bound = [node for node in ast.walk(tree) if name in _names_of(node)]
        function = bound[0] if len(bound) == 1 and bound[0] in tree.body else None
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            return
        arguments = function.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        needs = len(names) - len(arguments.defaults)
        fits = needs <= len(given) and (len(names) >= len(given) or arguments.vararg is not None)
        if not fits or None in arguments.kw_defaults:
            so_many = f"{len(given)} argument{'s' if len(given) > 1 else ''}"
            raise UserCodeError(
                f"{place}:{function.lineno}: {name} cannot be called with {so_many}",
                fix=f"write it as def {name}({', '.join(given)}): ...",
            )
        if given == _LOSS_ARGUMENTS and names_swapped(names):
            message, fix = swapped_words(f"{place}:{function.lineno}: {name}", names)
            raise UserCodeError(message, fix=fix)

    def refuse_lookalikes(self, spec: JobSpec) -> None:
        """Refuses a function that looks like an entry that the module does not have, and that nothing there uses.

        Raises:
            UserCodeError: with its line and the entry that is meant.
        """
        names = self._load(self._home, "model_def")
        if names is None:
            return
        tree, place = self._trees[self._home]
        missing = {
            flag: name
            for flag, name in {**_DEFAULTS, "feed": "feed", "custom_data_reader": "custom_data_reader"}.items()
            if not names & {name, *(_FEEDS if flag == "feed" else ())} and getattr(spec, flag) in ("", name)
        }
        used = set[str]()
        for one in ast.walk(tree):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
                used.add(one.id)
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                used.add(one.value)
        named = (spec.model_def, spec.loss, spec.optimizer, *(getattr(spec, flag) for flag in _LOOKALIKES))
        used.update(str(value).rpartition(".")[2] for value in named)
        for name, line in _plain_functions(tree):
            if name in used or name.startswith("_"):
                continue
            said, passes = f"{place}:{line}: nothing uses {name}", f"one that is not used yet passes as _{name}"
            if name in _RATES:
                given = f"[elasticdl.callbacks.LearningRateScheduler({name})]"
                raise UserCodeError(
                    f"{said}, which looks like a schedule of the learning rate",
                    fix=f"hand it over: def callbacks(): return {given}; {passes}",
                )
            for flag, entry in missing.items():
                if name in _LOOKALIKES[flag].split() or difflib.get_close_matches(name, [entry], 1, _ALIKE):
                    raise UserCodeError(
                        f"{said}: did you mean the entry {entry}?",
                        fix=f"call it {entry}, or name it with --{flag} {name}; {passes}",
                    )

    def require_records(self) -> None:
        """Checks that a script asks for the records of its job.

        Raises:
            UserCodeError: it imports nothing that could.
        """
        tree, place = self._trees[self._home]
        imported = {
            name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
            )
        }
        # What it takes from other files of its own may ask for them.
        own = {name for name in imported if (self._zoo / f"{name}.py").is_file() or (self._zoo / name).is_dir()}
        if not imported & {*_LOOPS, "importlib", "."} and not own:
            raise UserCodeError(
                f"{place} does not import elasticdl, so that it takes no records of the job",
                fix="let its loop read an elasticdl.torch.ElasticDataset",
            )

    def check_contract(self, model: str, spec: JobSpec, framework: str) -> None:
        """Refuses what the entry module certainly asks for and no trainer of its framework supports."""
        check_contract(self._trees[self._home][0], self._trees[self._home][1], spec, model, framework)

    def check_opened_files(self, spec: JobSpec, workers_see: Callable[[str], bool] | None) -> None:
        """Refuses paths that a module opens and workers do not have."""
        named = (
            spec.model_def,
            spec.feed or "feed",
            "dataset_fn",
            spec.loss,
            spec.optimizer,
            spec.custom_data_reader,
        )
        more = (spec.eval_metrics_fn, spec.callbacks, spec.collate, spec.prediction_outputs_processor)
        entries = {_split(one)[1] for one in (*named, *more) if one}
        for tree, shown in self._trees.values():
            check_opened_files(
                tree,
                shown,
                entries,
                zoo=self._zoo,
                reach=self._reach,
                workers_see=workers_see,
                runs_as_script=spec.runs_script,
            )

    def _load(self, home: tuple[str, ...], flag: str) -> set[str] | None:
        if home not in self._names:
            self._names[home] = self._parse(home, flag)
        return self._names[home]

    def _parse(self, home: tuple[str, ...], flag: str) -> set[str] | None:
        relative = Path(*home).with_suffix(".py")
        path = self._zoo / relative
        if not path.is_file():
            if (self._zoo / Path(*home) / "__init__.py").is_file():
                relative = Path(*home) / "__init__.py"
                path = self._zoo / relative
            else:
                raise self._no_file(relative, flag)
        tree = _parse_file(path, relative.as_posix(), self._reach)
        self._trees[home] = tree, relative.as_posix()
        return defined_names(tree)

    def _no_file(self, relative: Path, flag: str) -> UserCodeError:
        present = sorted(
            path.relative_to(self._zoo).as_posix()
            for path in itertools.islice(self._zoo.rglob("*"), _LOOKED_AT)
            if path.suffix == ".py"
            and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(self._zoo).parts)
        )
        near = difflib.get_close_matches(relative.as_posix(), present, n=1)
        listed = ", ".join(present[:8]) + (", ..." if len(present) > 8 else "")
        hint = f"did you mean {near[0]}?" if near else f"the zoo has: {listed or 'no Python file'}"
        return UserCodeError(
            f"--{flag} names the file {relative.as_posix()}, which is not in the model zoo",
            fix=f"write file.object, with dots for folders; {hint}",
        )


def _plain_functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names and lines of functions and classes without decorators, and of lambdas with a name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
            yield node.name, node.lineno
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            yield from ((target.id, node.lineno) for target in node.targets if isinstance(target, ast.Name))


def _split(dotted: str) -> tuple[tuple[str, ...], str]:
    *home, name = dotted.split(".")
    return tuple(home), name


def _parse_file(path: Path, shown: str, reach: PathPolicy | None) -> ast.Module:
    try:
        with os.fdopen(open_within(path, reach), "rb") as raw:
            size = os.fstat(raw.fileno()).st_size
            if size > MAX_SOURCE_BYTES:
                raise UserCodeError(
                    f"{shown} has {size} bytes; a module may have {MAX_SOURCE_BYTES}",
                    fix="keep data out of the module: put it into a file beside it, and read that",
                )
            source = _decoded(raw, shown)
        return ast.parse(source, filename=shown)
    except SyntaxError as error:
        line = (error.text or "").rstrip("\n")
        marker = "\n" + " " * (4 + max(0, (error.offset or 1) - 1)) + "^" if line else ""
        raise UserCodeError(
            f"{shown}:{error.lineno or 1}: {error.msg}",
            fix=f"correct line {error.lineno or 1} of {shown}",
            traceback=(
                f'  File "{shown}", line {error.lineno or 1}\n    {line}{marker}\n{type(error).__name__}: {error.msg}'
            ),
        ) from None
    except (RecursionError, MemoryError):
        raise UserCodeError(
            f"{shown} is nested too deeply, or takes too much memory, to be parsed",
            fix="write its longest expressions as several, or read them from a file",
        ) from None
    except (PermissionDeniedError, OSError) as error:
        message = getattr(error, "message", getattr(error, "strerror", str(error)))
        raise UserCodeError(f"{shown} cannot be read: {message}", fix="put the file itself into the zoo") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise UserCodeError(f"{shown} cannot be read as Python: {error}", fix="save it as UTF-8 text") from None


def _decoded(raw: BinaryIO, shown: str) -> str:
    """The text of a module, by the encoding that it declares."""
    try:
        encoding, _ = tokenize.detect_encoding(raw.readline)
        raw.seek(0)
        data = raw.read(MAX_SOURCE_BYTES)
        if encoding.startswith(("utf-16", "utf-32")):
            raise LookupError(f"Python reads no module in {encoding}")
        return data.decode(encoding)
    except (SyntaxError, LookupError) as error:
        raise UserCodeError(
            f"{shown} declares an encoding that it cannot be read by: {str(error).replace(f' for {raw.name!r}', '')}",
            fix="save it as UTF-8 text, and write # -*- coding: utf-8 -*- or leave that line out",
        ) from None


def defined_names(module: ast.Module, *, past_stars: bool = False) -> set[str] | None:
    """Names that a module has, or may have, after its import; None if they are made dynamically.

    Args:
        module: parsed.
        past_stars: ``from other import *`` is passed over; else nobody knows what it brings.
    """
    names: set[str] = set()
    for statement in _top_level(module.body):
        if isinstance(statement, ast.ImportFrom) and any(alias.name == "*" for alias in statement.names):
            if past_stars:
                continue
            return None
        if any(_is_dynamic(node) for node in _outside_functions(statement)):
            return None
        names.update(_bound(statement))
    return None if "__getattr__" in names else names


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, those in branches and blocks included."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _top_level(getattr(statement, name, ()))
        for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _top_level(handler.body)


def _outside_functions(statement: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return iter(())
    return ast.walk(statement)


def _is_dynamic(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return isinstance(called, ast.Name) and called.id in ("globals", "exec", "setattr", "vars", "locals")


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is None:
        return
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
