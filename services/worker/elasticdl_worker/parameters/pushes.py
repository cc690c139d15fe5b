"""Pushes as frames, one for each parameter server, with or without a pull in the same message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.convert.parameters import to_bfloat16
from elasticdl_runtime.rpc.framing import Room, compose_frame
from elasticdl_worker.parameters.placement import ModelPlacement
from elasticdl_worker.parameters.splits import Split, distinct
from elasticdl_worker.parameters.types import Gradients

_REMEMBERED = 64
_BFLOAT16 = "bfloat16"
_SINGLE, _HALF = np.dtype(np.float32), np.dtype(np.uint16)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What one push says beside its gradients.

    Attributes:
        sequence: its number.
        versions: for each PS the version that the gradients were computed on.
        generations: for each PS the generation that was pulled from.
        learning_rate: None for the optimizer's own.
    """

    sequence: int
    versions: Sequence[int]
    generations: Sequence[str]
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Following:
    """The pull that goes along with a push.

    Attributes:
        splits: by table, the ids to read.
        dense_versions: for each PS the version that dense parameters are known of, or that none are wanted.
        generations: for each PS the generation that those are from.
        wait_for: the version to wait for before reading (synchronous mode); 0 for none.
        only_first: whether it goes along to the first PS only.
    """

    splits: Mapping[str, Split]
    dense_versions: Sequence[int]
    generations: Sequence[str]
    wait_for: int = 0
    only_first: bool = False


@dataclass(frozen=True, slots=True)
class _Form:
    """What all messages of one structure to one PS have in common.

    Attributes:
        message: the header, with the names and places of all buffers; the rest is set anew for each message.
        dense: which dense parameters are in it, by number, and what part; None means the whole.
    """

    message: ps_pb2.PushPullRequest
    dense: list[tuple[int, slice | None]]


