"""Finds by trial how the state of a Keras model is merged of which no layer says it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from elasticdl_worker.trainers.state_trials import Values, learn_by_trial
from elasticdl_worker.trainers.tensorflow.framework import raw_variable, tf
from elasticdl_worker.trainers.tensorflow.input.source import TypedSource
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel
from elasticdl_worker.trainers.tensorflow.model.metrics import cut
from elasticdl_worker.trainers.tensorflow.step.programs import Programs
from elasticdl_worker.trainers.tensorflow.step.straight_backward import variables_kept
from elasticdl_worker.trainers.tensorflow.types import Features, Variable


def learn_rules(
    model: PreparedModel,
    programs: Programs,
    source: TypedSource,
    names: Sequence[str],
    generators: Sequence[Variable],
) -> None:
    """Runs the model on a few records, whole and in halves, and puts back all variables.

    What cannot be tried stays as it is.

    Args:
        model: the model.
        programs: of it.
        source: gives the records.
        names: of the variables in question.
        generators: the variables that random generators keep their seeds in.
    """
    merging = model.merging
    with contextlib.suppress(Exception):  # half of the records do not suit it, or there are none
        features = source.sample()
        records = int(tf.nest.flatten(features)[0].shape[0])
        held = [*generators, *map(raw_variable, model.keras_model.variables)]
        with variables_kept(held) as put_back:

            def after(*parts: Features) -> Values:
                put_back()
                for part in parts:
                    programs.call(part, None, training=True)
                return {name: np.array(merging.variables[name].numpy()) for name in names}

            def part(start: int, end: int) -> Features:
                found = cut(features, start, end)
                if found is None:
                    raise ValueError("features of which no part can be taken")
                return found

            def repeat(times: int) -> Features:
                return tf.nest.map_structure(lambda one: tf.concat([one] * times, 0), features)

            rules, unmerged = learn_by_trial(after, part, repeat, records, draws=bool(generators))
        merging.rules |= rules
        merging.unmerged |= unmerged
