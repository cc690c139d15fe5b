"""Samples that ``feed`` may return, and what is refused."""

from __future__ import annotations

import collections
import functools
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elasticdl.data import create_data_reader
from elasticdl.torch import Minibatches
from elasticdl_core.errors import ElasticDLError, UserCodeError
from elasticdl_core.skips import SkipReason
from elasticdl_worker.trainers.torch.input.pipeline import TorchInputPipeline
from elasticdl_worker.trainers.torch.input.returned import as_bytes, count_rows
from elasticdl_worker.trainers.training_step import training_step
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit


def samples(dataset: Any, mode: str, metadata: Any) -> Any:
    for record in dataset:
        values = [int(record[name]) for name in metadata.column_names]
        yield np.array(values[1:]), float(values[0])


class Listed(torch.utils.data.Dataset[Any]):
    """All samples of a task."""

    def __init__(self, records: Any) -> None:
        self.records = list(records)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: int) -> Any:
        return self.records[place]


FEEDS = {
    "a generator": samples,
    "a list": lambda d, m, meta: list(samples(d, m, meta)),
    "a dataset": lambda d, m, meta: Listed(samples(d, m, meta)),
    "a loader": lambda d, m, meta: torch.utils.data.DataLoader(Listed(samples(d, m, meta)), batch_size=16),
    "minibatches": lambda d, m, meta: Minibatches(
        torch.utils.data.DataLoader(Listed(samples(d, m, meta)), batch_size=16)
    ),
}


def pipeline(feed: Any, clicks: Path, **entries: Any) -> tuple[TorchInputPipeline, Any]:
    reader = create_data_reader(str(clicks), 600, {"with_header": False})
    module = ModelModule(Path("m.py"), (), lambda: None, feed=feed, **entries)
    return TorchInputPipeline(reader, module, "training", 16), next(iter(reader.create_shards()))


@pytest.mark.parametrize("name", FEEDS)
def test_all_forms_of_samples_give_the_same_minibatches(name: str, clicks: Path) -> None:
    made, shard = pipeline(FEEDS[name], clicks)
    batches = list(made.minibatches(shard))
    assert [batch.records for batch in batches] == [16] * 37 + [8]
    assert made.intake.fed == 600
    ids = torch.cat([batch.features for batch in batches]).numpy()
    np.testing.assert_array_equal(ids, np.loadtxt(clicks, delimiter=",", dtype=np.int64)[:, 1:])
    assert made.ordered is (name == "a generator"), "only of one record after the other it is known"


def test_a_feed_that_leaves_records_out_is_not_in_order(clicks: Path) -> None:
    made, shard = pipeline(lambda d, m, meta: (s for s in samples(d, m, meta) if s[0][0] % 2), clicks)
    odd = int((np.loadtxt(clicks, delimiter=",", dtype=np.int64)[:600, 1] % 2).sum())
    assert sum(batch.records for batch in made.minibatches(shard)) == odd
    assert not made.ordered


