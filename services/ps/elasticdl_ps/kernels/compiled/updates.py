"""Compiled kernels of optimizers: one pass over the touched rows, values and slots updated in place.

All take ``arena`` float32 ``[n, (1 + slots) * dim]`` with the value in the first ``dim`` columns and a slot in each
following ``dim``; ``rows`` int64 ``[k]``, all different; ``grads`` float32 ``[k, dim]``; ``h`` float32: the ``scale``
of the gradients, learning rate, weight decay, then the optimizer's own numbers in the order of
``elasticdl_ps.optimizers``. The order of operations follows Keras 3, so that rounding does too. A dense parameter is
a table of one row.

The loop over rows and columns stands once, in ``compile_update``. What an optimizer does to a number stands in
``_<optimizer>``, which works on eight columns (see ``lanes``) or on one: ``at`` is the address of the value, ``size``
the bytes from there to each next slot, ``grad`` the address of the gradient, ``kind`` says how many columns, ``own``
are the optimizer's own numbers. Addresses rather than indexes, because for an index numba asks at
each access whether it counts from the end.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated"
# (numba infers the types of what it compiles.)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.extending import register_jitable

from elasticdl_ps.kernels.compiled.intrinsics import prefetch
from elasticdl_ps.kernels.compiled.lanes import eight, larger, magnitude, power, read, root, smaller, write

# Dividing by zero gives infinity, as in numpy, because a check for it would keep the processor busy.
_OPTIONS: Any = {"nogil": True, "cache": True, "error_model": "numpy"}
INLINE: Any = {**_OPTIONS, "inline": "always"}
_AHEAD = 8
"""How many rows ahead memory is asked for: about its latency over the time a row takes."""
_LINE = 64
_MOST_BYTES = 4096
"""Of one row asked for ahead; of longer ones the processor's own prefetcher brings the rest."""
_EIGHT_BYTES, _ONE_BYTES = 32, 4
_ZERO, _HALF = np.float32(0), np.float32(0.5)


@njit(**INLINE)
def _ask(base, stride, rows, i):
    """Prefetches a row ahead. Its address comes from outside: to ask an array for it costs two atomic operations."""
    if i + _AHEAD < rows.shape[0]:
        at = base + rows[i + _AHEAD] * stride
        for line in range(0, min(stride, _MOST_BYTES), _LINE):
            prefetch(at + line)


def compile_update(step: Callable[..., Any]) -> Any:
    """The kernel of an optimizer: its step is inlined into the loop, and the code of both is kept on disk."""
    inlined = register_jitable(step)

    @njit(**_OPTIONS)
    def update(arena, rows, grads, h):
        base, stride = arena.ctypes.data, arena.strides[0]
        grad, grad_stride = np.int64(grads.ctypes.data), grads.strides[0]
        size = grads.shape[1] * _ONE_BYTES
        wide = size // _EIGHT_BYTES * _EIGHT_BYTES
        scale, lr, decay = h[0], h[1], h[2]
        own = (h[3], h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11])
        for i in range(rows.shape[0]):
            _ask(base, stride, rows, i)
            at = base + rows[i] * stride
            for j in range(0, wide, _EIGHT_BYTES):
                inlined(at + j, size, grad + j, eight(), scale, lr, decay, own)
            for j in range(wide, size, _ONE_BYTES):
                inlined(at + j, size, grad + j, _ZERO, scale, lr, decay, own)
            grad += grad_stride

    return update


def _sgd(at, size, grad, kind, scale, lr, decay, own):
    """Plain gradient descent."""
    w = read(at, kind)
    write(at, (w - w * decay * lr) - read(grad, kind) * scale * lr)


def _momentum(at, size, grad, kind, scale, lr, decay, own):
    """Gradient descent with momentum. Own: momentum. Slots: momentum."""
    mu = own[0]
    w = read(at, kind)
    m = read(at + size, kind) * mu - read(grad, kind) * scale * lr
    write(at + size, m)
    write(at, (w - w * decay * lr) + m)


def _nesterov(at, size, grad, kind, scale, lr, decay, own):
    """Nesterov's momentum. Own: momentum. Slots: momentum."""
    mu = own[0]
    w = read(at, kind)
    step = read(grad, kind) * scale * lr
    m = read(at + size, kind) * mu - step
    write(at + size, m)
    write(at, (w - w * decay * lr) + (m * mu - step))


def _adam(at, size, grad, kind, scale, lr, decay, own):
    """Adam. Own: 1 - beta_1, 1 - beta_2, epsilon, corrected learning rate. Slots: momentum, velocity."""
    rest_1, rest_2, epsilon, alpha = own[:4]
    w = read(at, kind)
    g = read(grad, kind) * scale
    m = read(at + size, kind)
    v = read(at + 2 * size, kind)
    m = m + (g - m) * rest_1
    v = v + (g * g - v) * rest_2
    write(at + size, m)
    write(at + 2 * size, v)
    write(at, (w - w * decay * lr) - m * alpha / (root(v) + epsilon))


