"""The kernels in plain numpy: the meaning of the compiled ones, and a stand-in where numba cannot run.

Signatures and results are those of ``compiled.rows``, ``compiled.initial`` and ``compiled.updates``; a map may place
its entries elsewhere, and floating-point results may differ in the last bit. There is no loop over ids or rows here
either, only over probes of a map.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import NO_ID
from elasticdl_ps.kernels.lines import AFTER, BEFORE, GROWN_FROM, SLOTS, WORDS
from elasticdl_runtime.initializers import initial_values as initial_values
from elasticdl_runtime.partition import hash_ids

Ids = NDArray[np.int64]
Map = NDArray[np.uint32]
Shape = NDArray[np.uint64]
Floats = NDArray[np.float32]

_U32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


def find(table: Map, shape: Shape, keys: Ids, query: Ids, out: Ids) -> int:
    """See ``compiled.rows.find``. Tags, which only save time, are not looked at."""
    out[:] = -1
    lines = table.reshape(-1, WORDS)
    at = _lines_of(shape, query)
    open_ = np.arange(len(query))
    while len(open_):
        rows = lines[at[open_], :SLOTS].astype(np.int64) - 1
        match = (rows >= 0) & (keys[rows] == query[open_, None])
        hit = match.any(axis=1)
        out[open_[hit]] = rows[hit, match[hit].argmax(axis=1)]
        open_ = open_[~hit & (rows >= 0).all(axis=1)]
        at[open_] += 1
    return int(np.count_nonzero(out < 0))


def find_or_insert(table: Map, shape: Shape, keys: Ids, query: Ids, out: Ids, count: int) -> int:
    """See ``compiled.rows.find_or_insert``."""
    if not find(table, shape, keys, query, out):
        return count
    missing = np.flatnonzero(out < 0)
    fresh, first, inverse = np.unique(query[missing], return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(fresh), np.int64)
    rank[order] = np.arange(len(fresh))
    stop = count + len(fresh)
    keys[count:stop] = fresh[order]
    place(table, shape, keys[count:stop], np.arange(count, stop))
    out[missing] = count + rank[inverse]
    return stop


def place(table: Map, shape: Shape, ids: Ids, rows: Ids) -> None:
    """Enters rows of ids that the map does not have, each into the first free slot of its line or of a later one."""
    lines, at = table.reshape(-1, WORDS), _lines_of(shape, ids)
    tags, wanted = lines.view(np.uint8), (hash_ids(ids) >> _S32).astype(np.uint8)
    open_ = np.arange(len(ids))
    while len(open_):
        used = np.count_nonzero(lines[at[open_], :SLOTS], axis=1)
        at[open_[used == SLOTS]] += 1
        # One for each line at a time, so that no two get the same slot.
        free = np.flatnonzero(used < SLOTS)
        chosen = free[np.unique(at[open_[free]], return_index=True)[1]]
        here, slot = open_[chosen], used[chosen]
        lines[at[here], slot] = rows[here] + 1
        tags[at[here], 4 * SLOTS + slot] = wanted[here]
        open_ = np.delete(open_, chosen)


def grow(table: Map, shape: Shape, keys: Ids, lines: int, stale: bool) -> int:
    """See ``compiled.rows.grow``."""
    every = table.reshape(-1, WORDS)
    before = int(shape[BEFORE])
    stop = int(shape[GROWN_FROM]) * before >> 32
    start = max(stop - lines, 0)
    stop = max(stop, start + 1)
    while every[stop - 1, SLOTS - 1]:
        stop += 1
    taken = every[start:stop, :SLOTS]
    rows = taken[taken != 0].astype(np.int64) - 1
    every[start:stop] = 0
    shape[GROWN_FROM] = -((-start << 32) // before)
    different = np.unique(rows)
    different = different[keys[different] != NO_ID]
    found = np.empty(len(different), np.int64)
    find(table, shape, keys, keys[different], found)
    fresh = different[found < 0]
    place(table, shape, keys[fresh], fresh)
    return len(rows) - len(fresh)


def _lines_of(shape: Shape, ids: Ids) -> Ids:
    low = hash_ids(ids) & _U32
    lines = np.where(low >= shape[GROWN_FROM], shape[AFTER], shape[BEFORE])
    at: Ids = (low * lines >> _S32).astype(np.int64)
    return at


def has_duplicates(ids: Ids) -> bool:
    """See ``compiled.rows.has_duplicates``."""
    return len(np.unique(ids)) < len(ids)


def merge_rows(ids: Ids, values: Floats, out_ids: Ids, out_values: Floats) -> int:
    """See ``compiled.rows.merge_rows``."""
    unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(unique), np.int64)
    rank[order] = np.arange(len(unique))
    out_ids[: len(unique)] = unique[order]
    out_values[: len(unique)] = 0
    np.add.at(out_values, rank[inverse], values)
    return len(unique)


def gather(arena: Floats, rows: Ids, out: Floats) -> None:
    """See ``compiled.rows.gather``."""
    present = np.flatnonzero(rows >= 0)
    out[present] = arena[rows[present], : out.shape[1]]


def scatter(arena: Floats, rows: Ids, values: Floats) -> None:
    """See ``compiled.rows.scatter``."""
    arena[rows, : values.shape[1]] = values


def all_finite(bits: NDArray[np.uint32]) -> bool:
    """See ``compiled.rows.all_finite``."""
    return bool(np.isfinite(bits.view(np.float32)).all())


def initialise(
    arena: Floats,
    keys: Ids,
    start: int,
    stop: int,
    dim: int,
    kind: int,
    a: float,
    b: float,
    seed: int,
    slots: Floats,
) -> None:
    """See ``compiled.initial.initialise``."""
    initial_values(arena[start:stop], keys[start:stop], dim, kind, a, b, seed)
    for index, value in enumerate(slots):
        arena[start:stop, (index + 1) * dim : (index + 2) * dim] = value


def sgd(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.sgd``."""
    w, _, g, lr = _begin(arena, rows, grads, h)
    _store(arena, rows, w - g * lr)


