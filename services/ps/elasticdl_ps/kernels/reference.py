"""The kernels in plain numpy: the meaning of the compiled ones, and a stand-in where numba cannot run.

Signatures and results are those of ``compiled_rows``, ``compiled_initial`` and ``compiled_updates``; a map may place
its entries elsewhere, and floating-point results may differ in the last bit. There is no loop over ids or rows here
either, only over probes of a map.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_ps.kernels.codes import CONSTANT, NORMAL, TRUNCATED_NORMAL
from elasticdl_runtime.partition import hash_ids

Ids = NDArray[np.int64]
Map = NDArray[np.uint64]
Floats = NDArray[np.float32]

_U32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ATTEMPT = np.uint64(0xD1B54A32D192ED03)


def find(new: Map, old: Map, keys: Ids, query: Ids, out: Ids) -> int:
    """See ``compiled_rows.find``."""
    out[:] = _probe(new, keys, query)
    if len(old):
        missing = np.flatnonzero(out < 0)
        out[missing] = _probe(old, keys, query[missing])
    return int(np.count_nonzero(out < 0))


def find_or_insert(new: Map, old: Map, keys: Ids, query: Ids, out: Ids, count: int) -> int:
    """See ``compiled_rows.find_or_insert``."""
    if not find(new, old, keys, query, out):
        return count
    missing = np.flatnonzero(out < 0)
    fresh, first, inverse = np.unique(query[missing], return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(fresh), np.int64)
    rank[order] = np.arange(len(fresh))
    stop = count + len(fresh)
    keys[count:stop] = fresh[order]
    migrate(new, keys, count, stop)
    out[missing] = count + rank[inverse]
    return stop


def migrate(new: Map, keys: Ids, start: int, stop: int) -> None:
    """See ``compiled_rows.migrate``."""
    codes = hash_ids(keys[start:stop])
    mask = np.uint64(len(new) - 1)
    at = codes & mask
    entries = (codes >> _S32 << _S32) | np.arange(start + 1, stop + 1, dtype=np.uint64)
    while len(entries):
        free = new[at] == 0
        new[at[free]] = entries[free]
        lost = new[at] != entries
        at, entries = (at[lost] + np.uint64(1)) & mask, entries[lost]


def has_duplicates(ids: Ids) -> bool:
    """See ``compiled_rows.has_duplicates``."""
    return len(np.unique(ids)) < len(ids)


def merge_rows(ids: Ids, values: Floats, out_ids: Ids, out_values: Floats) -> int:
    """See ``compiled_rows.merge_rows``."""
    unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(unique), np.int64)
    rank[order] = np.arange(len(unique))
    out_ids[: len(unique)] = unique[order]
    out_values[: len(unique)] = 0
    np.add.at(out_values, rank[inverse], values)
    return len(unique)


def gather(arena: Floats, rows: Ids, out: Floats) -> None:
    """See ``compiled_rows.gather``."""
    present = np.flatnonzero(rows >= 0)
    out[present] = arena[rows[present], : out.shape[1]]


def scatter(arena: Floats, rows: Ids, values: Floats) -> None:
    """See ``compiled_rows.scatter``."""
    arena[rows, : values.shape[1]] = values


def all_finite(bits: NDArray[np.uint32]) -> bool:
    """See ``compiled_rows.all_finite``."""
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
    """See ``compiled_initial.initialise``."""
    initial_values(arena[start:stop], keys[start:stop], dim, kind, a, b, seed)
    for index, value in enumerate(slots):
        arena[start:stop, (index + 1) * dim : (index + 2) * dim] = value


def initial_values(out: Floats, ids: Ids, dim: int, kind: int, a: float, b: float, seed: int) -> None:
    """See ``compiled_initial.initial_values``."""
    if kind == CONSTANT:
        out[:, :dim] = np.float32(a)
        return
    salt = _hash(np.array([seed]).astype(np.uint64) + _GOLDEN)
    stream = _hash(ids.astype(np.uint64) + salt)
    counters = stream[:, None] + np.arange(1, dim + 1, dtype=np.uint64) * _GOLDEN
    if kind in (NORMAL, TRUNCATED_NORMAL):
        numbers = _normal(_hash(counters))
        while kind == TRUNCATED_NORMAL and (far := np.abs(numbers) > 2.0).any():
            counters[far] += _ATTEMPT
            numbers[far] = _normal(_hash(counters[far]))
        out[:, :dim] = a + b * numbers
    else:
        out[:, :dim] = a + (b - a) * ((_hash(counters) >> np.uint64(11)) * (1.0 / (1 << 53)))


def sgd(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled_updates.sgd``."""
    w, _, g, lr = _begin(arena, rows, grads, h)
    _store(arena, rows, w - g * lr)


