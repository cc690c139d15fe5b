"""The results of a ``feed`` of PyTorch: samples or ready minibatches, and how many samples each is made of."""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from elasticdl.torch import Minibatches
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.input.records import is_reading
from elasticdl_worker.trainers.torch.model.calling import describe
from elasticdl_worker.trainers.torch.nested import leaves

_NODES = 200
_MOST_AFTER = 10_000
_MOST_OF_EACH = 100


class Returned:
    """The result of ``feed`` for one task.

    Args:
        made: that.
        where: the user's module, for messages.

    Attributes:
        ready: whether it gives minibatches.
        samples: of how many samples the latest ready minibatch was made; None where nobody counted them.
        with_one_less: puts these together again, but for the last; None where nobody counted them.
        batch_size: of a loader, or of its batch_sampler, that goes by this number alone; None for anything else.
        drawn: places in a dataset that a sampler drew; None without one.

    Raises:
        UserCodeError: it is nothing that gives samples.
    """

    def __init__(self, made: object, where: object) -> None:
        self.ready = False
        self.samples: int | None = None
        self.with_one_less: Callable[[], Any] | None = None
        self.batch_size: int | None = None
        self.drawn: set[Any] | None = None
        self._size = 0
        if isinstance(made, DataLoader):
            made = self._counting(made)
        elif isinstance(made, Minibatches):
            self.ready = True
            inner = getattr(made, "_minibatches", None)
            made = self._counting(inner) if isinstance(inner, DataLoader) else made
        elif isinstance(made, Dataset):
            made = _each_of(made)
        if isinstance(made, str | bytes | dict) or not isinstance(made, Iterable):
            raise UserCodeError(
                f"feed in {where} returned a {type(made).__name__}",
                fix="return samples: a generator, a list, a torch Dataset or a DataLoader",
            )
        self._iterator = iter(made)

    def next(self) -> list[Any]:
        """The next sample, or the next ready minibatch, in a list; an empty one at the end."""
        self.samples = self.with_one_less = None
        return list(itertools.islice(self._iterator, 1))

    @property
    def not_drawn(self) -> int:
        """Samples of a dataset that its sampler did not draw."""
        return 0 if self.drawn is None else self._size - len(self.drawn)

    @property
    def goes_round(self) -> bool:
        """Whether records go round in a circle (``itertools.cycle``); known until all of them were taken."""
        return any(
            isinstance(one, itertools.cycle) and any(map(is_reading, _held_by(one)))
            for one in _held_by(self._iterator)
        )

    def _counting(self, loader: DataLoader[Any]) -> Iterable[Any]:
        """A loader that tells how many samples its minibatches have, and which its sampler drew."""
        if loader.num_workers:
            raise UserCodeError(
                f"feed returned a DataLoader with {loader.num_workers} processes of its own",
                fix="leave num_workers out: a worker reads ahead by itself, and more workers read in parallel",
            )
        ours = copy.copy(loader)
        batches = loader.batch_sampler is not None
        self.ready = self.ready or batches
        self.batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        if batches:
            ours.collate_fn = self._noting_samples(loader.collate_fn)
        if not isinstance(loader.dataset, IterableDataset) and hasattr(loader.dataset, "__len__"):
            self.drawn, self._size = set(), len(loader.dataset)
            name = "batch_sampler" if batches else "sampler"
            # The class forbids to set it; the copy is ours.
            ours.__dict__[name] = _Noting(getattr(loader, name), self.drawn, batches)
        return ours

    def _noting_samples(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noting(samples: Any) -> Any:
            self.samples = len(samples)
            self.with_one_less = lambda: collate(samples[:-1])
            return collate(samples)

        return noting


def samples_of(made: object) -> Iterator[Any]:
    """The single samples of what ``feed`` returned; none where nobody can tell them from minibatches."""
    inner = getattr(made, "_minibatches", None) if isinstance(made, Minibatches) else made
    dataset = inner.dataset if isinstance(inner, DataLoader) else inner
    if (inner is not made and dataset is inner) or not isinstance(dataset, Iterable | Dataset):
        return iter(())
    return iter(_each_of(dataset) if isinstance(dataset, Dataset) else dataset)


def _each_of(dataset: Dataset[Any]) -> Iterable[Any]:
    if isinstance(dataset, IterableDataset):
        return dataset
    if not hasattr(dataset, "__len__"):
        raise UserCodeError("feed returned a Dataset without a length", fix="write its __len__")
    return map(dataset.__getitem__, range(len(dataset)))


def as_bytes(sample: Any) -> bytes:
    """A sample as bytes, equal for equal ones."""
    if isinstance(sample, Mapping):
        sample = tuple(itertools.chain.from_iterable(sample.items()))
    if isinstance(sample, tuple | list):
        return b"(" + b",".join(map(as_bytes, sample)) + b")"
    if isinstance(sample, torch.Tensor):
        sample = sample.detach().cpu().numpy()
    if isinstance(sample, np.ndarray) and sample.dtype != object:
        return repr((sample.dtype, sample.shape)).encode() + sample.tobytes()
    told: object = type(sample).__repr__
    if told is object.__repr__:  # it would say where in memory the object is
        return b"(" + as_bytes(vars(sample)) + b")" if hasattr(sample, "__dict__") else type(sample).__name__.encode()
    return repr(sample).encode()


class _Noting:
    """A sampler that notes what it draws."""

    def __init__(self, inner: Iterable[Any], drawn: set[Any], batches: bool) -> None:
        self._inner, self._drawn, self._batches = inner, drawn, batches

    def __iter__(self) -> Iterator[Any]:
        for one in self._inner:
            self._drawn.update(map(_place, one) if self._batches else (_place(one),))
            yield one

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]


