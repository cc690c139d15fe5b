"""Finds files that a module certainly opens and that its workers will not have, before a job runs.

Workers start in a folder of the job's own, and of the submitting machine they have the model zoo alone. Only what is
certain is refused: a path that is written out, in code that runs at import or from an entry of the module, outside of
``if`` and ``try``, and that appears nowhere else in the module (which may write that file first).
"""

from __future__ import annotations

import ast
import collections
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from elasticdl_core.errors import UserCodeError
from elasticdl_core.path_policy import PathPolicy

_OPENERS = ("open", "io.open", "gzip.open", "bz2.open", "lzma.open", "PIL.Image.open", "codecs.open")
"""Functions that open the file of their first argument, for reading unless a mode says otherwise."""
_READERS = (
    *("numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "torch.load", "joblib.load"),
    *("pandas.read_csv", "pandas.read_table", "pandas.read_json", "pandas.read_parquet", "pandas.read_pickle"),
    *("pandas.read_excel", "pandas.read_feather", "polars.read_csv", "polars.read_parquet", "polars.read_json"),
    *("pyarrow.parquet.read_table", "pyarrow.csv.read_csv", "safetensors.torch.load_file"),
    *("tensorflow.io.read_file", "tensorflow.io.gfile.GFile", "tensorflow.data.TextLineDataset"),
    *("tensorflow.data.TFRecordDataset", "keras.models.load_model", "keras.saving.load_model"),
    *("keras.utils.load_img", "keras.preprocessing.image.load_img"),
)
_VOCABULARIES = ("keras.layers.StringLookup", "keras.layers.IntegerLookup", "keras.layers.TextVectorization")
"""Layers whose argument ``vocabulary`` is a list, or the path of a file."""
_METHODS = ("read_text", "read_bytes", "open")
"""Methods of paths."""
_PATHS = ("pathlib.Path", "pathlib.PosixPath")
_OF_THE_SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr")
"""Folders that each machine has of its own: what is there is no file of the user's that stayed behind."""


def check_opened_files(
    module: ast.Module,
    shown: str,
    entries: Iterable[str],
    *,
    zoo: Path,
    reach: PathPolicy | None = None,
    workers_see: Callable[[str], bool] | None = None,
    runs_as_script: bool = False,
) -> None:
    """Refuses paths that a module opens and workers do not have.

    Args:
        module: the parsed source.
        shown: its path in the zoo, for messages.
        entries: names of functions and classes that run beside what runs at import.
        zoo: the model zoo.
        reach: what the job may read; None for everything.
        workers_see: whether a file is there for the workers; None where this machine does not know.
        runs_as_script: whether ``if __name__ == "__main__"`` is true.

    Raises:
        UserCodeError: with file and line, and what to write instead.
    """
    for node, path in _opened(module, set(entries), runs_as_script):
        if PurePosixPath(path).is_absolute():
            _check_absolute(f"{shown}:{node.lineno}", path, reach, workers_see)
            continue
        home, name = PurePosixPath(shown).parent, PurePosixPath(path)
        places = [home / name, name, *([PurePosixPath(*name.parts[1:])] if name.parts[0] == zoo.name else [])]
        place = next((one for one in places if (zoo / one).is_file()), home / name)
        way = f"pathlib.Path(__file__).parent{''.join(f' / {part!r}' for part in _steps(home, place))}"
        raise UserCodeError(
            f"{shown}:{node.lineno}: it opens {path!r}, relative to the folder that a command runs in; workers "
            "run in folders of their own and do not find it",
            fix=f"have {name.name} in the model zoo, which travels with the job, and open {way}",
        )


def _steps(home: PurePosixPath, found: PurePosixPath) -> list[str]:
    """The way from one folder to a file beside, above or below it."""
    common = 0
    for one, other in zip(home.parts, found.parts, strict=False):
        if one != other:
            break
        common += 1
    return [*[".."] * (len(home.parts) - common), *found.parts[common:]]


def _check_absolute(
    where: str, path: str, reach: PathPolicy | None, workers_see: Callable[[str], bool] | None
) -> None:
    if any(path == folder or path.startswith(f"{folder}/") for folder in _OF_THE_SYSTEM):
        return
    way = "put the file into the model zoo, which travels with the job, and open it by pathlib.Path(__file__).parent"
    if reach is not None and not reach.allows(str(PurePosixPath(path))):
        raise UserCodeError(
            f"{where}: it opens {path!r}, which is outside the model zoo and outside what this job may read", fix=way
        )
    if workers_see is not None and not workers_see(path):
        raise UserCodeError(
            f"{where}: it opens {path!r}, which is outside the model zoo and is not there where workers run",
            fix=f"{way}, or put it where the cluster has its data",
        )


def _opened(module: ast.Module, entries: set[str], runs_as_script: bool) -> Iterator[tuple[ast.Call, str]]:
    """Calls that certainly run and read a file by a path that is written out."""
    names = _Names(module)
    used = collections.Counter(
        (node.value if isinstance(node, ast.Constant) else node.id)
        for node in ast.walk(module)
        if (isinstance(node, ast.Constant) and isinstance(node.value, str))
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    )
    read: list[tuple[ast.Call, str, list[str]]] = []
    for call in names.certain_calls(entries, runs_as_script):
        given = names.read_by(call)
        path, words = names.text(given) if given is not None else ("", [])
        if path and "://" not in path and not path.startswith("~") and not set(path) & set("*?["):
            read.append((call, path, words))
    by_reads = collections.Counter(word for _, _, words in read for word in words)
    changes_folder = any(isinstance(node, ast.Attribute) and "chdir" in node.attr for node in ast.walk(module))
    for call, path, words in read:
        if all(used[word] <= by_reads[word] for word in words) and not (changes_folder and path[0] != "/"):
            yield call, path


class _Names:
    """Names of a module and where they come from.

    Args:
        module: the parsed source.
    """

    def __init__(self, module: ast.Module) -> None:
        self._module = module
        self._defined = {
            node.name: node
            for node in module.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        self._imported: dict[str, str] = {}
        bound: collections.Counter[str] = collections.Counter()
        assigned: dict[str, ast.expr] = {}
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self._imported[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                self._imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound[node.id] += 1
            elif isinstance(node, ast.arg):
                bound[node.arg] += 1
        for node in module.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                assigned[node.targets[0].id] = node.value
        self._values = {name: value for name, value in assigned.items() if bound[name] == 1}
        self._bound = bound

    def certain_calls(self, entries: set[str], runs_as_script: bool) -> Iterator[ast.Call]:
        """Calls at import and of entries and what these name, outside of branches and of ``try``."""
        waiting: list[ast.AST] = [
            node for node in self._module.body if getattr(node, "name", None) not in self._defined
        ]
        if runs_as_script:
            mains = [
                one for one in self._module.body if isinstance(one, ast.If) and "__main__" in ast.unparse(one.test)
            ]
            waiting += [node for one in mains for node in one.body]
        waiting += [self._defined[name] for name in entries if name in self._defined]
        seen: set[str] = entries & set(self._defined)
        while waiting:
            for node in _unconditional(waiting.pop()):
                if isinstance(node, ast.Call):
                    yield node
                if isinstance(node, ast.Name) and node.id in self._defined and node.id not in seen:
                    seen.add(node.id)
                    waiting.append(self._defined[node.id])

    def dotted(self, node: ast.expr) -> str:
        """The dotted name of what is imported or built in; empty for everything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        if node.id not in self._imported:
            return "open" if node.id == "open" and not parts and "open" not in {*self._bound, *self._defined} else ""
        name = ".".join([self._imported[node.id], *parts])
        return name.removeprefix("tensorflow.") if name.startswith("tensorflow.keras.") else name

    def read_by(self, call: ast.Call) -> ast.expr | None:
        """The path that a call reads from; None if it reads none."""
        name = self.dotted(call.func)
        first = call.args[0] if call.args else None
        if name in _OPENERS:
            return first if _reads(call, 1) else None
        if name in _READERS:
            return first
        if name in _VOCABULARIES:
            return next((one.value for one in call.keywords if one.arg == "vocabulary"), None)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
            made = call.func.value
            is_path = isinstance(made, ast.Name | ast.BinOp) or (
                isinstance(made, ast.Call) and self.dotted(made.func) in _PATHS
            )
            return made if is_path and self._is_path(made) and _reads(call, 0) else None
        return None

    def _is_path(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._values and self._is_path(self._values[node.id])
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.Div) and self._is_path(node.left)
        return isinstance(node, ast.Call) and self.dotted(node.func) in _PATHS

    def text(self, node: ast.expr) -> tuple[str, list[str]]:
        """The path that an expression is, and the texts and names in it; both empty if it is none for sure."""
        if isinstance(node, ast.Constant):
            return (node.value, [node.value]) if isinstance(node.value, str) else ("", [])
        if isinstance(node, ast.Name) and node.id in self._values:
            path, _ = self.text(self._values[node.id])
            return path, [node.id] if path else []
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Call) and self.dotted(node.func) in (*_PATHS, "os.path.join"):
            parts = node.args
        told = [self.text(part) for part in parts]
        if not told or not all(path for path, _ in told):
            return "", []
        return str(PurePosixPath(*(path for path, _ in told))), [word for _, words in told for word in words]


def _reads(call: ast.Call, place: int) -> bool:
    """Whether a call of an ``open`` reads; one whose mode nobody sees does not for sure."""
    mode = (
        call.args[place]
        if len(call.args) > place
        else next((k.value for k in call.keywords if k.arg == "mode"), None)
    )
    return mode is None or (
        isinstance(mode, ast.Constant) and isinstance(mode.value, str) and not set(mode.value) & set("wax+")
    )


def _unconditional(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those within it that run whenever it does; functions inside run when they are called."""
    yield node
    guarded = isinstance(node, ast.With) and any("suppress" in ast.unparse(one.context_expr) for one in node.items)
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield from _unconditional(node.test)
    elif isinstance(node, ast.BoolOp):
        yield from _unconditional(node.values[0])
    elif not guarded and not isinstance(node, ast.Try | ast.TryStar | ast.Match):
        for child in ast.iter_child_nodes(node):
            yield from _unconditional(child)
