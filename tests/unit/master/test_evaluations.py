"""Evaluations whose parts several workers bring."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_core.errors import UserCodeError
from elasticdl_master.state.metric_states import merge, metrics_of, states_of

pytestmark = pytest.mark.unit


class TestEvaluations:
    def test_states_add_up_whatever_their_shape(self) -> None:
        one = {"sum": [1, [2.5, 3]], "kind": "auc"}
        assert merge("m", one, {"sum": [4, [5, 6]], "kind": "auc"}) == {"sum": [5, [7.5, 9]], "kind": "auc"}

    @pytest.mark.parametrize("other", [{"sum": [1], "kind": "auc"}, {"sum": [1, 2], "kind": "mean"}, {"sum": "x"}])
    def test_states_that_do_not_fit_are_refused_by_name(self, other: dict[str, Any]) -> None:
        with pytest.raises(UserCodeError, match="'m'"):
            merge("m", {"sum": [1, 2], "kind": "auc"}, other)

    def test_results_are_read_with_or_without_their_name(self) -> None:
        assert states_of(b'{"states": {"a": {"sum": [1]}}}') == states_of(b'{"a": {"sum": [1]}}')
        assert metrics_of(b'{"metrics": {"a": 1}}') == metrics_of(b'{"a": 1}') == {"a": 1.0}
        with pytest.raises(UserCodeError):
            metrics_of(b"[]")
        with pytest.raises(UserCodeError):
            states_of(b'{"a": 3}')
