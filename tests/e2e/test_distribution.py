"""The wheel and the source distribution, built and installed where the source is not."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.e2e.local_cluster import ROOT, user_environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def build(source: Path, directory: Path) -> tuple[Path, Path]:
    """Builds a wheel and a source distribution without network; returns both."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=100)
    (wheel,), (archive,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return wheel, archive


def contents(wheel: Path) -> dict[str, int]:
    """Size of each file, but for the list of all."""
    with ZipFile(wheel) as opened:
        return {one.filename: one.file_size for one in opened.infolist() if not one.filename.endswith("/RECORD")}


def test_what_is_built_runs_where_the_source_is_not(tmp_path: Path) -> None:
    wheel, archive = build(ROOT, tmp_path / "built")
    assert VERSION in wheel.name
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert contents(build(unpacked, tmp_path / "again")[0]) == contents(wheel)

    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=100)
    # The dependencies of the environment in use, without its own, editable ElasticDL: paths do not bring .pth files.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def shell(command: str) -> str:
        variables = user_environment(tmp_path)
        variables["PATH"] = f"{environment / 'bin'}:{variables['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    assert shell("elasticdl --version").startswith(f"elasticdl {VERSION},")
    assert str(packages) in shell("python -c 'import elasticdl_worker; print(elasticdl_worker.__file__)'")
    told = shell("elasticdl zoo init zoo").replace("\\\n", " ")
    generate, train = (line for line in told.splitlines() if line.startswith("  elasticdl "))
    shell(generate)
    assert "accuracy" in shell(train)
