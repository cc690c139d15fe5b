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
