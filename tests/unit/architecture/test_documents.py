"""The documents are whole: links lead somewhere, services are described, no foreign words for our own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not {part for part in path.relative_to(ROOT).parts if part.startswith(".") or part == "node_modules"}
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")

_QUOTED = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:[a-z_][\w.-]*/)+(?:[\w.-]+)?")
_MODULE = re.compile(r"elasticdl(?:_\w+)?(?:\.\w+)+")
_NO_PATHS = re.compile(r"application/|text/|fork/|.*/<")


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").exists()


def _there(text: str, places: list[Path]) -> bool:
    """Whether a path, or a module without its ending, is below one of the places."""
    return any((place / text).exists() or (place / f"{text}.py").exists() for place in places) or bool(
        _NO_PATHS.match(text)
    )


def _is_module(text: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = text.split(".")
    names = [Path(*parts), Path(*parts[:-1])] if len(parts) > 2 else [Path(*parts)]
    for folder in {package.parent for package in PACKAGES}:
        for name in names:
            if (folder / name).is_dir() or (folder / name).with_suffix(".py").exists():
                return True
    return False


def test_there_are_documents() -> None:
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {path.name for path in DOCUMENTS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = [link for link in _LINK.findall(document.read_text()) if "://" not in link]
    assert [link for link in targets if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("service", ["api", "scheduler", "master", "ps", "worker", "agent"])
def test_each_service_says_what_it_is_and_how_it_fails(service: str) -> None:
    text = (ROOT / "services" / service / "README.md").read_text().lower()
    assert "setting" in text
    assert "fail" in text


PACKAGES = sorted(
    folder
    for place in ("sdk", "shared", "services")
    for folder in (ROOT / place).rglob("*")
    if folder.is_dir() and folder.parent.parent in (ROOT, ROOT / "shared", ROOT / "services") and _is_package(folder)
)
MAPS = [ROOT / "ARCHITECTURE.md", *sorted(ROOT.glob("services/*/README.md"))]


@pytest.mark.parametrize("document", MAPS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_and_module_named_in_a_map_is_there(document: Path) -> None:
    quoted = _QUOTED.findall(re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL))
    own = [folder for folder in PACKAGES if document.parent in folder.parents and document.parent != ROOT]
    places = [ROOT, document.parent, *own, *(folder.parent for folder in PACKAGES)]
    missing = [text for text in quoted if _PATH.fullmatch(text) and not _there(text, places)]
    modules = [text for text in quoted if _MODULE.fullmatch(text) and not _is_module(text)]
    assert (missing, modules) == ([], [])


@pytest.mark.parametrize(
    "sought",
    [
        *("what-if", "master's launch", "early stopping", "staleness", "id map", "lease of a task, its expiry"),
        *("checkpoint", "rotation", "quotas", "drain of a worker", "zygote", "hot rows"),
        *("rate limits", "examination", "bounds of a job's fields", "paths that a job", "tokens of jobs", "feeds"),
    ],
)
def test_the_index_says_where_it_is(sought: str) -> None:
    _, _, index = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where is ...?")
    rows = [line for line in index.partition("## ")[0].splitlines() if line.startswith("| ")]
    (row,) = [line for line in rows if sought in line.split("|")[1]]
    assert ".py`" in row.split("|")[2]
