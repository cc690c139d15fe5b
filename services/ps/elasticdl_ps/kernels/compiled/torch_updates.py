"""Compiled kernels of optimizers with PyTorch's semantics; ``compiled.updates`` says how they are called.

Of ``h`` the weight decay is here what is added to the gradient. The order of operations follows ``torch.optim``, so
that rounding nearly does too (PyTorch fuses some multiplications with additions).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated"
# (numba infers the types of what it compiles.)

from __future__ import annotations

import numpy as np
from numba import njit

from elasticdl_ps.kernels.compiled.lanes import either, larger, magnitude, read, root, write
from elasticdl_ps.kernels.compiled.updates import INLINE, compile_update

_ZERO = np.float32(0)


@njit(**INLINE)
def _moment(place, kind, old, new, value):
    """Moves the mean of squares at a place on: ``old * mean + new * value``, which is returned."""
    mean = read(place, kind) * old + value * value * new
    write(place, mean)
    return mean


@njit(**INLINE)
def _mean(place, kind, new, value):
    """Moves the mean at a place on, which is returned."""
    mean = read(place, kind)
    mean = mean + (value - mean) * new
    write(place, mean)
    return mean


def _torch_momentum(at, size, grad, kind, scale, lr, decay, own):
    """SGD with momentum. Own: momentum, 1 - dampening, nesterov. Slots: momentum_buffer, no number at first."""
    mu, rest, nesterov = own[:3]
    w = read(at, kind)
    g = read(grad, kind) * scale + w * decay
    m = read(at + size, kind)
    m = either(m, m * mu + g * rest, g)
    write(at + size, m)
    if nesterov != _ZERO:
        m = g + m * mu
    write(at, w - m * lr)


def _torch_adam(at, size, grad, kind, scale, lr, decay, own):
    """Adam and AdamW. Own: kept weight, 1 - beta_1, beta_2, 1 - beta_2, epsilon, step size, root of the correction.

    Slots: exp_avg, exp_avg_sq.
    """
    kept, rest_1, beta_2, rest_2, epsilon, step_size, root_2 = own[:7]
    w = read(at, kind)
    g = read(grad, kind) * scale + w * decay
    m = _mean(at + size, kind, rest_1, g)
    v = _moment(at + 2 * size, kind, beta_2, rest_2, g)
    write(at, w * kept - m / (root(v) / root_2 + epsilon) * step_size)


def _torch_amsgrad(at, size, grad, kind, scale, lr, decay, own):
    """Adam with the largest mean of squares so far. Own: as torch_adam, and whether it is used. Slots: one more."""
    kept, rest_1, beta_2, rest_2, epsilon, step_size, root_2, used = own[:8]
    w = read(at, kind)
    g = read(grad, kind) * scale + w * decay
    m = _mean(at + size, kind, rest_1, g)
    v = _moment(at + 2 * size, kind, beta_2, rest_2, g)
    if used != _ZERO:
        v = larger(read(at + 3 * size, kind), v)
        write(at + 3 * size, v)
    write(at, w * kept - m / (root(v) / root_2 + epsilon) * step_size)


def _torch_adagrad(at, size, grad, kind, scale, lr, decay, own):
    """Adagrad. Own: epsilon, decayed learning rate. Slots: sum."""
    epsilon, step_size = own[:2]
    w = read(at, kind)
    g = read(grad, kind) * scale + w * decay
    total = read(at + size, kind) + g * g
    write(at + size, total)
    write(at, w - g / (root(total) + epsilon) * step_size)


def _torch_rmsprop(at, size, grad, kind, scale, lr, decay, own):
    """RMSprop. Own: alpha, 1 - alpha, epsilon, momentum, centered, whether there are slots for either.

    Slots: square_avg, then grad_avg and momentum_buffer if any group uses them.
    """
    alpha, rest, epsilon, mu, centered, has_momentum, has_average = own[:7]
    w = read(at, kind)
    g = read(grad, kind) * scale + w * decay
    v = _moment(at + size, kind, alpha, rest, g)
    if centered != _ZERO:
        average = _mean(at + 2 * size, kind, rest, g)
        # Rounding can make a variance of nothing negative.
        v = larger(v - average * average, _ZERO)
    step = g / (root(v) + epsilon)
    if has_momentum != _ZERO:
        place = at + 3 * size if has_average != _ZERO else at + 2 * size
        step = read(place, kind) * mu + step
        write(place, step)
    write(at, w - step * lr)


def _torch_adadelta(at, size, grad, kind, scale, lr, decay, own):
    """Adadelta. Own: rho, 1 - rho, epsilon. Slots: square_avg, acc_delta."""
    rho, rest, epsilon = own[:3]
    w = read(at, kind)
    g = read(grad, kind) * scale + w * decay
    v = _moment(at + size, kind, rho, rest, g)
    d = read(at + 2 * size, kind)
    step = root(d + epsilon) / root(v + epsilon) * g
    write(at + 2 * size, d * rho + step * step * rest)
    write(at, w - step * lr)


def _torch_adamax(at, size, grad, kind, scale, lr, decay, own):
    """Adamax. Own: 1 - beta_1, beta_2, epsilon, step size. Slots: exp_avg, exp_inf."""
    rest_1, beta_2, epsilon, step_size = own[:4]
    w = read(at, kind)
    g = read(grad, kind) * scale + w * decay
    m = _mean(at + size, kind, rest_1, g)
    u = larger(read(at + 2 * size, kind) * beta_2, magnitude(g) + epsilon)
    write(at + 2 * size, u)
    write(at, w - m / u * step_size)


def _torch_nadam(at, size, grad, kind, scale, lr, decay, own):
    """NAdam. Own: as torch_adam up to epsilon, then correction, and steps of gradient and mean. Slots: as it."""
    kept, rest_1, beta_2, rest_2, epsilon, correction_2, of_gradient, of_mean = own[:8]
    w = read(at, kind)
    g = read(grad, kind) * scale + w * decay
    m = _mean(at + size, kind, rest_1, g)
    v = _moment(at + 2 * size, kind, beta_2, rest_2, g)
    divisor = root(v / correction_2) + epsilon
    write(at, w * kept - g / divisor * of_gradient - m / divisor * of_mean)


def _torch_radam(at, size, grad, kind, scale, lr, decay, own):
    """RAdam. Own: as torch_adam up to epsilon, then the step size, and whether it adapts. Slots: as it."""
    kept, rest_1, beta_2, rest_2, epsilon, step_size, adapts = own[:7]
    w = read(at, kind)
    g = read(grad, kind) * scale + w * decay
    step = _mean(at + size, kind, rest_1, g)
    v = _moment(at + 2 * size, kind, beta_2, rest_2, g)
    if adapts != _ZERO:
        step = step / (root(v) + epsilon)
    write(at, w * kept - step * step_size)


torch_momentum = compile_update(_torch_momentum)
torch_adam = compile_update(_torch_adam)
torch_amsgrad = compile_update(_torch_amsgrad)
torch_adagrad = compile_update(_torch_adagrad)
torch_rmsprop = compile_update(_torch_rmsprop)
torch_adadelta = compile_update(_torch_adadelta)
torch_adamax = compile_update(_torch_adamax)
torch_nadam = compile_update(_torch_nadam)
torch_radam = compile_update(_torch_radam)