def momentum(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.momentum``."""
    w, (m,), g, lr = _begin(arena, rows, grads, h)
    m = m * h[3] - g * lr
    _store(arena, rows, w + m, m)


def nesterov(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.nesterov``."""
    w, (m,), g, lr = _begin(arena, rows, grads, h)
    m = m * h[3] - g * lr
    _store(arena, rows, w + (m * h[3] - g * lr), m)


def adam(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.adam``."""
    w, (m, v), g, _ = _begin(arena, rows, grads, h)
    m = m + (g - m) * h[3]
    v = v + (g * g - v) * h[4]
    _store(arena, rows, w - m * h[6] / (np.sqrt(v) + h[5]), m, v)


def amsgrad(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.amsgrad``."""
    w, (m, v, largest), g, _ = _begin(arena, rows, grads, h)
    m = m + (g - m) * h[3]
    v = v + (g * g - v) * h[4]
    largest = np.maximum(largest, v)
    _store(arena, rows, w - m * h[6] / (np.sqrt(largest) + h[5]), m, v, largest)


def adagrad(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.adagrad``."""
    w, (a,), g, lr = _begin(arena, rows, grads, h)
    a = a + g * g
    _store(arena, rows, w - lr * g / np.sqrt(a + h[3]), a)


def rmsprop(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.rmsprop``."""
    w, (v, *others), g, lr = _begin(arena, rows, grads, h)
    rho, rest, epsilon, mu, centered = h[3:8]
    v = rho * v + rest * (g * g)
    kept = [v]
    denominator = v
    if centered:
        average = rho * others[-1] + rest * g
        denominator = v - average * average
    step = lr * g / np.sqrt(denominator + epsilon)
    if mu > 0:
        step = mu * others[0] + step
        kept.append(step)
    if centered:
        kept.append(average)
    _store(arena, rows, w - step, *kept)


def adadelta(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.adadelta``."""
    w, (a, d), g, lr = _begin(arena, rows, grads, h)
    rho, rest, epsilon = h[3:6]
    a = rho * a + rest * (g * g)
    step = -(np.sqrt(d + epsilon) * g / np.sqrt(a + epsilon))
    _store(arena, rows, w + lr * step, a, rho * d + rest * (step * step))


def adamax(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.adamax``."""
    w, (m, u), g, lr = _begin(arena, rows, grads, h)
    m = m + (g - m) * h[3]
    u = np.maximum(h[4] * u, np.abs(g))
    _store(arena, rows, w - lr * m / (h[6] * (u + h[5])), m, u)


def ftrl(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.updates.ftrl``."""
    w, (a, z), g, lr = _begin(arena, rows, grads, h)
    power, l1, l2, shrinkage = h[3:7]
    total = a + g * g
    before, after = (np.sqrt(a), np.sqrt(total)) if power == 0.5 else (a**power, total**power)
    z = z + ((g + shrinkage * w) - (after - before) / lr * w)
    _store(arena, rows, (np.clip(z, -l1, l1) - z) / (after / lr + l2), total, z)


def _begin(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> tuple[Floats, list[Floats], Floats, Any]:
    """The decayed values, the slots, the scaled gradients and the learning rate."""
    dim = grads.shape[1]
    records = arena[rows]
    parts = [records[:, at : at + dim] for at in range(0, arena.shape[1], dim)]
    w = parts[0]
    return w - w * h[2] * h[1], parts[1:], grads * h[0], h[1]


def _store(arena: Floats, rows: Ids, *parts: Floats) -> None:
    arena[rows] = np.concatenate(parts, axis=1)
