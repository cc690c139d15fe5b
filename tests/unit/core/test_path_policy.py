"""Which paths and URLs a job may name: a table of places, and what becomes of them for whom."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_core.errors import SpecError
from elasticdl_core.job import JobSpec
from elasticdl_core.path_policy import PathPolicy, check_places

REACH = PathPolicy(
    read=("/data", "s3://bucket/team"), write=("/teams/a",), closed=("/srv/cluster", "/teams/a/closed")
)
ROOTED = PathPolicy(read=("/",), write=("/srv/cluster/jobs/own-abc123",), closed=("/srv/cluster",))


def spec_with(**fields: Any) -> JobSpec:
    zoo = {} if "model_zoo" in fields else {"model_bundle": f"sha256:{'0' * 64}"}
    # Unchecked otherwise: of some places JobSpec itself refuses the characters.
    return JobSpec(**{"model_def": "m.f", "training_data": "/data/x", **zoo, **fields})


def refused(spec: JobSpec, reach: PathPolicy | None) -> list[str]:
    try:
        check_places(spec, reach)
    except SpecError as error:
        assert all(problem.fix for problem in error.problems)
        return [problem.field for problem in error.problems]
    return []


NO_PLACE_FOR_ANYBODY = [
    "out",
    "./out",
    "../out",
    "~/out",
    "~root/out",
    "/a/../etc",
    "/a/..",
    "//host/share",
    "\\\\host\\share",
    "C:\\out",
    "/a\0b",
    "/a\nb",
    "file:///out",
    "weird://x",
    "https://host/out",
    "hdfs://host/out",
    "memory://x",
    "simplecache::file:///out",
    "zip://x::file:///out.zip",
]


@pytest.mark.parametrize("place", NO_PLACE_FOR_ANYBODY)
@pytest.mark.parametrize("field", ["output", "checkpoint_dir", "checkpoint_dir_for_init", "model_zoo"])
def test_what_is_no_absolute_path_is_refused_for_everybody(field: str, place: str) -> None:
    assert refused(spec_with(**{field: place}), None) == [field]
    assert field in refused(spec_with(**{field: place}), REACH)


STORED = ("output", "checkpoint_dir", "checkpoint_dir_for_init")


@pytest.mark.parametrize("field", STORED)
@pytest.mark.parametrize("place", ["s3://bucket", "s3://bucket/team/out/", "gs://bucket/a-b/c_d", "az://container/x"])
def test_what_a_job_makes_may_lie_in_a_store(field: str, place: str) -> None:
    assert refused(spec_with(**{field: place}), None) == []


@pytest.mark.parametrize("field", STORED)
@pytest.mark.parametrize(
    "place",
    [
        "s3://", "s3:///out", "s3://key:secret@bucket/x", "s3://bucket/../other", "s3://bucket/a//b", "s3://bucket/./a",
        "s3://bucket/*", "s3://bucket/a b", "s3://bucket/a\nb", "s3://bucket/a?versionId=1", "s3://bucket/a#b",
        "s3://bucket/%2e%2e/x", "S3://bucket/x", "simplecache::s3://bucket/x", "s3://bucket/x::s3://other/y",
    ],
)  # fmt: skip
def test_urls_that_name_no_folder_of_a_store_are_refused(field: str, place: str) -> None:
    assert refused(spec_with(**{field: place}), None) == [field]


def test_stores_of_a_tenant_lie_below_its_roots() -> None:
    reach = PathPolicy(read=("s3://shared/models",), write=("s3://team",))
    assert refused(spec_with(output="s3://team/out", training_data="s3://team/x"), reach) == []
    for field, place in (
        ("output", "s3://shared/models/x"),
        ("checkpoint_dir", "s3://teams"),
        ("output", "gs://team"),
    ):
        assert refused(spec_with(**{field: place}, training_data="s3://team/x"), reach) == [field]
    given = {"checkpoint_dir_for_init": "s3://shared/models/7", "training_data": "s3://team/x"}
    assert refused(spec_with(**given), reach) == []


def test_code_lies_in_no_store() -> None:
    assert refused(spec_with(model_zoo="s3://bucket/zoo"), None) == ["model_zoo"]


READABLE = [
    "/data",
    "/data/",
    "/data/train",
    "/data/*.csv",
    "/data/**/part-[0-9]*",
    "/data/a,/teams/a/b",
    "file:///data/x",
    "s3://bucket/team",
    "s3://bucket/team/part-*",
    "S3://bucket/team/x",
    "/teams/a/x",
]
UNREADABLE = [
    "/",
    "/*",
    "/dat*",
    "/data*/x",
    "/database",
    "/etc/passwd",
    "/data/../etc/passwd",
    "/data/x,/etc/passwd",
    "data/train",
    "~/data",
    "//data",
    "file:///etc/passwd",
    "file://data/x",
    "FILE:///etc/passwd",
    "file:/etc/passwd",
    "local:///data/x",
    "memory://x",
    "reference:///data/x",
    "dir::file:///data",
    "simplecache::s3://bucket/team/x",
    "zip://x.csv::file:///etc/x.zip",
    "s3://bucket",
    "s3://bucket/*",
    "s3://bucket/teams",
    "s3://bucket/team/../other",
    "s3://bucket/team/%2e%2e/other",
    "s3://other/team/x",
    "gs://bucket/team/x",
    "/srv/cluster/token",
    "/teams/b",
    "/teams/a/closed/x",
    "\\\\host\\data",
    "/data/a\0b",
    "/proc/self/root/etc/passwd",
]


@pytest.mark.parametrize("field", ["training_data", "validation_data", "prediction_data"])
@pytest.mark.parametrize(("place", "fits"), [*((p, True) for p in READABLE), *((p, False) for p in UNREADABLE)])
def test_data_of_a_tenant_lie_below_its_roots(field: str, place: str, fits: bool) -> None:
    assert refused(spec_with(**{field: place}), REACH) == ([] if fits else [field])


@pytest.mark.parametrize("place", [p for p in (*READABLE, *UNREADABLE) if "\0" not in p])
def test_who_runs_the_cluster_may_read_anything(place: str) -> None:
    assert refused(spec_with(training_data=place), None) == []


@pytest.mark.parametrize("field", ["output", "checkpoint_dir"])
def test_what_may_be_read_may_not_be_written(field: str) -> None:
    assert refused(spec_with(**{field: "/data/out"}), REACH) == [field]
    assert refused(spec_with(**{field: "/teams/a/out"}), REACH) == []
    assert refused(spec_with(**{field: "/srv/cluster/jobs/own-abc123/artifacts"}), ROOTED) == []
    assert refused(spec_with(**{field: "/srv/cluster/jobs/other-abc123/artifacts"}), ROOTED) == [field]


def test_a_root_above_the_clusters_own_folder_does_not_open_it() -> None:
    assert refused(spec_with(training_data="/anything"), ROOTED) == []
    for place in ("/srv/cluster", "/srv/cluster/secret", "/srv/cluster/jobs/other-abc123/artifacts"):
        assert refused(spec_with(training_data=place), ROOTED) == ["training_data"], place


def test_names_that_are_no_paths_need_a_reader_of_their_own() -> None:
    assert refused(spec_with(training_data="table_of_clicks"), REACH) == ["training_data"]
    assert refused(spec_with(training_data="table_of_clicks", custom_data_reader="read"), REACH) == []
    for place in ("/etc/passwd", "~x", "odps:x", "local:///etc"):
        assert refused(spec_with(training_data=place, custom_data_reader="read"), REACH) == ["training_data"], place


@pytest.mark.parametrize(("folder", "fits"), [("off", True), ("/teams/a/i", True), ("/data/i", False), ("i", False)])
def test_the_folder_of_indexes_is_written(folder: str, fits: bool) -> None:
    assert (refused(spec_with(data_reader_params={"index_cache": folder}), REACH) == []) is fits


def test_a_refusal_does_not_tell_what_is_there() -> None:
    with pytest.raises(SpecError) as there:
        check_places(spec_with(training_data="/etc/passwd"), REACH)
    with pytest.raises(SpecError) as gone:
        check_places(spec_with(training_data="/etc/nothing"), REACH)
    assert str(there.value).replace("passwd", "nothing") == str(gone.value)


def test_a_reach_survives_json() -> None:
    assert PathPolicy.from_mapping(REACH.to_mapping()) == REACH
