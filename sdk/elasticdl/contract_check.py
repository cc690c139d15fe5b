"""Finds in a module's source what training will not support, before a job is submitted.

Only what is certain: a function with one ``return``, of a class that is imported from Keras or PyTorch by name. The
rest is refused, with the same words, when a process loads the module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from elasticdl.recognition import TORCH
from elasticdl_core.contract import Subject, Verdict, find, refusal
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec, JobType

_CYCLING = ("CyclicLR", "OneCycleLR")
"""Schedulers that change the momentum unless they are told not to."""
_FEW_ARGUMENTS = 4
"""By place; behind these they may be told by place."""
_OPTIONS = ("use_ema", "loss_scale_factor", "gradient_accumulation_steps")
_MODELS = ("keras.Model", "keras.models.Model")


def check_contract(module: ast.Module, shown: str, spec: JobSpec, model: str, framework: str) -> None:
    """Refuses what a module certainly asks for and no trainer supports.

    Args:
        module: the parsed source.
        shown: its file, for messages.
        spec: names the entries.
        model: name of the model's function or class.
        framework: ``tensorflow`` or ``torch``.

    Raises:
        UserCodeError: with file and line, the reason and what to do instead.
    """
    source = _Source(module)
    refusals = _torch_refusals if framework == TORCH else _refusals
    error = next(refusals(source, shown, spec, model), None)
    if error is not None:
        raise error


class _Source:
    """Names of a module.

    Attributes:
        functions: by name.
        classes: by name.
    """

    def __init__(self, module: ast.Module) -> None:
        self.functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
        self.classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        self._imported = dict(_imports(module))

    def dotted(self, node: ast.expr) -> str:
        """The dotted name of an expression, as ``keras.optimizers.Adam``; empty if it has none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._imported:
            return ""
        name = ".".join([self._imported[node.id], *parts])
        name = name.removeprefix("tensorflow.")
        return f"keras.{name.removeprefix('tf_keras.')}" if name.startswith("tf_keras.") else name

    def returned(self, function: str) -> ast.expr | None:
        """The returned expression of a function with one ``return``."""
        node = self.functions.get(function)
        if node is None or node.decorator_list:
            return None
        found = [one for one in _own_nodes(node) if isinstance(one, ast.Return)]
        return found[0].value if len(found) == 1 else None


def _imports(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in module.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own_nodes(node)


def _refusals(source: _Source, shown: str, spec: JobSpec, model: str) -> Iterator[UserCodeError]:
    yield from _of_model(source, shown, model)
    if spec.type is JobType.TRAINING:
        optimizer = source.returned(spec.optimizer)
        if isinstance(optimizer, ast.Call):
            yield from _of_optimizer(source, shown, optimizer)
        callbacks = source.returned(spec.callbacks)
        if isinstance(callbacks, ast.List):
            for one in callbacks.elts:
                yield from _of_callback(source, shown, one)


def _of_optimizer(source: _Source, shown: str, call: ast.Call) -> Iterator[UserCodeError]:
    name = _within(source.dotted(call.func), "keras.optimizers.")
    if not name:
        return
    row = find(Subject.OPTIMIZER, name)
    if row is not None and row.verdict is Verdict.REFUSED:
        yield refusal(Subject.OPTIMIZER, name, f"{shown}:{call.lineno}: the optimizer {name}")
    for keyword in call.keywords:
        if keyword.arg in _OPTIONS and isinstance(keyword.value, ast.Constant) and keyword.value.value:
            what = f"the optimizer {name} has {keyword.arg}={ast.unparse(keyword.value)}, which"
            yield refusal(Subject.OPTION, keyword.arg, f"{shown}:{call.lineno}: {what}")


def _of_callback(source: _Source, shown: str, one: ast.expr) -> Iterator[UserCodeError]:
    if isinstance(one, ast.Constant):
        kind = type(one.value).__name__
        yield UserCodeError(
            f"{shown}:{one.lineno}: callbacks() gives {ast.unparse(one)}, a {kind}, which is no callback",
            fix="return a list of callbacks, e.g. [elasticdl.callbacks.EarlyStopping()]",
        )
    name = _within(source.dotted(one.func), "keras.callbacks.") if isinstance(one, ast.Call) else ""
    row = find(Subject.CALLBACK, name)
    if row is not None and row.verdict is Verdict.REFUSED:
        yield refusal(Subject.CALLBACK, name, f"{shown}:{one.lineno}: the Keras callback {name}")


def _of_model(source: _Source, shown: str, model: str) -> Iterator[UserCodeError]:
    made = source.returned(model)
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Name):
        model = made.func.id
    kinds = list(_line(source.classes, model, set()))
    if not any(source.dotted(base) in _MODELS for kind in kinds for base in kind.bases):
        return
    for kind in kinds:
        for node in kind.body:
            row = find(Subject.MODEL, node.name) if isinstance(node, ast.FunctionDef) else None
            if isinstance(node, ast.FunctionDef) and row is not None and row.verdict is Verdict.REFUSED:
                yield refusal(Subject.MODEL, node.name, f"{kind.name}.{node.name} ({shown}:{node.lineno})")


