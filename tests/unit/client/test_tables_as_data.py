"""Tables of memory as the data of a job: written once as Parquet, where its workers may read them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticdl.client import AsyncClient, Client
from elasticdl.client.table_files import write_tables
from elasticdl.data import create_data_reader
from elasticdl_core.errors import DataError, ElasticDLError, InvalidInputError, SpecError
from tests.fakes.api import TOKEN, FakeApi
from tests.unit.client.conftest import EAGER

pytestmark = pytest.mark.unit

BUNDLE = "sha256:" + "0" * 64
CODE = {"model_def": "clicks.forward", "model_bundle": BUNDLE}
ROWS = {"age": [30, 41, 52], "city": ["Bern", "Basel", "Genf"]}


class Batches:
    """A table of another library: all that is known of it is that it gives Arrow data."""

    def __init__(self, *tables: pa.Table) -> None:
        self._table = pa.concat_tables(tables)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def rows_of(name: str) -> list[Any]:
    reader = create_data_reader(name)
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "elasticdl" / "tables"


def test_tables_become_files_that_hold_their_rows(api: FakeApi, client: Client, cache: Path) -> None:
    client.submit(**CODE, training_data=pa.table(ROWS), validation_data={"age": [1], "city": ["Chur"]})
    sent = api.requests("POST", "/jobs")[0].json()
    assert Path(sent["training_data"]).parent == Path(sent["validation_data"]).parent == cache
    written = pa.parquet.read_table(sent["training_data"])
    assert written.to_pydict() == ROWS
    assert pa.parquet.read_table(sent["validation_data"]).to_pydict() == {"age": [1], "city": ["Chur"]}
    assert len(list(cache.iterdir())) == 2


async def test_the_asyncio_client_takes_tables_too_also_within_a_mapping(api: FakeApi, cache: Path) -> None:
    async with AsyncClient(api.url, TOKEN, retry=EAGER) as client:
        await client.submit({**CODE, "training_data": pa.table(ROWS)})
    sent = api.requests("POST", "/jobs")[0].json()
    assert pa.parquet.read_table(sent["training_data"]).to_pydict() == ROWS


def test_the_same_rows_are_one_file_however_they_lie_in_memory(api: FakeApi, client: Client, cache: Path) -> None:
    whole = pa.table(ROWS)
    client.submit(**CODE, training_data=whole)
    (file,) = cache.iterdir()
    state = file.stat()
    noted = whole.replace_schema_metadata({"from": "somewhere"})
    longer = pa.table({"age": [0, *ROWS["age"]], "city": ["", *ROWS["city"]]})
    for same in (Batches(whole.slice(0, 1), whole.slice(1)), noted, dict(ROWS), longer.slice(1)):
        client.submit(**CODE, training_data=same)
    assert [one.name for one in cache.iterdir()] == [file.name]
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == (state.st_mtime_ns, state.st_ino), "jobs may read it"
    assert len({request.json()["training_data"] for request in api.requests("POST", "/jobs")}) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"age": [30, 41, 53], "city": ROWS["city"]},
        {"years": ROWS["age"], "city": ROWS["city"]},
        {"age": pa.array(ROWS["age"], pa.int32()), "city": ROWS["city"]},
        {"age": [41, 30, 52], "city": ["Basel", "Bern", "Genf"]},
        {"age": [30, 41, None], "city": ROWS["city"]},
    ],
    ids=["value", "name", "type", "order", "null"],
)
def test_other_rows_are_another_file(tmp_path: Path, other: Any) -> None:
    names = write_tables({"training_data": ROWS, "validation_data": other}, tmp_path)
    assert names["training_data"] != names["validation_data"]


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    table = pa.table({"n": range(50_000)})
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: write_tables({"training_data": table}, tmp_path), range(8)))
    (file,) = tmp_path.iterdir()
    assert {name["training_data"] for name in names} == {str(file)}
    assert pa.parquet.read_table(file).equals(table)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_libraries(tmp_path: Path, library: str) -> None:
    frames = pytest.importorskip(library)
    name = write_tables({"training_data": frames.DataFrame(ROWS)}, tmp_path)["training_data"]
    assert [(row["age"], row["city"]) for row in rows_of(name)] == [(30, "Bern"), (41, "Basel"), (52, "Genf")]


def test_a_namespace_s_tables_lie_below_its_first_folder_of_data(
    api: FakeApi, client: Client, tmp_path: Path, cache: Path
) -> None:
    root = tmp_path / "team"
    root.mkdir()
    api.namespace, api.data_roots = "team", ["s3://bucket/team/", "/no/such/folder", str(root)]
    client.submit(**CODE, training_data=ROWS)
    sent = Path(api.requests("POST", "/jobs")[0].json()["training_data"])
    assert sent.parent.parent == root
    assert len(rows_of(str(sent))) == 3
    assert not cache.exists()
    (root / "own.csv").write_text("a,b\n1,2\n")
    assert len(rows_of(str(root))) == 1, "a job that reads the whole root does not read the tables of others"


@pytest.mark.parametrize("roots", [[], ["s3://bucket/team/"], ["/no/such/folder"]])
def test_a_namespace_without_a_folder_to_write_is_refused_with_what_it_has(
    api: FakeApi, client: Client, roots: list[str]
) -> None:
    api.namespace, api.data_roots = "team", roots
    with pytest.raises(
        InvalidInputError, match=r"training_data \(a dict\).*'team'.*" + (roots or ["none"])[0]
    ) as told:
        client.submit(**CODE, training_data=ROWS)
    assert "data_folder" in told.value.fix
    assert not api.requests("POST")


def test_a_cluster_elsewhere_is_not_guessed_to_see_this_machine(cache: Path) -> None:
    with (
        Client("https://elasticdl.example", TOKEN, retry=EAGER) as client,
        pytest.raises(InvalidInputError, match=r"prediction_data \(a Table\).*https://elasticdl.example") as told,
    ):
        client.submit(**CODE, type="prediction", prediction_data=pa.table(ROWS), checkpoint_dir_for_init="/c")
    assert "data_folder" in told.value.fix
    assert not cache.exists()


def test_a_chosen_folder_is_used_without_asking(api: FakeApi, client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "all, of [them]"
    folder.mkdir()
    client.submit(**CODE, training_data=ROWS, data_folder=folder)
    sent = api.requests("POST", "/jobs")[0].json()
    assert "data_folder" not in sent
    assert len(rows_of(sent["training_data"])) == 3, "commas and wildcards of a path are letters"
    assert [one.path for one in api.seen] == ["/jobs"]


def refused(client: Client, **fields: Any) -> ElasticDLError:
    with pytest.raises(ElasticDLError) as told:
        client.submit(**{**CODE, **fields})
    assert told.value.fix
    return told.value


def _bad(name: str, kind: type[ElasticDLError], words: str, **fields: Any) -> Any:
    return pytest.param(kind, words, fields, id=name)


@pytest.mark.parametrize(
    ("kind", "words", "fields"),
    [
        _bad("no rows", DataError, "training_data: the table has 0 rows of 1 columns", training_data={"a": []}),
        _bad("no columns", DataError, "training_data: the table has 0 rows of 0", training_data={}),
        _bad("lengths", DataError, "training_data: a dict is no table", training_data={"a": [1], "b": [1, 2]}),
        _bad(
            "types", DataError, "validation_data: a dict is no", training_data="/d", validation_data={"a": [1, "x"]}
        ),
        _bad("a list", SpecError, "training_data", training_data=[1, 2]),
        _bad("another field", SpecError, "minibatch_size", training_data=ROWS, minibatch_size=0),
        _bad("no table", InvalidInputError, "no data is a table", training_data="/d", data_folder="/tmp"),
        _bad(
            "no folder", InvalidInputError, "there is no folder /no/such", training_data=ROWS, data_folder="/no/such"
        ),
        _bad("a store", InvalidInputError, "no folder s3://b/c", training_data=ROWS, data_folder="s3://b/c"),
    ],
)
def test_what_cannot_be_data_is_refused_before_a_job_is_made(
    api: FakeApi, client: Client, cache: Path, kind: type[ElasticDLError], words: str, fields: dict[str, Any]
) -> None:
    told = refused(client, **fields)
    assert isinstance(told, kind)
    assert words in str(told)
    assert not api.requests("POST")
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written_is_named(api: FakeApi, client: Client, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert str(tmp_path) in str(refused(client, training_data=ROWS, data_folder=tmp_path))
    finally:
        tmp_path.chmod(0o700)


def test_a_full_or_odd_disk_is_an_error_with_the_place(
    api: FakeApi, client: Client, tmp_path: Path, broken_link: Callable[[], None]
) -> None:
    broken_link()
    told = refused(client, training_data=ROWS, data_folder=tmp_path)
    assert f"training_data: {tmp_path}/table-" in str(told)
    assert not list(tmp_path.iterdir()), "nothing is left half written"


@pytest.fixture
def broken_link(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    return lambda: monkeypatch.setattr(os, "link", fail)


def test_without_pyarrow_the_package_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("elasticdl.extras.find_spec", lambda name: None if name == "pyarrow" else object())
    assert "pyarrow" in str(refused(client, training_data=ROWS))