def _amsgrad(at, size, grad, kind, scale, lr, decay, own):
    """Adam with the largest velocity so far. Own: as adam. Slots: momentum, velocity, velocity_hat."""
    rest_1, rest_2, epsilon, alpha = own[:4]
    w = read(at, kind)
    g = read(grad, kind) * scale
    m = read(at + size, kind)
    v = read(at + 2 * size, kind)
    m = m + (g - m) * rest_1
    v = v + (g * g - v) * rest_2
    largest = larger(read(at + 3 * size, kind), v)
    write(at + size, m)
    write(at + 2 * size, v)
    write(at + 3 * size, largest)
    write(at, (w - w * decay * lr) - m * alpha / (root(largest) + epsilon))


def _adagrad(at, size, grad, kind, scale, lr, decay, own):
    """Adagrad. Own: epsilon. Slots: accumulator."""
    epsilon = own[0]
    w = read(at, kind)
    g = read(grad, kind) * scale
    a = read(at + size, kind) + g * g
    write(at + size, a)
    write(at, (w - w * decay * lr) - g * lr / root(a + epsilon))


def _rmsprop(at, size, grad, kind, scale, lr, decay, own):
    """RMSprop. Own: rho, 1 - rho, epsilon, momentum, centered. Slots: velocity, then momentum and average if used."""
    rho, rest, epsilon, mu, centered = own[:5]
    w = read(at, kind)
    g = read(grad, kind) * scale
    v = read(at + size, kind) * rho + g * g * rest
    write(at + size, v)
    if centered != _ZERO:
        place = at + 3 * size if mu > _ZERO else at + 2 * size
        average = read(place, kind) * rho + g * rest
        write(place, average)
        v = v - average * average
    step = g * lr / root(v + epsilon)
    if mu > _ZERO:
        step = read(at + 2 * size, kind) * mu + step
        write(at + 2 * size, step)
    write(at, (w - w * decay * lr) - step)


def _adadelta(at, size, grad, kind, scale, lr, decay, own):
    """Adadelta. Own: rho, 1 - rho, epsilon. Slots: accumulated_grad, accumulated_delta_var."""
    rho, rest, epsilon = own[:3]
    w = read(at, kind)
    g = read(grad, kind) * scale
    a = read(at + size, kind) * rho + g * g * rest
    d = read(at + 2 * size, kind)
    step = root(d + epsilon) * g / root(a + epsilon)
    write(at + size, a)
    write(at + 2 * size, d * rho + step * step * rest)
    write(at, (w - w * decay * lr) - step * lr)


def _adamax(at, size, grad, kind, scale, lr, decay, own):
    """Adamax. Own: 1 - beta_1, beta_2, epsilon, 1 - beta_1^t. Slots: momentum, norm."""
    rest_1, beta_2, epsilon, correction = own[:4]
    w = read(at, kind)
    g = read(grad, kind) * scale
    m = read(at + size, kind)
    m = m + (g - m) * rest_1
    u = larger(read(at + 2 * size, kind) * beta_2, magnitude(g))
    write(at + size, m)
    write(at + 2 * size, u)
    write(at, (w - w * decay * lr) - m * lr / ((u + epsilon) * correction))


def _ftrl(at, size, grad, kind, scale, lr, decay, own):
    """FTRL. Own: -learning_rate_power, l1, 2 * l2 (with beta), 2 * l2_shrinkage. Slots: accumulator, linear."""
    exponent, l1, l2, shrinkage = own[:4]
    w = read(at, kind)
    w = w - w * decay * lr
    g = read(grad, kind) * scale
    a = read(at + size, kind)
    total = a + g * g
    if exponent == _HALF:
        before = root(a)
        after = root(total)
    else:
        before = power(a, exponent)
        after = power(total, exponent)
    z = read(at + 2 * size, kind) + ((g + w * shrinkage) - (after - before) / lr * w)
    write(at + size, total)
    write(at + 2 * size, z)
    write(at, (smaller(larger(z, -l1), l1) - z) / (after / lr + l2))


sgd = compile_update(_sgd)
momentum = compile_update(_momentum)
nesterov = compile_update(_nesterov)
adam = compile_update(_adam)
amsgrad = compile_update(_amsgrad)
adagrad = compile_update(_adagrad)
rmsprop = compile_update(_rmsprop)
adadelta = compile_update(_adadelta)
adamax = compile_update(_adamax)
ftrl = compile_update(_ftrl)
