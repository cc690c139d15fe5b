"""Exports and predictions in folders and in object stores, and artifacts that are fetched from there."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from elasticdl_api.files.access import zip_pieces
from elasticdl_api.places.digests import ArtifactChangedError
from elasticdl_api.places.stored_artifacts import StoredArtifact
from elasticdl_core.errors import NotFoundError
from elasticdl_core.path_policy import is_url
from elasticdl_runtime.object_store import ObjectStore
from elasticdl_worker.trainers.output_files import OutputFile, delivered, describe_folder, output_folder
from tests.contract.stores.test_checkpoints import names_in

pytestmark = [pytest.mark.contract, pytest.mark.timeout(120)]


def exported(place: str, *names: str) -> list[OutputFile]:
    """An export of some files, as a framework writes it."""
    with output_folder(place) as folder:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"content of {name}")
        files = [one for one in describe_folder(folder) if one["name"] in names]
        return delivered(files, place)


def test_an_export_is_where_it_is_said_to_be(place: str) -> None:
    files = exported(place, "model.keras", "saved_model/variables/a", "README.json")
    assert {one["name"] for one in files} == names_in(place)
    for one in files:
        assert one["path"] == (f"{place}/{one['name']}" if is_url(place) else str(Path(place, one["name"]).resolve()))


def test_what_an_earlier_export_left_in_a_model_of_many_files_goes(place: str) -> None:
    if not is_url(place):
        pytest.skip("of a folder the framework replaces it")
    ObjectStore(place).put("somebody/else", b"x")
    exported(place, "model.keras", "saved_model/old", "saved_model/b")
    exported(place, "model.keras", "saved_model/new", "saved_model/b")
    assert names_in(place) == {"model.keras", "saved_model/new", "saved_model/b", "somebody/else"}


def test_an_export_that_fails_puts_nothing(place: str) -> None:
    if not is_url(place):
        pytest.skip("a folder has what was written")
    with pytest.raises(ZeroDivisionError), output_folder(place) as folder:
        (folder / "half").write_text("x")
        raise ZeroDivisionError
    assert not names_in(place)


def artifacts_of(place: str) -> list[StoredArtifact]:
    if not is_url(place):
        pytest.skip("a folder")
    files = exported(place, "model.keras", "saved_model/a")
    return [StoredArtifact(one["path"], one["name"], one["size"], one["sha256"]) for one in files]


def test_artifacts_are_fetched_as_they_were_reported(place: str) -> None:
    found = artifacts_of(place)
    for one in found:
        one.require()
        assert b"".join(one.pieces()) == f"content of {one.name}".encode()
    archive = b"".join(zip_pieces((one.name, one.pieces()) for one in found))
    with zipfile.ZipFile(io.BytesIO(archive)) as zipped:
        assert {name: zipped.read(name) for name in zipped.namelist()} == {
            one.name: f"content of {one.name}".encode() for one in found
        }


def test_artifacts_that_were_changed_are_not_given_away(place: str) -> None:
    one = artifacts_of(place)[0]
    ObjectStore(place).put(one.name, b"x")
    with pytest.raises(ArtifactChangedError):
        one.require()
    ObjectStore(place).put(one.name, bytes(one.size))
    one.require()
    given = []
    with pytest.raises(ArtifactChangedError):
        given.extend(one.pieces())
    assert not given
    ObjectStore(place).delete([one.name])
    with pytest.raises(NotFoundError):
        one.require()
