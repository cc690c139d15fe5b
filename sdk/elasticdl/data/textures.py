"""Draws small colour images of ten kinds of texture, in the form of CIFAR-10.

A kind is a pair of gratings, of directions and wavelengths of its own, whose product is the texture. Where it begins,
its two colours, how strong it is and the noise upon it are drawn for each image, so that neither colours nor single
pixels tell the kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KINDS = 10
SMALLEST, LARGEST = 8, 512
_BATCH = 256
_SHORTEST = 3.0
"""Pixels of the shortest wave: shorter ones cannot be told from one another."""


@dataclass(frozen=True)
class TextureBatch:
    """Some images.

    Attributes:
        images: uint8 ``[n, size, size, 3]``.
        labels: int64 ``[n]``, the kind of each.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]


def draw_textures(count: int, size: int, seed: int, *, noise: float = 0.08) -> Iterator[TextureBatch]:
    """Draws images, some at a time; equal arguments give equal images.

    Args:
        count: how many in all.
        size: width and height in pixels.
        seed: of all that is drawn.
        noise: standard deviation of the noise of a pixel, as a share of full brightness.
    """
    rng = np.random.default_rng(seed)
    for start in range(0, count, _BATCH):
        number = min(_BATCH, count - start)
        labels = rng.integers(0, KINDS, number)
        pattern = _grating(rng, labels * np.pi / KINDS, _wavelength(labels, size), size)
        pattern *= _grating(rng, labels * 3 * np.pi / KINDS + 1.0, _wavelength(labels * 7 % KINDS, size), size)
        strength = rng.uniform(0.6, 1.0, (number, 1, 1))
        mixed = (0.5 + 0.5 * strength * pattern)[..., None]
        colour = rng.uniform(0.0, 1.0, (number, 1, 1, 3))
        picture = (
            colour * mixed + (colour + 0.5) % 1.0 * (1 - mixed) + rng.normal(0.0, noise, (number, size, size, 3))
        )
        yield TextureBatch(np.clip(np.rint(picture * 255), 0, 255).astype(np.uint8), labels)


def _wavelength(kind: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.float64]:
    """Pixels, for each kind another one, from the shortest to a third of the image."""
    longest = max(size / 3, _SHORTEST + 1)
    return np.asarray(_SHORTEST + (longest - _SHORTEST) * kind / (KINDS - 1))


def _grating(
    rng: np.random.Generator, angle: npt.NDArray[np.float64], wavelength: npt.NDArray[np.float64], size: int
) -> npt.NDArray[np.float64]:
    """Plane waves, -1 to 1, ``[n, size, size]``, each of a phase of its own and a little turned."""
    turned = angle + rng.normal(0.0, 0.04, len(angle))
    phase = rng.uniform(0, 2 * np.pi, len(angle))
    across = np.arange(size)
    way = (
        np.cos(turned)[:, None, None] * across[None, None, :] + np.sin(turned)[:, None, None] * across[None, :, None]
    )
    return np.asarray(np.sin(2 * np.pi * way / wavelength[:, None, None] + phase[:, None, None]))
