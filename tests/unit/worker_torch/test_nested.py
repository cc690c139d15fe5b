"""Containers of tensors keep their kind, and what else they hold, whatever is done to the tensors."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

from elasticdl_worker.trainers.torch.device import place
from elasticdl_worker.trainers.torch.model.calling import describe, output_names
from elasticdl_worker.trainers.torch.model.metrics import to_numpy
from elasticdl_worker.trainers.torch.nested import leaves, map_tensors

pytestmark = pytest.mark.unit
META = torch.device("meta")


class Boxes(list[torch.Tensor]):
    """A list with an attribute, whose constructor takes something else than elements."""

    def __init__(self, size: int) -> None:
        super().__init__([torch.ones(2)] * size)
        self.size = size


class Pair(NamedTuple):
    """A named tuple."""

    logits: torch.Tensor
    hidden: torch.Tensor


class OwnPair(Pair):
    """A named tuple that is made of something else than its elements."""

    def __new__(cls, size: int) -> OwnPair:
        return super().__new__(cls, torch.ones(size), torch.zeros(size))


class Path(tuple[torch.Tensor, ...]):
    """A tuple of one's own."""

    unit: str


@dataclasses.dataclass(frozen=True)
class Output:
    """A frozen record, with a field that is no tensor and one of its constructor's making."""

    logits: torch.Tensor
    inner: Pair
    name: str = "mine"
    twice: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.logits)


@dataclasses.dataclass(slots=True)
class Slotted:
    """A record without a dictionary."""

    logits: torch.Tensor


def _path() -> Path:
    made = Path((torch.ones(1), torch.zeros(1)))
    made.unit = "km"
    return made


PAIR = Pair(torch.ones(1), torch.zeros(1))
CONTAINERS = [
    pytest.param([torch.ones(2), 3], 1, id="list"),
    pytest.param((torch.ones(2), (torch.zeros(1),)), 2, id="tuple"),
    pytest.param({"a": torch.ones(2), "b": [torch.zeros(1)]}, 2, id="dict"),
    pytest.param(OrderedDict(a=torch.ones(2)), 1, id="ordered"),
    pytest.param(Boxes(3), 3, id="own-list"),
    pytest.param(PAIR, 2, id="named"),
    pytest.param(OwnPair(2), 2, id="own-named"),
    pytest.param(_path(), 2, id="own-tuple"),
    pytest.param(torch.ones(3, 2).max(0), 2, id="of-torch"),
    pytest.param(Output(torch.ones(2), PAIR), 4, id="record"),
    pytest.param(Slotted(torch.ones(2)), 1, id="slots"),
]


@pytest.mark.parametrize(("given", "tensors"), CONTAINERS)
def test_containers_stay_what_they_are(given: Any, tensors: int) -> None:
    before = [leaf.clone() for leaf in leaves(given)]
    assert len(leaves(given)) == tensors
    for made in (map_tensors(lambda tensor: tensor + 1, given), place(given, META)):
        assert made is not given and type(made) is type(given)
        assert [one.shape for one in leaves(made)] == [one.shape for one in leaves(given)]
        assert vars(made).keys() == vars(given).keys() if hasattr(given, "__dict__") else True
    added = leaves(map_tensors(lambda tensor: tensor + 1, given))
    assert all(torch.equal(one, other + 1) for one, other in zip(added, leaves(given), strict=True))
    assert all(torch.equal(one, other) for one, other in zip(leaves(given), before, strict=True))


def test_what_is_no_container_stays_the_same() -> None:
    for value in (None, 3, "text", Output, object):
        assert map_tensors(torch.clone, value) is value
        assert leaves(value) == []


def test_records_have_names_for_their_outputs() -> None:
    given = Slotted(torch.ones(2))
    assert output_names(given) == ("logits",)
    assert describe(given) == "Slotted(logits: float32[2])"
    stored = to_numpy(given)
    assert isinstance(stored, dict) and list(stored) == ["logits"]
