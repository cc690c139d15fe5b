"""First values of DeepFM's dense parameters, for models in both frameworks that are to begin alike."""

import itertools

import numpy as np


def dense_values(fields, dim, seed, hidden=(64, 32)):
    """Kernel ``[in, out]`` and bias of the linear part (ones), of the hidden layers, the last (Glorot's)."""
    random = np.random.default_rng(seed)
    values = [(np.ones((fields, 1), np.float32), np.zeros(1, np.float32))]
    for wide, narrow in itertools.pairwise([fields * dim, *hidden, 1]):
        bound = np.sqrt(6 / (wide + narrow))
        kernel = random.uniform(-bound, bound, (wide, narrow)).astype(np.float32)
        values.append((kernel, np.zeros(narrow, np.float32)))
    return values
