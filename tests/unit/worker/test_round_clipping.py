"""Who clips: the worker each minibatch, servers a round of several; what neither can do is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_core.errors import UserCodeError
from elasticdl_core.model import UpdateClipping as Clipping
from elasticdl_worker.trainers.on_servers.trainer import round_clipping, update_mode

pytestmark = pytest.mark.unit
NORM, VALUE = Clipping("global_norm", 1.0), Clipping("value", 1.0)
ROUNDS = {"use_async": False, "grads_to_wait": 3}


@pytest.mark.parametrize(
    ("fields", "asked", "by_servers"),
    [
        (ROUNDS, NORM, NORM),
        ({**ROUNDS, "num_ps": 2}, VALUE, VALUE),
        ({**ROUNDS, "num_ps": 2}, Clipping(), Clipping()),
        ({"use_async": False, "num_ps": 2}, NORM, Clipping()),
        ({"num_ps": 2}, NORM, Clipping()),
    ],
)
def test_servers_clip_rounds(make_spec: Any, fields: dict[str, Any], asked: Clipping, by_servers: Clipping) -> None:
    spec = make_spec(distribution_strategy="ParameterServerStrategy", **fields)
    found = round_clipping(spec, asked)
    assert found == by_servers
    assert update_mode(spec, 0, found).clipping == by_servers


def test_a_norm_over_several_servers_is_refused(make_spec: Any) -> None:
    spec = make_spec(distribution_strategy="ParameterServerStrategy", num_ps=2, **ROUNDS)
    with pytest.raises(UserCodeError, match=r"a round of 3 minibatches .* each of 2 parameter servers") as refused:
        round_clipping(spec, NORM)
    assert "--num_ps 1" in refused.value.fix