def momentum(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled_updates.momentum``."""
    w, (m,), g, lr = _begin(arena, rows, grads, h)
    m = m * h[3] - g * lr
    _store(arena, rows, w + m, m)


def nesterov(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled_updates.nesterov``."""
    w, (m,), g, lr = _begin(arena, rows, grads, h)
    m = m * h[3] - g * lr
    _store(arena, rows, w + (m * h[3] - g * lr), m)


def adam(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled_updates.adam``."""
    w, (m, v), g, _ = _begin(arena, rows, grads, h)
    m = m + (g - m) * h[3]
    v = v + (g * g - v) * h[4]
    _store(arena, rows, w - m * h[6] / (np.sqrt(v) + h[5]), m, v)


def amsgrad(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled_updates.amsgrad``."""
    w, (m, v, largest), g, _ = _begin(arena, rows, grads, h)
    m = m + (g - m) * h[3]
    v = v + (g * g - v) * h[4]
    largest = np.maximum(largest, v)
    _store(arena, rows, w - m * h[6] / (np.sqrt(largest) + h[5]), m, v, largest)


def adagrad(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled_updates.adagrad``."""
    w, (a,), g, lr = _begin(arena, rows, grads, h)
    a = a + g * g
    _store(arena, rows, w - lr * g / np.sqrt(a + h[3]), a)


def rmsprop(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled_updates.rmsprop``."""
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
    """See ``compiled_updates.adadelta``."""
    w, (a, d), g, lr = _begin(arena, rows, grads, h)
    rho, rest, epsilon = h[3:6]
    a = rho * a + rest * (g * g)
    step = -(np.sqrt(d + epsilon) * g / np.sqrt(a + epsilon))
    _store(arena, rows, w + lr * step, a, rho * d + rest * (step * step))


def adamax(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled_updates.adamax``."""
    w, (m, u), g, lr = _begin(arena, rows, grads, h)
    m = m + (g - m) * h[3]
    u = np.maximum(h[4] * u, np.abs(g))
    _store(arena, rows, w - lr * m / (h[6] * (u + h[5])), m, u)


def ftrl(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled_updates.ftrl``."""
    w, (a, z), g, lr = _begin(arena, rows, grads, h)
    power, l1, l2, shrinkage = h[3:7]
    total = a + g * g
    before, after = (np.sqrt(a), np.sqrt(total)) if power == 0.5 else (a**power, total**power)
    z = z + ((g + shrinkage * w) - (after - before) / lr * w)
    _store(arena, rows, (np.clip(z, -l1, l1) - z) / (after / lr + l2), total, z)


def _probe(table: Map, keys: Ids, query: Ids) -> Ids:
    """Rows of keys in one map, -1 where missing."""
    out = np.full(len(query), -1, np.int64)
    codes = hash_ids(query)
    mask = np.uint64(len(table) - 1)
    at = codes & mask
    open_ = np.arange(len(query))
    while len(open_):
        entries = table[at[open_]]
        rows = (entries & _U32).astype(np.int64) - 1
        hit = (entries != 0) & (entries >> _S32 == codes[open_] >> _S32)
        hit[hit] = keys[rows[hit]] == query[open_[hit]]
        out[open_[hit]] = rows[hit]
        open_ = open_[~hit & (entries != 0)]
        at[open_] = (at[open_] + np.uint64(1)) & mask
    return out


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return hash_ids(values.view(np.int64))


def _normal(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    first = ((bits >> _S32).astype(np.float64) + 0.5) / (1 << 32)
    second = (bits & _U32).astype(np.float64) / (1 << 32)
    result: NDArray[np.float64] = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    return result


def _begin(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> tuple[Floats, list[Floats], Floats, Any]:
    """The decayed values, the slots, the scaled gradients and the learning rate."""
    dim = grads.shape[1]
    records = arena[rows]
    parts = [records[:, at : at + dim] for at in range(0, arena.shape[1], dim)]
    w = parts[0]
    return w - w * h[2] * h[1], parts[1:], grads * h[0], h[1]


def _store(arena: Floats, rows: Ids, *parts: Floats) -> None:
    arena[rows] = np.concatenate(parts, axis=1)