class PushFrames:
    """Makes the frames of pushes.

    Most steps push gradients of the same structure: their headers are built once, and only numbers change. Tables
    with the same ids share one buffer of them.

    Args:
        placement: where everything lies.
        worker: the worker's incarnation.
        wire_dtype: of the rows' gradients.
    """

    def __init__(self, placement: ModelPlacement, worker: str, wire_dtype: str) -> None:
        self._placement = placement
        self._worker = worker
        self._wire_dtype = wire_dtype
        self._forms: dict[tuple[Any, ...], list[_Form]] = {}

    def make(self, gradients: Gradients, stamp: Stamp, following: Following | None = None) -> list[bytes]:
        """A frame for each PS: a ``PushGradientsRequest``, or with a pull a ``PushPullRequest``.

        Raises:
            InvalidInputError: a name is unknown or a size disagrees.
        """
        placement = self._placement
        flats = [placement.flat(name, gradients.dense) for name in gradients.dense]
        flats += [placement.flat_value(name, change.add) for name, change in gradients.state.items()]
        keeps = {name: change.keep for name, change in gradients.state.items()}
        values = [self._checked(table, *rows) for table, rows in gradients.rows.items()]
        origin = gradients.origin
        if origin is not None:
            flats += [placement.flat(name, origin.dense) for name in gradients.dense]
            values += [self._checked(table, ids, origin.rows[table]) for table, (ids, _) in gradients.rows.items()]
        splits = placement.split({table: ids for table, (ids, _) in gradients.rows.items()})
        pushed, push_numbers = distinct(splits)
        pulled, pull_numbers = distinct(following.splits) if following else ([], ())
        reading = following.splits if following else ()
        key = (
            origin is None,
            *gradients.dense,
            None,
            *keeps.items(),
            None,
            *splits,
            push_numbers,
            *reading,
            pull_numbers,
        )
        forms = self._forms.get(key)
        if forms is None:
            if len(self._forms) >= _REMEMBERED:
                self._forms.clear()
            tables = list(zip(splits, push_numbers, strict=True))
            reads = list(zip(following.splits, pull_numbers, strict=True)) if following else []
            names: dict[str, float | None] = {**dict.fromkeys(gradients.dense), **keeps}
            with_origin = origin is not None
            forms = [self._form(index, names, tables, reads, with_origin) for index in range(placement.num_ps)]
            self._forms[key] = forms
        frames = []
        for index, form in enumerate(forms):
            buffers: list[Any] = [
                flats[number] if part is None else flats[number][part] for number, part in form.dense
            ]
            buffers += [split.parts[index] for split in pushed]
            chosen = [split.chosen[index] for split in splits.values()]
            rows = list(zip(values, chosen if origin is None else chosen * 2, strict=True))
            buffers += [self._room(*single) for single in rows]
            along = following if following is not None and not (following.only_first and index) else None
            if along is not None:
                buffers += [split.parts[index] for split in pulled]
            form.message.push.records, form.message.push.steps = gradients.records, gradients.steps
            if gradients.task is None:
                form.message.push.ClearField("task")
            else:
                form.message.push.task.round, form.message.push.task.index = gradients.task
            frame, places = compose_frame(_header(form.message, index, stamp, along), buffers)
            _fill(places, rows)
            frames.append(frame)
        return frames

    def _checked(self, table: str, ids: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.float32]:
        dim = self._placement.dim(table)
        if values.shape != (len(ids), dim):
            raise InvalidInputError(
                f"gradients of {table!r} have the shape {values.shape} for {len(ids)} ids",
                fix=f"give one row of {dim} numbers for each id",
            )
        return np.ascontiguousarray(values, np.float32)

    def _room(self, values: NDArray[np.float32], chosen: NDArray[np.intp] | None) -> NDArray[np.float32] | Room:
        """The buffer of a table's gradients: room for them, or what needs no work as it is."""
        if self._wire_dtype == _BFLOAT16:
            return Room((len(values) if chosen is None else len(chosen), values.shape[1]), _HALF)
        return values if chosen is None else Room((len(chosen), values.shape[1]), _SINGLE)

    def _form(
        self,
        index: int,
        dense: Mapping[str, float | None],
        tables: list[tuple[str, int]],
        reads: list[tuple[str, int]],
        with_origin: bool,
    ) -> _Form:
        """The form of messages to one PS.

        Args:
            index: the PS.
            dense: names of the dense parameters, with what is kept of those that are state.
            tables: names of the tables that are pushed to, and which buffer of ids is theirs.
            reads: names of the tables that are pulled from, and which of the pull's buffers of ids is theirs.
            with_origin: whether what the gradients were computed on goes along: behind the dense parameters, and
                behind the gradients of rows.
        """
        message = ps_pb2.PushPullRequest()
        parts: list[tuple[int, slice | None]] = []
        for number, (name, keep) in enumerate(dense.items()):
            placed = self._placement.placed(name)
            for place in placed.slices:
                if place.ps == index:
                    message.push.dense.add(
                        name=name, start=place.start, stop=place.stop, buffer=len(parts), keep=keep
                    )
                    whole = place.stop - place.start == placed.size
                    parts.append((number, None if whole else slice(place.start, place.stop)))
        if with_origin:
            gradients = [
                (entry, part)
                for entry, part in zip(message.push.dense, parts, strict=True)
                if not entry.HasField("keep")
            ]
            for entry, (number, part) in gradients:
                entry.pulled = len(parts)
                parts.append((len(dense) + number, part))
        first_values = len(parts) + len({number for _, number in tables})
        for at, (table, number) in enumerate(tables):
            message.push.rows.add(
                table=table,
                ids=len(parts) + number,
                values=first_values + at,
                dtype=self._wire_dtype,
                pulled=first_values + len(tables) + at if with_origin else None,
            )
        for table, number in reads:
            message.pull.rows.add(table=table, ids=number)
        message.push.worker = self._worker
        message.pull.dtype = self._wire_dtype
        message.pull_from = first_values + len(tables) * (2 if with_origin else 1)
        return _Form(message, parts)


def _header(message: ps_pb2.PushPullRequest, index: int, stamp: Stamp, following: Following | None) -> bytes:
    push = message.push
    push.sequence = stamp.sequence
    push.version = stamp.versions[index]
    push.generation = stamp.generations[index]
    if stamp.learning_rate is None:
        push.ClearField("learning_rate")
    else:
        push.learning_rate = stamp.learning_rate
    if following is None:
        return push.SerializeToString()
    pull = message.pull
    pull.dense_version = following.dense_versions[index]
    pull.generation = following.generations[index]
    pull.wait_for = following.wait_for
    return message.SerializeToString()


def _fill(
    places: Sequence[NDArray[Any]], rows: Sequence[tuple[NDArray[np.float32], NDArray[np.intp] | None]]
) -> None:
    """Puts chosen gradients into the frame, rounded where there is less room."""
    for place, (values, chosen) in zip(places, rows, strict=bool(places)):
        if place.dtype == _HALF:
            to_bfloat16(values if chosen is None else values[chosen], place)
        elif chosen is not None:
            # Positions are right by construction; any other mode copies once more.
            np.take(values, chosen, axis=0, out=place, mode="clip")
