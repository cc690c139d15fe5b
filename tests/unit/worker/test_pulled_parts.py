"""What parameter servers answer to a pull is put together as it was asked for, in however many messages it comes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl_core.model import DenseSpec, TableSpec
from elasticdl_worker.parameters.codec import PullReply
from elasticdl_worker.parameters.partial_pull import PartialPull
from elasticdl_worker.parameters.placement import ModelPlacement

pytestmark = pytest.mark.unit


Values = NDArray[np.float32]


def reply(version: int, rows: dict[str, Values], dense: list[tuple[str, int, Values]] | None = None) -> PullReply:
    return PullReply(
        version, "g", initialised=True, pending=False, undeclared=False, round=None, dense=dense or [], rows=rows
    )


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_come_out_at_their_ids_whoever_holds_them_and_however_they_are_cut(count: int, dim: int) -> None:
    placement = ModelPlacement([], [TableSpec("t", dim), TableSpec("u", 2)], count)
    ids = {"t": np.arange(7, 60)[::-1].copy(), "u": np.array([5, 900, 3])}
    row = {"t": 8 + 4 * dim, "u": 16}
    splits = placement.split(ids)
    parts = []
    for index in range(count):
        asked = {table: split.parts[index] for table, split in splits.items()}
        part = PartialPull()
        groups = placement.group(asked, 5 * 16)
        for group in groups:
            size = sum(len(some) * row[table] for table, some in group.items())
            assert size <= 5 * 16, "no message is larger than asked for"
            values = {t: np.repeat(some, placement.dim(t)).astype(np.float32) for t, some in group.items()}
            part.add(reply(4, values), group)
        assert len(groups) > 1
        part.join()
        parts.append(part)
    merged = placement.merge_rows(splits, parts)
    for table, wanted in ids.items():
        np.testing.assert_array_equal(merged[table], np.tile(wanted[:, None], placement.dim(table)))


def test_what_comes_in_several_messages_is_of_the_version_of_the_first() -> None:
    """All that was pulled has surely arrived up to there: gradients on it are at least so old."""
    part, asked = PartialPull(), {"t": np.arange(2)}
    for version in (3, 5, 9):
        part.add(reply(version, {"t": np.zeros(4, np.float32)}), asked)
    assert part.version == 3


def test_parts_that_did_not_change_are_those_of_the_last_time_and_what_was_given_stays() -> None:
    placement = ModelPlacement([DenseSpec("large", (600, 500))], [], 2)
    first, second = placement.slices_on("large", 0)[0], placement.slices_on("large", 1)[0]
    known: dict[str, Values] = {}

    def pulled(runs: list[tuple[int, int, float]]) -> Values:
        part = PartialPull()
        part.add(reply(1, {}, [("large", a, np.full(b - a, value, np.float32)) for a, b, value in runs]), {})
        return placement.assemble([part], known)["large"].reshape(-1)

    whole = pulled([(first.start, first.stop, 1.0), (second.start, second.stop, 2.0)])
    later = pulled([(second.start, second.stop, 3.0)])
    assert (later[first.start : first.stop] == 1.0).all()
    assert (later[second.start : second.stop] == 3.0).all()
    assert (whole[second.start : second.stop] == 2.0).all(), "a step may compute with it still"