def loader_of(dataset: Any, m: Any, meta: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(Listed(samples(dataset, m, meta)), **options)


class Rows(torch.utils.data.IterableDataset[Any]):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def sampled(*args: Any, batch_size: int) -> Any:
    chosen = torch.utils.data.BatchSampler(range(600), batch_size, drop_last=False)
    return loader_of(*args, batch_sampler=chosen)


@pytest.mark.parametrize("loader", [loader_of, lambda *a, **o: Minibatches(loader_of(*a, **o)), sampled])
@pytest.mark.parametrize(("size", "is_taken"), [(1, False), (15, False), (16, True), (17, False)])
def test_minibatches_of_a_loader_that_are_no_updates_of_the_job_are_refused(
    loader: Any, size: int, is_taken: bool, clicks: Path
) -> None:
    feed = functools.partial(loader, batch_size=size)
    made, shard = pipeline(feed, clicks)
    made._mode = "evaluation"
    assert sum(one.records for one in made.minibatches(shard)) == 600
    made, shard = pipeline(feed, clicks)
    for _ in range(2):
        if is_taken:
            assert {one.records for one in made.minibatches(shard)} == {16, 8}
            continue
        with pytest.raises(UserCodeError, match=f"batch_size={size}, and an update of this job has 16 rec") as caught:
            next(made.minibatches(shard))
        assert f"batch_size=16, or the job --minibatch_size {size}" in caught.value.fix


def twice(ids: Any, label: Any) -> list[Any]:
    return [(ids, label)] * 2


LEFT_OUT: dict[str, tuple[Any, int, int]] = {
    "drop_last": (lambda d, m, meta: loader_of(d, m, meta, batch_size=16, drop_last=True), 96, 4),
    "drop_last of minibatches": (
        lambda d, m, meta: Minibatches(loader_of(d, m, meta, batch_size=16, drop_last=True)),
        96,
        4,
    ),
    "a sampler of some": (lambda d, m, meta: loader_of(d, m, meta, batch_size=16, sampler=range(0, 100, 5)), 20, 80),
    "a sampler of one, often": (lambda d, m, meta: loader_of(d, m, meta, batch_size=16, sampler=[3] * 100), 100, 99),
    "the same by samples": (lambda d, m, meta: loader_of(d, m, meta, batch_size=None, sampler=[3] * 100), 100, 99),
    "batches of a sampler": (lambda d, m, meta: loader_of(d, m, meta, batch_sampler=[[1, 2], [3]]), 3, 97),
    "a filter": (lambda d, m, meta: (s for s in samples(d, m, meta) if 0 * s[1]), 0, 100),
    "a subset": (lambda d, m, meta: torch.utils.data.Subset(Listed(samples(d, m, meta)), range(60)), 60, 40),
    "twice": (lambda d, m, meta: (one for sample in samples(d, m, meta) for one in twice(*sample)), 200, 0),
    "all, in another order": (lambda d, m, meta: loader_of(d, m, meta, batch_size=16, shuffle=True), 100, 0),
    "looked at first": (lambda d, m, meta: [len(list(d)), samples(d, m, meta)][1], 100, 0),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_feed_gives_nothing_for_counts_as_passed_over(name: str, clicks: Path) -> None:
    feed, rows, left_out = LEFT_OUT[name]
    made, shard = pipeline(feed, clicks)
    for start in (0, 100):
        part = type(shard)(shard.name, start, start + 100)
        assert sum(batch.records for batch in made.minibatches(part)) == rows
        assert (made.intake.fed, made.intake.skips.count(SkipReason.FEED)) == (rows, left_out)
    if left_out:
        assert f"records 100 to 200 of {clicks}" in made.intake.skips.reasons[SkipReason.FEED].example


def forever(d: Any, m: Any, meta: Any) -> Any:
    while True:
        yield from samples(d, m, meta)


def in_a_circle(d: Any, m: Any, meta: Any) -> Any:
    for record in itertools.cycle(d):
        yield from samples([record], m, meta)


def first_of(m: Any, meta: Any, record: Any) -> Any:
    return next(samples([record], m, meta))


def drawn(d: Any, m: Any, meta: Any) -> Any:
    rows = list(samples(d, m, meta))
    while True:
        yield rows[0]


def windowed(d: Any, m: Any, meta: Any, rows: int = 54) -> Any:
    held = collections.deque[Any](maxlen=rows)
    for ids, label in samples(d, m, meta):
        held.append(ids)
        if len(held) == rows:
            yield np.stack(held), label


def averaged(d: Any, m: Any, meta: Any) -> Any:
    mean = 0.0
    for ids, label in samples(d, m, meta):
        mean = 0.9 * mean + label
        yield ids, mean


class Windows(Listed):
    def __len__(self) -> int:
        return len(self.records) - 5

    def __getitem__(self, place: int) -> Any:
        return np.stack([ids for ids, _ in self.records[place : place + 5]]), self.records[place + 5][1]


def chunked(size: int) -> Any:
    return lambda d, m, meta: ((np.stack([r[0] for r in c]), c[0][1]) for c in in_chunks(samples(d, m, meta), size))


def in_chunks(rows: Any, size: int) -> Any:
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


COMBINED: dict[str, Any] = {
    "a deque": windowed,
    "a short deque": functools.partial(windowed, rows=2),
    "pairwise": lambda d, m, meta: ((a[0] - b[0], b[1]) for a, b in itertools.pairwise(samples(d, m, meta))),
    "chunks of 2": chunked(2),
    "chunks of 8": chunked(8),
    "chunks of 100": chunked(100),
    "a running mean": averaged,
    "a dataset of windows": lambda d, m, meta: Windows(samples(d, m, meta)),
    "its loader": lambda d, m, meta: torch.utils.data.DataLoader(Windows(samples(d, m, meta)), batch_size=16),
    "its minibatches": lambda d, m, meta: Minibatches(
        torch.utils.data.DataLoader(Windows(samples(d, m, meta)), batch_size=16, shuffle=True)
    ),
    "a filter by numbers": lambda d, m, meta: (s for n, s in enumerate(samples(d, m, meta)) if n % 2),
    "of random rows": lambda d, m, meta: (
        (a[0] + np.random.rand(), b[1]) for a, b in itertools.pairwise(samples(d, m, meta))
    ),
}


@pytest.mark.parametrize("name", COMBINED)
def test_a_feed_that_makes_samples_of_several_records_is_refused_by_name(name: str, clicks: Path) -> None:
    made, shard = pipeline(COMBINED[name], clicks)
    few = type(shard)(shard.name, 0, 2)
    for records in (few, shard, shard):  # each time: a task that failed is tried again
        with pytest.raises(UserCodeError, match=r"rows of several records together: of \d+ records") as caught:
            list(made.minibatches(records))
        assert "window=N;stride=1;group_by=COLUMN" in caught.value.fix


def test_a_feed_that_draws_is_no_feed_that_combines_and_draws_what_it_would_have(clicks: Path) -> None:
    def noisy(d: Any, m: Any, meta: Any) -> Any:
        rows = [s for s in samples(d, m, meta) if np.random.rand() < 0.5]
        np.random.shuffle(rows)  # type: ignore[arg-type]
        return rows

    made, shard = pipeline(noisy, clicks)
    np.random.seed(3)
    found = [float(one) for batch in made.minibatches(shard) for one in batch.labels]
    np.random.seed(3)
    labels = np.loadtxt(clicks, delimiter=",", max_rows=600)[:, 0]
    kept = [float(label) for label in labels if np.random.rand() < 0.5]
    np.random.shuffle(kept)
    assert found == kept


def test_samples_of_equal_content_are_equal_wherever_in_memory_they_are() -> None:
    ones = [Listed([np.arange(3)]), Listed([np.arange(3)])]
    assert as_bytes(ones[0]) == as_bytes(ones[1]) != as_bytes(Listed([np.arange(4)]))


def noised(d: Any, m: Any, meta: Any) -> Any:
    draw = torch.Generator().manual_seed(7)  # anew for each task
    for ids, label in samples(d, m, meta):
        yield ids + torch.rand((), generator=draw).item(), label


def test_a_feed_that_draws_by_a_generator_of_its_own_is_no_feed_that_combines(clicks: Path) -> None:
    made, shard = pipeline(noised, clicks)
    assert sum(len(batch.labels) for batch in made.minibatches(shard)) == shard.records


def test_a_feed_that_leaves_records_out_by_chance_is_never_refused(clicks: Path) -> None:
    seeds = itertools.count()

    def some(d: Any, m: Any, meta: Any) -> Any:
        draw = np.random.default_rng(next(seeds))  # other draws each time, as without a seed
        return (s for s in samples(d, m, meta) if draw.random() < 0.5)

    for _ in range(30):  # in some of which the numbers of two trials are equal
        made, shard = pipeline(some, clicks)
        assert next(made.minibatches(shard)) is not None


UNFIT: dict[str, tuple[Any, str]] = {
    "a circle": (lambda d, m, meta: itertools.cycle(samples(d, m, meta)), "itertools.cycle.*--num_epochs"),
    "a circle of records": (in_a_circle, "itertools.cycle"),
    "a mapped circle": (
        lambda d, m, meta: map(functools.partial(first_of, m, meta), itertools.cycle(d)),
        "itertools.cycle",
    ),
    "a circle in a loader": (
        lambda d, m, meta: torch.utils.data.DataLoader(Rows(in_a_circle(d, m, meta)), batch_size=16),
        "itertools.cycle",
    ),
    "again and again": (forever, "begins its records again.*--num_epochs"),
    "without end": (drawn, "samples without end"),
    "the first ones": (lambda d, m, meta: itertools.islice(samples(d, m, meta), 70), "took 70 of records 0 to 100"),
    "its own": (lambda d, m, meta: [(np.ones(2), 1.0)] * 100, "without taking any of the records"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_feed_of_other_records_or_without_end_is_refused(name: str, clicks: Path) -> None:
    feed, said = UNFIT[name]
    made, shard = pipeline(feed, clicks)
    with pytest.raises(UserCodeError) as caught:
        list(made.minibatches(type(shard)(shard.name, 0, 100)))
    assert re.search(said, f"{caught.value.message} {caught.value.fix}"), caught.value


def wide(dataset: Any, mode: str, metadata: Any) -> Any:
    for ids, label in samples(dataset, mode, metadata):
        yield np.resize(ids, 16).astype(np.float32), np.resize(label, 16)


def without_odd(batch: list[Any]) -> Any:
    return torch.utils.data.default_collate([one for one in batch if one[0][0] % 2 == 0])


def by_column(batch: list[Any]) -> Any:
    features, labels = torch.utils.data.default_collate(batch)
    return features[:, :9].T, labels[:, :9].T


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("collate", [without_odd, by_column])
def test_records_that_collate_leaves_out_are_none_of_those_in_the_model(
    collate: Any, loader: bool, clicks: Path
) -> None:
    def loading(dataset: Any, mode: str, metadata: Any) -> Any:
        return loader_of_wide(dataset, mode, metadata, batch_size=16, collate_fn=collate)

    made, shard = pipeline(loading, clicks) if loader else pipeline(wide, clicks, collate=collate)
    even = int((np.loadtxt(clicks, delimiter=",", dtype=np.int64)[:592, 1] % 2 == 0).sum())
    shard = type(shard)(shard.name, 0, 592)
    batches = list(made.minibatches(shard))
    assert sum(one.records for one in batches) == (592 if collate is by_column else even)
    known = collate is by_column and not loader
    assert [one.first for one in batches] == [16 * number if known else None for number in range(len(batches))]
    assert made.ordered is known, "which record a row is of is told where it is known alone"


def by_content(batch: list[Any]) -> Any:
    return torch.utils.data.default_collate(sorted(batch, key=lambda one: float(one[0])))


def with_offsets(batch: list[Any]) -> Any:
    sizes = [1 + int(one[0]) % 3 for one in batch]
    words = torch.cat([one[:size] for one, size in zip(batch, sizes, strict=True)])
    return words, torch.tensor([0, *itertools.accumulate(sizes)][:-1])


def reversed_order(batch: list[Any]) -> Any:
    return torch.stack(batch[::-1])


def across(batch: list[Any]) -> Any:
    return torch.stack(batch, 1)


IN_ORDER = (None, torch.utils.data.default_collate, torch.stack, across, with_offsets)


@pytest.mark.parametrize("collate", [*IN_ORDER, by_content, reversed_order])
def test_rows_that_collate_puts_into_another_order_are_of_no_known_record(collate: Any, clicks: Path) -> None:
    def features(dataset: Any, mode: str, metadata: Any) -> Any:
        return (torch.tensor(ids) for ids, _ in samples(dataset, mode, metadata))

    made, shard = pipeline(features, clicks, collate=collate)
    made._mode = "prediction"
    firsts = [one.first for one in made.minibatches(type(shard)(shard.name, 0, 48))]
    assert firsts == ([0, 16, 32] if collate in IN_ORDER else [None] * 3)


def loader_of_wide(dataset: Any, mode: str, metadata: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(Listed(wide(dataset, mode, metadata)), **options)


T, B, F = 6, 4, 3
BY_TIME = torch.zeros(T, B, F)
BAGS = (torch.zeros(11, dtype=torch.int64), torch.tensor([0, 3, 5, 9]))


@pytest.mark.parametrize(
    ("features", "labels", "counted", "rows"),
    [
        (BY_TIME, torch.zeros(B), B, B),
        (BY_TIME, torch.zeros(B), None, B),
        (BY_TIME, torch.zeros(T, B), B, B),
        (BY_TIME, None, B, B),
        (BAGS, torch.zeros(B), None, B),
        (BAGS, None, B, B),
        (BAGS, (torch.zeros(9), torch.zeros(B)), B, B),
        (BAGS, (torch.zeros(9), torch.zeros(B)), None, "labels .*first dimensions are 4, 9"),
        (BAGS, None, None, "features .*first dimensions are 4, 11.*DataLoader with a batch_size"),
        ({"x": torch.zeros(B, 2), "size": torch.tensor(2)}, torch.zeros(B), None, B),
        (torch.zeros(3, 2), torch.zeros(3), 5, 3),  # a collate that left two out
        (torch.zeros(3, B), torch.zeros(3), B, 3),  # one, of as many columns as samples
        (torch.zeros(3, 3, B, B), torch.zeros(3), B, 3),
        (torch.zeros(3, 2, B), torch.zeros(3, 1), B, 3),
        (torch.zeros(B), torch.tensor(1.0), None, "first dimension is that of the records"),
        ("text", torch.zeros(B), None, "first dimension is that of the records"),
    ],
)
def test_records_of_a_minibatch_are_counted_by_samples_or_labels(
    features: Any, labels: Any, counted: int | None, rows: int | str
) -> None:
    if isinstance(rows, int):
        assert count_rows(features, labels, counted) == rows
        return
    with pytest.raises(UserCodeError) as caught:
        count_rows(features, labels, counted)
    assert re.search(rows, f"{caught.value.message} {caught.value.fix}"), caught.value


def test_a_last_minibatch_of_one_record_is_named_where_batch_norm_needs_more(clicks: Path) -> None:
    made, shard = pipeline(samples, clicks)
    norm = torch.nn.BatchNorm1d(3)
    seen = 0
    with pytest.raises(UserCodeError) as caught:
        for batch in made.minibatches(type(shard)(shard.name, 100, 133)):
            with training_step(made._module, [batch]):
                norm(batch.features.float())
            seen += batch.records
    assert seen == 32
    assert (
        f"one record (records 132 to 133 of {clicks}) raised ValueError: Expected more than 1" in caught.value.message
    )
    assert re.search("--minibatch_size.*GroupNorm", caught.value.fix)
    with pytest.raises(UserCodeError, match="a training step raised ValueError: other"), training_step(made._module):
        raise ValueError("other")


def test_features_by_time_and_bags_are_counted_in_each_kind_of_minibatch(clicks: Path) -> None:
    def by_time(rows: Any) -> Any:
        return torch.stack([torch.as_tensor(ids) for ids, _ in rows], 1), torch.tensor([label for _, label in rows])

    feeds = [
        (lambda d, m, meta: loader_of(d, m, meta, batch_size=16, collate_fn=by_time), {}),
        (lambda d, m, meta: Minibatches(loader_of(d, m, meta, batch_size=16, collate_fn=by_time)), {}),
        (samples, {"collate": by_time}),
    ]
    for feed, entries in feeds:
        made, shard = pipeline(feed, clicks, **entries)
        found = [(len(one.features), one.records) for one in made.minibatches(type(shard)(shard.name, 0, 40))]
        assert found == [(3, 16), (3, 16), (3, 8)]


def test_a_bad_record_is_named(clicks: Path) -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        for number, sample in enumerate(samples(dataset, mode, metadata)):
            if number == 37:
                raise ValueError("no click")
            yield sample

    made, shard = pipeline(feed, clicks)
    with pytest.raises(ElasticDLError, match=r"record.* 37 .*train.csv.*ValueError: no click"):
        list(made.minibatches(shard))


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        (lambda d, m, meta: 3, "returned a int"),
        (lambda d, m, meta: ((ids,) for ids, _ in samples(d, m, meta)), "gives"),
        (
            lambda d, m, meta: torch.utils.data.DataLoader(Listed(samples(d, m, meta)), num_workers=2),
            "processes of its own",
        ),
    ],
)
def test_a_feed_of_something_else_is_refused(feed: Any, said: str, clicks: Path) -> None:
    made, shard = pipeline(feed, clicks)
    with pytest.raises(UserCodeError, match=said):
        list(made.minibatches(shard))