def _torch_refusals(source: _Source, shown: str, spec: JobSpec, model: str) -> Iterator[UserCodeError]:
    if spec.type is not JobType.TRAINING:
        return
    for entry in (spec.optimizer, spec.callbacks):
        returned = source.returned(entry)
        for node in ast.walk(returned) if returned is not None else ():
            if isinstance(node, ast.Attribute | ast.Name):
                yield from _of_torch(source, shown, node, "torch.optim.", Subject.TORCH_OPTIMIZER, "the optimizer")
                yield from _of_torch(
                    source, shown, node, "torch.optim.lr_scheduler.", Subject.TORCH_SCHEDULER, "the scheduler"
                )
            elif isinstance(node, ast.Call):
                yield from _of_cycling(source, shown, node)


def _of_cycling(source: _Source, shown: str, call: ast.Call) -> Iterator[UserCodeError]:
    """A scheduler that is made, by itself or by a partial, so that it changes the momentum too: its default."""
    made = call.args[0] if source.dotted(call.func) == "functools.partial" and call.args else call.func
    name = _within(source.dotted(made), "torch.optim.lr_scheduler.")
    if name not in _CYCLING or any(keyword.arg is None for keyword in call.keywords):
        return
    if len(call.args) > _FEW_ARGUMENTS:
        return  # it may be among them
    said = next((keyword.value for keyword in call.keywords if keyword.arg == "cycle_momentum"), ast.Constant(True))
    if isinstance(said, ast.Constant) and said.value:
        yield refusal(Subject.TORCH_SCHEDULER, "cycle_momentum", f"{shown}:{call.lineno}: the scheduler {name}")


def _of_torch(
    source: _Source, shown: str, node: ast.expr, prefix: str, subject: Subject, what: str
) -> Iterator[UserCodeError]:
    name = _within(source.dotted(node), prefix)
    row = find(subject, name) if name else None
    if row is not None and row.verdict is Verdict.REFUSED:
        yield refusal(subject, name, f"{shown}:{node.lineno}: {what} {name}")


def _line(classes: Mapping[str, ast.ClassDef], name: str, seen: set[str]) -> Iterator[ast.ClassDef]:
    """A class of the module and those of the module that it derives from."""
    if name not in classes or name in seen:
        return
    seen.add(name)
    yield classes[name]
    for base in classes[name].bases:
        if isinstance(base, ast.Name):
            yield from _line(classes, base.id, seen)


def _within(name: str, prefix: str) -> str:
    """The rest of a dotted name under a prefix; empty if it is elsewhere or deeper."""
    rest = name.removeprefix(prefix) if name.startswith(prefix) else ""
    return rest if "." not in rest else ""
