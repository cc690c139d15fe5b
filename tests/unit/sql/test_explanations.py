"""Importances of columns, from the metrics of one evaluation."""

from __future__ import annotations

from elasticdl.sql.explanations import as_csv, importances


def test_columns_whose_shuffling_changes_most_come_first_by_metric() -> None:
    metrics = {
        "error": 2.0, "loss": 9.0, "error_shuffled_a": 2.5,
        "error_shuffled_b": 1.0, "error_shuffled_c_shuffled_d": 2.0,
        "accuracy": 0.75, "accuracy_shuffled_a": 0.5,
    }  # fmt: skip
    found = importances(metrics)
    assert found == [
        ("accuracy", "a", 0.75, 0.5), ("error", "b", 2.0, 1.0), ("error", "a", 2.0, 2.5),
        ("error", "c_shuffled_d", 2.0, 2.0),
    ]  # fmt: skip
    assert (
        as_csv(found[:2]) == "metric,column,value,shuffled,change\naccuracy,a,0.75,0.5,-0.25\nerror,b,2.0,1.0,-1.0\n"
    )
