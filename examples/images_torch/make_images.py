"""Writes the handwritten digits as PNG files, one folder a class: ``python make_images.py DIR``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from elasticdl.data.generate import load_digits


def main(folder: Path, held_out: int = 5) -> None:
    """Writes DIR/train and DIR/validation; every fifth image is held out."""
    images, labels = load_digits()
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        part = folder / ("validation" if number % held_out == 0 else "train") / str(label)
        part.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype(np.uint8)).save(part / f"{number:05d}.png")
    print(f"{folder}: {len(labels)} images")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
