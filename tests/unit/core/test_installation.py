"""The command that adds an extra says where this installation came from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl_core.installation import DISTRIBUTION

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ({"url": "{folder}", "dir_info": {"editable": True}}, "pip install -e '{path}[torch,ps]'"),
        ({"url": "{folder}", "dir_info": {}}, "pip install '{path}[torch,ps]'"),
        ({"url": "{folder}/no%20more.whl", "archive_info": {}}, f"pip install '{DISTRIBUTION}[torch,ps]'"),
        ({"url": "https://host/e.whl", "archive_info": {}}, f"pip install '{DISTRIBUTION}[torch,ps]'"),
        (None, f"pip install '{DISTRIBUTION}[torch,ps]'"),
    ],
)
def test_the_command_names_where_it_came_from(tmp_path: Path, url: dict[str, object] | None, told: str) -> None:
    place = tmp_path / "a place"
    info = place / f"{DISTRIBUTION.replace('-', '_')}-7.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 7.0\n")
    if url is not None:
        (info / "direct_url.json").write_text(json.dumps(url).replace("{folder}", place.as_uri()))
    code = (
        f"import sys; sys.path[:0] = {[str(place), str(ROOT / 'shared' / 'core')]!r}\n"
        "from elasticdl_core.installation import install_command, own_version\n"
        "print(own_version(), install_command('torch', 'ps'))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "7.0 " + told.format(path=place)
