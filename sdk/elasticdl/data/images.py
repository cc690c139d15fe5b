"""Decodes and resizes images, alike for TensorFlow and PyTorch: both get the pixels that Pillow gives."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.data.errors import DataError
from elasticdl.extras import require

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def is_image(path: str) -> bool:
    """Whether a path has the name of an image."""
    return path.lower().endswith(IMAGE_SUFFIXES)


def decode_image(data: Any, size: tuple[int, int] | None = None, channels: int = 3) -> Any:
    """Decodes an image: what ``feed`` does with the bytes of a record.

    The orientation that a camera wrote beside the pixels is applied. Of animations it is the first picture.

    Args:
        data: bytes of a PNG, JPEG, WebP, GIF, BMP or TIFF file, or in a ``feed`` of TensorFlow their string tensor.
        size: height and width to resize to, bilinearly and with antialiasing; by default it stays as large as it is.
        channels: 1 for grey, 3 for colour, 4 for colour with transparency.

    Returns:
        uint8 ``[height, width, channels]``: an array, or for a tensor a tensor of that shape.

    Raises:
        DataError: the bytes are no image, or size or channels are impossible.
        InvalidInputError: Pillow is not installed.
    """
    if channels not in _MODES:
        raise DataError(f"channels={channels}", fix=f"use one of: {', '.join(map(str, _MODES))}")
    if size is not None and (len(size) != 2 or not all(isinstance(one, int) and one > 0 for one in size)):
        raise DataError(f"size={size!r}", fix="give height and width in pixels: size=(64, 64)")
    if isinstance(data, bytes):
        return _decoded(data, size, channels)
    require("decode_image", "tensorflow")
    import tensorflow as tf

    pixels = tf.numpy_function(lambda some: _decoded(some, size, channels), [data], tf.uint8, stateful=False)
    pixels.set_shape([*(size or (None, None)), channels])
    return pixels


def _decoded(data: bytes, size: tuple[int, int] | None, channels: int) -> npt.NDArray[np.uint8]:
    require("decode_image", "images")
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data)) as image:
            turned = ImageOps.exif_transpose(image)
            if turned.mode.startswith("I;16"):  # Pillow would cut off what is above 255
                turned = Image.fromarray((np.asarray(turned) >> 8).astype(np.uint8))
            plain = turned.convert(_MODES[channels])
        if size is not None and plain.size != (size[1], size[0]):
            plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"an image cannot be decoded: {error}", fix="elasticdl data inspect --verify tells which"
        ) from error
    return np.asarray(plain, np.uint8).reshape(plain.height, plain.width, channels)
