"""A checkpoint says what names of layers stand for, so that layers that changed their names are seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
import tf_keras

from elasticdl_core.checkpoint_manifest import check_same_layers
from elasticdl_core.errors import ElasticDLError, InvalidInputError
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.tensorflow.model import layer_origins

pytestmark = pytest.mark.unit
SIDES = """
import keras
import tensorflow as tf

def custom_model(sides="user,item"):
    inputs = {name: keras.Input((1,), name=name) for name in ("user", "item")}
    looked = [keras.layers.Flatten()(keras.layers.Embedding(9, 2)(inputs[side])) for side in sides.split(",")]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(looked)))

def loss(labels, predictions):
    return tf.reduce_mean((labels - predictions[:, 0]) ** 2)

def feed(dataset, mode, metadata):
    def split(row):
        numbers = tf.strings.to_number(row, tf.float32)
        return {"user": numbers[1:2], "item": numbers[2:3]}, numbers[0]
    return dataset.map(split)
"""
SAVED = {"embedding": "Embedding of user", "embedding_1": "Embedding of item", "dense": "Dense of item, user"}


@pytest.mark.parametrize("used", [keras, tf_keras], ids=["Keras 3", "Keras 2"])
def test_layers_are_what_they_read_or_where_they_are_kept(used: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_origins, "keras", used)
    named = [used.Input((1,), name=name) for name in ("user", "item")]
    outputs = used.layers.Dense(1)(
        used.layers.Concatenate()([used.layers.Dense(2, name=f"d{i}")(x) for i, x in enumerate(named)])
    )
    found = layer_origins.layer_origins(used.Model(named, outputs))
    assert (found["d0"], found["d1"]) == ("Dense of user", "Dense of item")
    unnamed = used.Sequential([used.Input((3,)), used.layers.Dense(1), used.layers.Dense(1)])
    assert layer_origins.layer_origins(unnamed) == {}

    class Net(used.Model):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tables = {side: used.layers.Embedding(9, 2, name=side.upper()) for side in ("user", "item")}
            self.out = [used.layers.Dense(1, name="last")]
            self.by_object = {object(): used.layers.Dense(1, name="shown by its place in memory")}

        def call(self, ids: Any) -> Any:
            (layer,) = self.by_object.values()
            return layer(self.out[0](self.tables["user"](ids) + self.tables["item"](ids)))

    net = Net()
    net(tf.constant([1, 2]))
    found = {name.rpartition("/")[2]: origin for name, origin in layer_origins.layer_origins(net).items()}
    assert found == {"USER": "tables['user']", "ITEM": "tables['item']", "last": "out[0]"}


def test_layers_that_changed_names_are_told_from_other_words_for_them() -> None:
    with pytest.raises(InvalidInputError, match="the layer a is the module's user, which is b in the model") as found:
        check_same_layers({"a": "user", "b": "item"}, {"a": "item", "b": "user"})
    assert "give each a name" in found.value.fix
    check_same_layers({"a": "user", "b": "item"}, {"a": "customer", "b": "item", "c": "more"})
    check_same_layers({"old": "user"}, {"new": "user"})  # the names themselves differ, which others say
    check_same_layers({}, {"a": "user"})


def test_a_local_run_refuses_a_checkpoint_of_layers_in_another_order(make_spec: Any, tmp_path: Path) -> None:
    (tmp_path / "sides.py").write_text(SIDES)
    (tmp_path / "manifest.json").write_text(json.dumps({"version": 1, "files": [], "layers": SAVED}))
    fields = {
        "model_zoo": str(tmp_path),
        "model_def": "sides.custom_model",
        "type": "evaluation",
        "training_data": "",
        "validation_data": make_spec().training_data,
        "checkpoint_dir_for_init": str(tmp_path),
    }
    # In the same order it is the files that are missing.
    for sides, message in (("user,item", "has the parts"), ("item,user", "which is embedding_1 in the model")):
        with pytest.raises(ElasticDLError, match=message):
            run_local(make_spec(**fields, model_params={"sides": sides}), tmp_path / "out", lambda event: None)
