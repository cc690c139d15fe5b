"""Compiled kernels of optimizers: one pass over the touched rows, values and slots updated in place.

All take ``arena`` float32 ``[n, (1 + slots) * dim]`` with the value in the first ``dim`` columns and a slot in each
following ``dim``; ``rows`` int64 ``[k]``, all different; ``grads`` float32 ``[k, dim]``; ``h`` float32: the ``scale``
of the gradients, learning rate, weight decay, then the optimizer's own numbers in the order of
``elasticdl_ps.optimizers``. The order of operations follows Keras 3, so that rounding does too. A dense parameter is
a table of one row.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"
# (numba infers the types of what it compiles.)

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from elasticdl_ps.kernels.intrinsics import prefetch

# Offsets are unsigned, because for a signed index numba asks at each access whether it counts from the end, which
# keeps loops from being vectorised. Dividing by zero gives infinity, as in numpy, because a check would do the same.
_OPTIONS: Any = {"nogil": True, "cache": True, "error_model": "numpy"}
_AHEAD = 6
_LINE = 64
_MOST_BYTES = 4096
"""Of one row asked for ahead; of longer ones the processor's own prefetcher brings the rest."""
_ZERO = np.float32(0)


@njit(inline="always", **_OPTIONS)
def _ask(base, stride, rows, i):
    """Prefetches a row ahead. Its address comes from outside: to ask an array for it costs two atomic operations."""
    if i + _AHEAD < rows.shape[0]:
        at = base + rows[i + _AHEAD] * stride
        for line in range(0, min(stride, _MOST_BYTES), _LINE):
            prefetch(at + line)


@njit(**_OPTIONS)
def sgd(arena, rows, grads, h):
    """Plain gradient descent."""
    dim = np.uint64(grads.shape[1])
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay = h[0], h[1], h[2]
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            arena[r, j] = (w - w * decay * lr) - grads[i, j] * scale * lr


@njit(**_OPTIONS)
def momentum(arena, rows, grads, h):
    """Gradient descent with momentum. Own: momentum. Slots: momentum."""
    dim = np.uint64(grads.shape[1])
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay, mu = h[0], h[1], h[2], h[3]
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            m = arena[r, dim + j] * mu - grads[i, j] * scale * lr
            arena[r, dim + j] = m
            arena[r, j] = (w - w * decay * lr) + m


@njit(**_OPTIONS)
def nesterov(arena, rows, grads, h):
    """Nesterov's momentum. Own: momentum. Slots: momentum."""
    dim = np.uint64(grads.shape[1])
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay, mu = h[0], h[1], h[2], h[3]
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            step = grads[i, j] * scale * lr
            m = arena[r, dim + j] * mu - step
            arena[r, dim + j] = m
            arena[r, j] = (w - w * decay * lr) + (m * mu - step)


@njit(**_OPTIONS)
def adam(arena, rows, grads, h):
    """Adam. Own: 1 - beta_1, 1 - beta_2, epsilon, corrected learning rate. Slots: momentum, velocity."""
    dim = np.uint64(grads.shape[1])
    second = dim + dim
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay = h[0], h[1], h[2]
    rest_1, rest_2, epsilon, alpha = h[3], h[4], h[5], h[6]
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            m = arena[r, dim + j]
            v = arena[r, second + j]
            m += (g - m) * rest_1
            v += (g * g - v) * rest_2
            arena[r, dim + j] = m
            arena[r, second + j] = v
            arena[r, j] = (w - w * decay * lr) - m * alpha / (np.sqrt(v) + epsilon)


@njit(**_OPTIONS)
def amsgrad(arena, rows, grads, h):
    """Adam with the largest velocity so far. Own: as adam. Slots: momentum, velocity, velocity_hat."""
    dim = np.uint64(grads.shape[1])
    second = dim + dim
    third = second + dim
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay = h[0], h[1], h[2]
    rest_1, rest_2, epsilon, alpha = h[3], h[4], h[5], h[6]
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            m = arena[r, dim + j]
            v = arena[r, second + j]
            m += (g - m) * rest_1
            v += (g * g - v) * rest_2
            largest = max(arena[r, third + j], v)
            arena[r, dim + j] = m
            arena[r, second + j] = v
            arena[r, third + j] = largest
            arena[r, j] = (w - w * decay * lr) - m * alpha / (np.sqrt(largest) + epsilon)


