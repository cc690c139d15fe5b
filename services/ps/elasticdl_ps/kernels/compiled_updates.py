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

import numpy as np
from numba import njit

from elasticdl_ps.kernels.intrinsics import prefetch

_AHEAD = 6
_LINE = 64
_ZERO = np.float32(0)
_ONE = np.float32(1)
_TWO = np.float32(2)


@njit(nogil=True, cache=True, inline="always")
def _ask(arena, rows, i, width):
    if i + _AHEAD < rows.shape[0]:
        at = arena.ctypes.data + rows[i + _AHEAD] * arena.strides[0]
        for line in range(0, width * 4, _LINE):
            prefetch(at + line)


@njit(nogil=True, cache=True)
def sgd(arena, rows, grads, h):
    """Plain gradient descent."""
    dim = grads.shape[1]
    scale, lr, decay = h[0], h[1], h[2]
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, dim)
        r = rows[i]
        for j in range(dim):
            w = arena[r, j]
            arena[r, j] = (w - w * decay * lr) - grads[i, j] * scale * lr


@njit(nogil=True, cache=True)
def momentum(arena, rows, grads, h):
    """Gradient descent with momentum. Own: momentum. Slots: momentum."""
    dim = grads.shape[1]
    scale, lr, decay, mu = h[0], h[1], h[2], h[3]
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, 2 * dim)
        r = rows[i]
        for j in range(dim):
            w = arena[r, j]
            m = arena[r, dim + j] * mu - grads[i, j] * scale * lr
            arena[r, dim + j] = m
            arena[r, j] = (w - w * decay * lr) + m


@njit(nogil=True, cache=True)
def nesterov(arena, rows, grads, h):
    """Nesterov's momentum. Own: momentum. Slots: momentum."""
    dim = grads.shape[1]
    scale, lr, decay, mu = h[0], h[1], h[2], h[3]
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, 2 * dim)
        r = rows[i]
        for j in range(dim):
            w = arena[r, j]
            step = grads[i, j] * scale * lr
            m = arena[r, dim + j] * mu - step
            arena[r, dim + j] = m
            arena[r, j] = (w - w * decay * lr) + (m * mu - step)


@njit(nogil=True, cache=True)
def adam(arena, rows, grads, h):
    """Adam. Own: 1 - beta_1, 1 - beta_2, epsilon, corrected learning rate. Slots: momentum, velocity."""
    dim = grads.shape[1]
    scale, lr, decay = h[0], h[1], h[2]
    rest_1, rest_2, epsilon, alpha = h[3], h[4], h[5], h[6]
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, 3 * dim)
        r = rows[i]
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            m = arena[r, dim + j]
            v = arena[r, 2 * dim + j]
            m += (g - m) * rest_1
            v += (g * g - v) * rest_2
            arena[r, dim + j] = m
            arena[r, 2 * dim + j] = v
            arena[r, j] = (w - w * decay * lr) - m * alpha / (np.sqrt(v) + epsilon)


@njit(nogil=True, cache=True)
def amsgrad(arena, rows, grads, h):
    """Adam with the largest velocity so far. Own: as adam. Slots: momentum, velocity, velocity_hat."""
    dim = grads.shape[1]
    scale, lr, decay = h[0], h[1], h[2]
    rest_1, rest_2, epsilon, alpha = h[3], h[4], h[5], h[6]
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, 4 * dim)
        r = rows[i]
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            m = arena[r, dim + j]
            v = arena[r, 2 * dim + j]
            m += (g - m) * rest_1
            v += (g * g - v) * rest_2
            largest = max(arena[r, 3 * dim + j], v)
            arena[r, dim + j] = m
            arena[r, 2 * dim + j] = v
            arena[r, 3 * dim + j] = largest
            arena[r, j] = (w - w * decay * lr) - m * alpha / (np.sqrt(largest) + epsilon)


@njit(nogil=True, cache=True)
def adagrad(arena, rows, grads, h):
    """Adagrad. Own: epsilon. Slots: accumulator."""
    dim = grads.shape[1]
    scale, lr, decay, epsilon = h[0], h[1], h[2], h[3]
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, 2 * dim)
        r = rows[i]
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            a = arena[r, dim + j] + g * g
            arena[r, dim + j] = a
            arena[r, j] = (w - w * decay * lr) - lr * g / np.sqrt(a + epsilon)


@njit(nogil=True, cache=True)
def rmsprop(arena, rows, grads, h):
    """RMSprop. Own: rho, 1 - rho, epsilon, momentum, centered. Slots: velocity, then momentum and average if used."""
    dim = grads.shape[1]
    scale, lr, decay = h[0], h[1], h[2]
    rho, rest, epsilon, mu = h[3], h[4], h[5], h[6]
    centered = h[7] != _ZERO
    moving = mu > _ZERO
    average_at = 3 * dim if moving else 2 * dim
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, arena.shape[1])
        r = rows[i]
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
                step = mu * arena[r, 2 * dim + j] + step
                arena[r, 2 * dim + j] = step
            arena[r, j] = (w - w * decay * lr) - step


@njit(nogil=True, cache=True)
def adadelta(arena, rows, grads, h):
    """Adadelta. Own: rho, 1 - rho, epsilon. Slots: accumulated_grad, accumulated_delta_var."""
    dim = grads.shape[1]
    scale, lr, decay = h[0], h[1], h[2]
    rho, rest, epsilon = h[3], h[4], h[5]
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, 3 * dim)
        r = rows[i]
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            a = rho * arena[r, dim + j] + rest * (g * g)
            d = arena[r, 2 * dim + j]
            step = -(np.sqrt(d + epsilon) * g / np.sqrt(a + epsilon))
            arena[r, dim + j] = a
            arena[r, 2 * dim + j] = rho * d + rest * (step * step)
            arena[r, j] = (w - w * decay * lr) + lr * step


@njit(nogil=True, cache=True)
def adamax(arena, rows, grads, h):
    """Adamax. Own: 1 - beta_1, beta_2, epsilon, 1 - beta_1^t. Slots: momentum, norm."""
    dim = grads.shape[1]
    scale, lr, decay = h[0], h[1], h[2]
    rest_1, beta_2, epsilon, correction = h[3], h[4], h[5], h[6]
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, 3 * dim)
        r = rows[i]
        for j in range(dim):
            w = arena[r, j]
            g = grads[i, j] * scale
            m = arena[r, dim + j]
            m += (g - m) * rest_1
            u = max(beta_2 * arena[r, 2 * dim + j], abs(g))
            arena[r, dim + j] = m
            arena[r, 2 * dim + j] = u
            arena[r, j] = (w - w * decay * lr) - lr * m / (correction * (u + epsilon))


@njit(nogil=True, cache=True)
def ftrl(arena, rows, grads, h):
    """FTRL. Own: -learning_rate_power, l1, 2 * l2 (with beta), 2 * l2_shrinkage. Slots: accumulator, linear."""
    dim = grads.shape[1]
    scale, lr, decay = h[0], h[1], h[2]
    power, l1, l2, shrinkage = h[3], h[4], h[5], h[6]
    is_root = power == np.float32(0.5)
    for i in range(rows.shape[0]):
        _ask(arena, rows, i, 3 * dim)
        r = rows[i]
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
            z = arena[r, 2 * dim + j] + ((g + shrinkage * w) - (after - before) / lr * w)
            arena[r, dim + j] = total
            arena[r, 2 * dim + j] = z
            arena[r, j] = (min(max(z, -l1), l1) - z) / (after / lr + l2)
