"""The kernels of ``compiled.torch_updates`` in plain numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elasticdl_ps.kernels.reference import Floats, Ids


def torch_momentum(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.torch_updates``."""
    w, (m, *_), g = _begin(arena, rows, grads, h)
    m = np.where(np.isnan(m), g, m * h[3] + g * h[4])
    step = g + m * h[3] if h[5] else m
    _store(arena, rows, w - step * h[1], m)


def torch_adam(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.torch_updates``."""
    w, (m, v, *_), g = _begin(arena, rows, grads, h)
    m, v = _moments(m, v, g, h)
    _store(arena, rows, w * h[3] - m / (np.sqrt(v) / h[9] + h[7]) * h[8], m, v)


def torch_amsgrad(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.torch_updates``."""
    w, (m, v, largest), g = _begin(arena, rows, grads, h)
    m, v = _moments(m, v, g, h)
    if h[10]:
        largest = np.maximum(largest, v)
    used = largest if h[10] else v
    _store(arena, rows, w * h[3] - m / (np.sqrt(used) / h[9] + h[7]) * h[8], m, v, largest)


def torch_adagrad(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.torch_updates``."""
    w, (total,), g = _begin(arena, rows, grads, h)
    total = total + g * g
    _store(arena, rows, w - g / (np.sqrt(total) + h[3]) * h[4], total)


def torch_rmsprop(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.torch_updates``."""
    w, (v, *others), g = _begin(arena, rows, grads, h)
    alpha, rest, epsilon, mu, centered, has_momentum = h[3:9]
    v = v * alpha + g * g * rest
    variance = v
    if centered:
        others[0] = others[0] + (g - others[0]) * rest
        variance = np.maximum(v - others[0] * others[0], np.float32(0))
    step = g / (np.sqrt(variance) + epsilon)
    if has_momentum:
        others[-1] = step = others[-1] * mu + step
    _store(arena, rows, w - step * h[1], v, *others)


def torch_adadelta(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.torch_updates``."""
    w, (v, d), g = _begin(arena, rows, grads, h)
    rho, rest, epsilon = h[3:6]
    v = v * rho + g * g * rest
    step = np.sqrt(d + epsilon) / np.sqrt(v + epsilon) * g
    _store(arena, rows, w - step * h[1], v, d * rho + step * step * rest)


def torch_adamax(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.torch_updates``."""
    w, (m, u), g = _begin(arena, rows, grads, h)
    m = m + (g - m) * h[3]
    u = np.maximum(u * h[4], np.abs(g) + h[5])
    _store(arena, rows, w - m / u * h[6], m, u)


def torch_nadam(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.torch_updates``."""
    w, (m, v), g = _begin(arena, rows, grads, h)
    m, v = _moments(m, v, g, h)
    divisor = np.sqrt(v / h[8]) + h[7]
    _store(arena, rows, w * h[3] - g / divisor * h[9] - m / divisor * h[10], m, v)


def torch_radam(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> None:
    """See ``compiled.torch_updates``."""
    w, (m, v), g = _begin(arena, rows, grads, h)
    m, v = _moments(m, v, g, h)
    step = m / (np.sqrt(v) + h[7]) if h[9] else m
    _store(arena, rows, w * h[3] - step * h[8], m, v)


def _begin(arena: Floats, rows: Ids, grads: Floats, h: Floats) -> tuple[Floats, list[Floats], Floats]:
    """The values, the slots, and the scaled gradients with what decay adds to them."""
    dim = grads.shape[1]
    records = arena[rows]
    w, *slots = (records[:, at : at + dim] for at in range(0, arena.shape[1], dim))
    return w, slots, grads * h[0] + w * h[2]


def _moments(m: Floats, v: Floats, g: Floats, h: Floats) -> tuple[Floats, Floats]:
    return m + (g - m) * h[4], v * h[5] + g * g * h[6]


def _store(arena: Floats, rows: Ids, *parts: NDArray[np.float32]) -> None:
    arena[rows] = np.concatenate(parts, axis=1)
