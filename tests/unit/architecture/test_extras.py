"""A plain installation is enough for the client and the command line, and each service's extra for that service."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from elasticdl.extras import MODULES
from elasticdl_core.installation import DISTRIBUTION, install_command
from tests.fakes.api import TOKEN, FakeApi

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVICES = ("api", "scheduler", "master", "ps", "worker", "agent")
OWN = {"elasticai_api", "elasticdl", "elasticdl_preprocessing", "recordio", "tests"}
OPTIONAL = {
    "worker": {"tensorflow", "keras", "tf_keras", "pyarrow", "torch", "safetensors"},
    "sdk": {
        "PIL",
        "duckdb",
        "pyarrow",
        "tensorflow",
        "torch",
        "odps",
        "sqlglot",
        "IPython",
    },  # where the user's own model needs them
}
BLOCK = """
import sys
blocked = set(sys.argv.pop(1).split(","))
class OnlyPlain:
    def find_spec(self, name, path=None, target=None):
        if name in blocked or name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, OnlyPlain())
"""


@cache
def closure(extras: tuple[str, ...]) -> frozenset[str]:
    """Names of all distributions that an installation with these extras has."""
    found: set[str] = set()
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    waiting = [Requirement(line) for one in lists for line in one]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name == DISTRIBUTION:
            waiting += [
                Requirement(line) for one in requirement.extras for line in PROJECT["optional-dependencies"][one]
            ]
            continue
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
        ):
            continue
        known = name in found
        found.add(name)
        if known and not requirement.extras:
            continue
        for line in _requires(name):
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            ):
                waiting.append(needed)
    return frozenset(found)


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # not for this platform
        return []


@cache
def modules() -> dict[str, set[str]]:
    """By top-level module, the distributions that bring it."""
    return {top: {str(canonicalize_name(one)) for one in owners} for top, owners in packages_distributions().items()}


def provided(extras: tuple[str, ...]) -> set[str]:
    """Top-level modules that an installation with these extras has."""
    names = closure(extras)
    return {top for top, owners in modules().items() if owners & names}


def foreign_imports(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, top-level module) of all imports of what is neither ours nor Python's."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in OWN and not top.startswith("elasticdl_"):
                    yield str(path.relative_to(ROOT)), top


@pytest.mark.parametrize("service", SERVICES)
def test_the_extra_of_a_service_brings_all_that_it_and_the_runtime_import(service: str) -> None:
    present = provided((service,)) | OPTIONAL.get(service, set())
    folders = [ROOT / "services" / service, ROOT / "shared"]
    found = {one for folder in folders for one in foreign_imports(folder) if one[1] not in present}
    if service != "agent":  # which signs; others do so where they find what it takes
        found = {one for one in found if one[0] != "shared/runtime/elasticdl_runtime/authority.py"}
    if service not in ("api", "scheduler"):
        found = {one for one in found if not one[0].startswith("shared/runtime/elasticdl_runtime/database/")}
    assert found == set()


def test_a_plain_installation_brings_all_that_the_sdk_imports() -> None:
    present = provided(()) | OPTIONAL["sdk"]
    assert {found for found in foreign_imports(ROOT / "sdk") if found[1] not in present} == set()


def test_a_plain_installation_brings_no_server_and_no_framework() -> None:
    unwanted = {"numba", "sqlalchemy", "fastapi", "uvicorn", "alembic", "asyncpg", "grpcio", "redis", "tensorflow"}
    assert closure(()) & unwanted == set()


def test_each_extra_has_code_that_uses_it() -> None:
    code = "\n".join(
        path.read_text() for folder in ("sdk", "services", "shared") for path in (ROOT / folder).rglob("*.py")
    )
    words = set(re.findall(r"\w+", code))
    for extra, lines in PROJECT["optional-dependencies"].items():
        for requirement in (Requirement(line) for line in lines if extra not in ("dev", "torch-dev", "s3-dev")):
            name = canonicalize_name(requirement.name)
            if name == DISTRIBUTION:
                continue
            tops = {top for top, owners in modules().items() if name in owners} | {name.replace("-", "_")}
            assert tops & words, f"nothing uses {name}, of the extra {extra!r}"


@pytest.mark.parametrize("extra", sorted(MODULES))
def test_what_a_command_asks_for_is_what_its_extra_brings(extra: str) -> None:
    assert {module.partition(".")[0] for module in MODULES[extra]} <= provided((extra,))


def plainly(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the command line where only the packages of a plain installation can be imported."""
    # `google` is a namespace of several distributions; protobuf's part is what a plain installation lacks.
    blocked = ",".join(sorted({"google.protobuf", *modules()} - provided(()) - OWN - set(sys.stdlib_module_names)))
    code = f"{BLOCK}\nsys.argv[0] = 'elasticdl'\nfrom elasticdl.cli.main import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code, blocked, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_without_its_packages_says_which_extra_brings_them(service: str) -> None:
    blocked = ",".join(sorted({"google.protobuf", *modules()} - provided(()) - OWN - set(sys.stdlib_module_names)))
    code = f"{BLOCK}\nimport runpy\nrunpy.run_module('elasticdl_{service}', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, blocked], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 64
    assert f"error: elasticdl_{service} needs packages that are not installed: " in done.stderr
    assert install_command(service) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    with FakeApi() as api:
        yield {"ELASTICDL_API_URL": api.url, "ELASTICDL_TOKEN": TOKEN, "ELASTICDL_DATA_DIR": str(tmp_path)}


@pytest.fixture
def zoo(tmp_path: Path) -> list[str]:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part.csv").write_text("a\n1\n")
    (tmp_path / "zoo" / "net.py").write_text(
        "def forward(): return None\ndef loss(labels, predictions): return 0\n"
        "def optimizer(): return None\ndef feed(dataset, mode, metadata): return dataset\n"
    )
    return [
        f"--model_zoo={tmp_path / 'zoo'}",
        "--model_def=net.forward",
        f"--training_data={tmp_path / 'data'}",
        "--data_reader_params=type=CSV;with_header=true",
    ]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["up", "--help"], ["version"], ["jobs", "list"]]
)
def test_the_command_line_works_plainly(arguments: list[str], cluster: dict[str, str]) -> None:
    done = plainly(*arguments, environment=cluster)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_job_is_submitted_plainly(cluster: dict[str, str], zoo: list[str]) -> None:
    done = plainly("train", "--detach", "--job_name=plain", *zoo, environment=cluster)
    assert (done.returncode, done.stderr.partition(" ")[0]) == (0, "page:")
    assert "plain-1" in done.stdout


def test_status_works_plainly(cluster: dict[str, str]) -> None:
    done = plainly("status", environment=cluster)
    assert (done.returncode, done.stderr) == (0, "")
    assert cluster["ELASTICDL_API_URL"] in done.stdout
    done = plainly("status", environment={"ELASTICDL_DATA_DIR": cluster["ELASTICDL_DATA_DIR"]})
    assert done.returncode == 4
    assert "elasticdl up" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "extras"), [(["up"], ["local"]), (["train", "--local"], ["worker", "tensorflow"])]
)
def test_what_needs_more_says_which_extra(
    arguments: list[str], extras: list[str], cluster: dict[str, str], zoo: list[str]
) -> None:
    done = plainly(*arguments, *(zoo if arguments[0] == "train" else []), environment=cluster)
    assert done.returncode == 2
    assert install_command(*extras) in done.stderr
    assert "Traceback" not in done.stderr