def _held_by(iterator: Iterator[Any]) -> list[Iterator[Any]]:
    """The iterators that an iterator goes on with, however deep, in the frames of generators too, and itself."""
    found: dict[int, Iterator[Any]] = {}
    waiting: list[Any] = [iterator]
    while waiting and len(found) < _NODES:
        one = waiting.pop()
        if isinstance(one, tuple):  # of the iterators of a map or zip
            waiting += one
        if id(one) in found or not isinstance(one, Iterator):
            continue
        found[id(one)] = one
        waiting += gc.get_referents(one)
        waiting.append(getattr(getattr(one, "_dataset_fetcher", None), "dataset_iter", None))
    return list(found.values())


def _place(index: Any) -> Any:
    return int(index) if isinstance(index, torch.Tensor) else index


def is_endless(after: int, records: int) -> bool:
    """Whether so many rows after the last of some records are more than anyone makes of them."""
    return after > _MOST_AFTER + _MOST_OF_EACH * records


def count_rows(
    features: Tensors, labels: Tensors, samples: int | None, with_one_less: Callable[[], Tensors] | None = None
) -> int:
    """The number of records in a minibatch.

    It is that of its samples. Of a ready minibatch of which nobody counted these, all labels must say it, or all
    features in prediction: the first dimension of a feature may be another one, such as that of time.

    Args:
        features: nested tensors.
        labels: nested tensors; None in prediction.
        samples: of which it was made; None if that is not known.
        with_one_less: makes the labels, or in prediction the features, of all samples but the last.

    Raises:
        UserCodeError: nobody can tell.
    """
    found = leaves(features) if labels is None else leaves(labels)
    sizes = {len(one) if one.ndim else 0 for one in found}
    if not leaves(features) or (samples is None and 0 in sizes):
        raise UserCodeError(
            f"feed gives {describe(features)} as the features of a minibatch"
            + ("" if labels is None else f", and {describe(labels)} as its labels"),
            fix="give tensors whose first dimension is that of the records",
        )
    if samples is not None:
        few = min(sizes, default=samples)
        # A collate may leave out bad samples, or have records along another axis.
        may_be_fewer = len(sizes) == 1 and 0 < few < samples
        return few if may_be_fewer and not _lie_along_another_axis(found, samples, with_one_less) else samples
    if len(sizes) != 1:
        what = f"features {describe(features)}" if labels is None else f"labels {describe(labels)}"
        raise UserCodeError(
            f"feed gives a minibatch whose {what} do not say how many records it has: the first dimensions are "
            f"{', '.join(map(str, sorted(sizes))) or 'missing'}",
            fix="give samples, with collate(samples) in the module, or a DataLoader with a batch_size, so that they "
            "are counted; or tensors whose first dimension is that of the records",
        )
    return sizes.pop()


def are_turned(values: Tensors, turned: Tensors, rows: int) -> bool:
    """Whether others have their first row last; true where a tensor has no row for each record."""
    pairs = list(zip(leaves(values), leaves(turned), strict=True))
    if any(rows not in one.shape for one, _ in pairs):
        return True
    return all(
        any(torch.equal(one.roll(-1, axis), other) for axis, size in enumerate(one.shape) if size == rows)
        for one, other in pairs
    )


def _lie_along_another_axis(
    found: list[torch.Tensor], samples: int, with_one_less: Callable[[], Tensors] | None
) -> bool:
    """Whether an axis behind the first is that of the samples: it is shorter where there is one less."""
    axes = [[axis for axis, size in enumerate(one.shape) if axis and size == samples] for one in found]
    if not all(axes) or with_one_less is None:
        return all(axes)
    try:
        fewer = leaves(with_one_less())
    except Exception:  # nothing is left of the others
        return False
    if len(fewer) != len(found):
        return True
    pairs = zip(fewer, axes, strict=True)
    return all(any(one.shape[axis : axis + 1] == (samples - 1,) for axis in there) for one, there in pairs)