@njit(**_OPTIONS)
def adagrad(arena, rows, grads, h):
    """Adagrad. Own: epsilon. Slots: accumulator."""
    dim = np.uint64(grads.shape[1])
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay, epsilon = h[0], h[1], h[2], h[3]
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            a = arena[r, dim + j] + g * g
            arena[r, dim + j] = a
            arena[r, j] = (w - w * decay * lr) - lr * g / np.sqrt(a + epsilon)


@njit(**_OPTIONS)
def rmsprop(arena, rows, grads, h):
    """RMSprop. Own: rho, 1 - rho, epsilon, momentum, centered. Slots: velocity, then momentum and average if used."""
    dim = np.uint64(grads.shape[1])
    second = dim + dim
    third = second + dim
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay = h[0], h[1], h[2]
    rho, rest, epsilon, mu = h[3], h[4], h[5], h[6]
    centered = h[7] != _ZERO
    moving = mu > _ZERO
    average_at = third if moving else second
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            v = rho * arena[r, dim + j] + rest * (g * g)
            arena[r, dim + j] = v
            if centered:
                average = rho * arena[r, average_at + j] + rest * g
                arena[r, average_at + j] = average
                v = v - average * average
            step = lr * g / np.sqrt(v + epsilon)
            if moving:
                step = mu * arena[r, second + j] + step
                arena[r, second + j] = step
            arena[r, j] = (w - w * decay * lr) - step


@njit(**_OPTIONS)
def adadelta(arena, rows, grads, h):
    """Adadelta. Own: rho, 1 - rho, epsilon. Slots: accumulated_grad, accumulated_delta_var."""
    dim = np.uint64(grads.shape[1])
    second = dim + dim
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay = h[0], h[1], h[2]
    rho, rest, epsilon = h[3], h[4], h[5]
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            a = rho * arena[r, dim + j] + rest * (g * g)
            d = arena[r, second + j]
            step = -(np.sqrt(d + epsilon) * g / np.sqrt(a + epsilon))
            arena[r, dim + j] = a
            arena[r, second + j] = rho * d + rest * (step * step)
            arena[r, j] = (w - w * decay * lr) + lr * step


@njit(**_OPTIONS)
def adamax(arena, rows, grads, h):
    """Adamax. Own: 1 - beta_1, beta_2, epsilon, 1 - beta_1^t. Slots: momentum, norm."""
    dim = np.uint64(grads.shape[1])
    second = dim + dim
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay = h[0], h[1], h[2]
    rest_1, beta_2, epsilon, correction = h[3], h[4], h[5], h[6]
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            m = arena[r, dim + j]
            m += (g - m) * rest_1
            u = max(beta_2 * arena[r, second + j], abs(g))
            arena[r, dim + j] = m
            arena[r, second + j] = u
            arena[r, j] = (w - w * decay * lr) - lr * m / (correction * (u + epsilon))


@njit(**_OPTIONS)
def ftrl(arena, rows, grads, h):
    """FTRL. Own: -learning_rate_power, l1, 2 * l2 (with beta), 2 * l2_shrinkage. Slots: accumulator, linear."""
    dim = np.uint64(grads.shape[1])
    second = dim + dim
    base, stride = arena.ctypes.data, arena.strides[0]
    scale, lr, decay = h[0], h[1], h[2]
    power, l1, l2, shrinkage = h[3], h[4], h[5], h[6]
    is_root = power == np.float32(0.5)
    for i in range(rows.shape[0]):
        _ask(base, stride, rows, i)
        r = np.uint64(rows[i])
        for j in range(dim):
            w = arena[r, j]
            w = w - w * decay * lr
            g = grads[i, j] * scale
            a = arena[r, dim + j]
            total = a + g * g
            if is_root:
                before = np.sqrt(a)
                after = np.sqrt(total)
            else:
                before = a**power
                after = total**power
            z = arena[r, second + j] + ((g + shrinkage * w) - (after - before) / lr * w)
            arena[r, dim + j] = total
            arena[r, second + j] = z
            arena[r, j] = (min(max(z, -l1), l1) - z) / (after / lr + l2)
