"""Makes small data sets for examples, tests and the demo: digits, iris, textures, and clicks with a known best AUC.

Each data set is a folder with ``train/`` and ``validation/``, written whole or not at all. Equal arguments give equal
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.data.clicks import ClickTruth, encode_clicks, expected_auc
from elasticdl.data.convert import OnProgress
from elasticdl.data.errors import DataError
from elasticdl.data.example import encode_example
from elasticdl.data.output import CSVWriter, PartsWriter, replacing
from elasticdl.data.textures import LARGEST, SMALLEST, draw_textures

IRIS_COLUMNS = ("sepal_length", "sepal_width", "petal_length", "petal_width", "class")
_CLICK_BATCH = 16_384
_SAMPLES = Path(__file__).parent / "samples"

_FORMATS = ("recordio", "tfrecord", "csv")


@dataclass(frozen=True)
class Generated:
    """A data set that was made.

    Attributes:
        train: folder or file of the training data.
        validation: folder or file of the held-out data; ``None`` when nothing is held out.
        train_records: records in ``train``.
        validation_records: records in ``validation``.
        truth: for clicks, what ``truth.json`` in the folder says, such as ``auc_ceiling``.
    """

    train: Path
    validation: Path | None
    train_records: int
    validation_records: int
    truth: dict[str, Any] = field(default_factory=dict)


def load_digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The test set of the optical recognition of handwritten digits, as scikit-learn has it too.

    Source: E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998,
    https://doi.org/10.24432/C50P49 (CC BY 4.0).

    Returns:
        Images, float32 ``[1797, 8, 8]``, 0 to 16, and labels, int64 ``[1797]``, 0 to 9.
    """
    with np.load(_SAMPLES / "digits.npz") as digits:
        return digits["images"].astype(np.float32), digits["labels"].astype(np.int64)


def write_digits(
    directory: str | Path,
    format: str = "recordio",
    *,
    held_out: float = 0.2,
    size: int = 8,
    compressor: str = "none",
    records_per_file: int = 512,
    seed: int = 0,
    force: bool = False,
) -> Generated:
    """The 1797 handwritten digits of ``load_digits``.

    Records are Examples with ``image``, float32 ``[size, size]`` flattened, and ``label``, int64 ``[1]``. Pixels are
    0 to 16 at the original size 8, and 0 to 255 at 28, where the image is enlarged to 20x20 in a border of 4, the
    layout of MNIST. As CSV: columns ``p0``, ``p1``, ... and ``label``.

    Args:
        directory: where to make ``train/`` and ``validation/``.
        format: ``recordio``, ``tfrecord`` or ``csv``.
        held_out: share of the records for validation, 0 up to, not including, 1.
        size: 8 or 28.
        compressor: of RecordIO chunks.
        records_per_file: records in each file.
        seed: of the order of the records and of the split.
        force: replace data made before.

    Raises:
        DataError: an argument is impossible, or the folder cannot be written.
    """
    images, labels = load_digits()
    if size == 28:
        images = enlarge(images)
    elif size != 8:
        raise DataError(f"digits of size {size} are not made", fix="use 8 or 28")
    order = np.random.default_rng(seed).permutation(len(images))
    split = _split(len(images), held_out)

    def records(rows: npt.NDArray[np.intp]) -> Iterator[Any]:
        for row in rows:
            image = images[row].ravel()
            if format == "csv":
                yield [*(_short_number(pixel) for pixel in image), int(labels[row])]
            else:
                yield encode_example({"image": image, "label": [int(labels[row])]})

    header = [*(f"p{i}" for i in range(size * size)), "label"]
    with replacing(Path(directory), force=force) as temporary:
        parts = {"train": records(order[split:]), "validation": records(order[:split])}
        _write_parts(temporary, format, parts, header, compressor, records_per_file)
    return _generated(Path(directory), len(images) - split, split)


def write_mnist(directory: str | Path, format: str = "recordio", **settings: Any) -> Generated:
    """The digits in the form of MNIST: ``image`` float32 ``[28, 28]``, 0 to 255; see ``write_digits``."""
    return write_digits(directory, format, **{"size": 28, **settings})


def enlarge(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Digits in the layout of MNIST: bilinear to 20x20, in a border of 4, and 0 to 16 stretched to 0 to 255.

    Args:
        images: float32 ``[n, 8, 8]``, 0 to 16.

    Returns:
        float32 ``[n, 28, 28]``, 0 to 255.
    """
    position = np.clip((np.arange(20) + 0.5) * 8 / 20 - 0.5, 0, 7)
    low = np.minimum(position.astype(np.intp), 6)
    weights = np.zeros((20, 8), dtype=np.float32)
    weights[np.arange(20), low] = 1 - (position - low)
    weights[np.arange(20), low + 1] = position - low
    large = np.zeros((len(images), 28, 28), dtype=np.float32)
    large[:, 4:24, 4:24] = np.round(weights @ images @ weights.T * (255 / 16))
    return large


def write_textures(
    directory: str | Path,
    records: int,
    *,
    format: str = "recordio",
    size: int = 32,
    held_out: float = 0.2,
    compressor: str = "none",
    records_per_file: int = 2048,
    seed: int = 0,
    force: bool = False,
    on_progress: OnProgress = lambda done, total: None,
) -> Generated:
    """Drawn colour images of ten kinds of texture, in the form of CIFAR-10.

    Records are Examples with ``image``, the ``size * size * 3`` bytes of red, green and blue from the top left, and
    ``label``, int64 ``[1]``. As CSV: columns ``p0``, ``p1``, ... and ``label``. Memory stays the same for any number.

    Args:
        directory: where to make ``train/`` and ``validation/``.
        records: number of images in all.
        format: ``recordio``, ``tfrecord`` or ``csv``.
        size: width and height in pixels, 8 to 512.
        held_out: share of the records for validation.
        compressor: of RecordIO chunks.
        records_per_file: records in each file.
        seed: of the images.
        force: replace data made before.
        on_progress: called with the records made and the number of all.

    Raises:
        DataError: an argument is impossible, or the folder cannot be written.
    """
    if not SMALLEST <= size <= LARGEST:
        raise DataError(f"textures of size {size} are not made", fix=f"give {SMALLEST} to {LARGEST}")
    split = _split(records, held_out)
    header = [*(f"p{i}" for i in range(size * size * 3)), "label"]

    def rows(count: int, stream: int, before: int) -> Iterator[Any]:
        for batch in draw_textures(count, size, seed * 2 + stream):
            for image, label in zip(batch.images, batch.labels.tolist(), strict=True):
                if format == "csv":
                    yield [*image.ravel().tolist(), label]
                else:
                    yield encode_example({"image": image.tobytes(), "label": [label]})
            before += len(batch.labels)
            on_progress(before, records)

    with replacing(Path(directory), force=force) as temporary:
        train = records - split
        parts = {"train": rows(train, 0, 0), "validation": rows(split, 1, train)}
        _write_parts(temporary, format, parts, header, compressor, records_per_file)
    return _generated(Path(directory), train, split)


def write_iris_csv(path: str | Path, *, seed: int = 0, force: bool = False) -> int:
    """Fisher's 150 iris flowers (1936; as in scikit-learn) as one CSV file in random order, with a header.

    Columns: four measurements in centimetres, and ``class``: 0 setosa, 1 versicolor, 2 virginica.

    Returns:
        The number of records.

    Raises:
        DataError: the file exists or cannot be written.
    """
    rows = _iris_rows(seed)
    with replacing(Path(path), force=force) as temporary:
        _write_iris(temporary, rows)
    return len(rows)


def write_iris(directory: str | Path, *, held_out: float = 0.2, seed: int = 0, force: bool = False) -> Generated:
    """The iris flowers as ``train.csv`` and ``validation.csv`` in a folder; see ``write_iris_csv``.

    Raises:
        DataError: an argument is impossible, or the folder cannot be written.
    """
    rows = _iris_rows(seed)
    split = _split(len(rows), held_out)
    with replacing(Path(directory), force=force) as temporary:
        temporary.mkdir(parents=True)
        _write_iris(temporary / "train.csv", rows[split:])
        if split:
            _write_iris(temporary / "validation.csv", rows[:split])
    return _generated(Path(directory), len(rows) - split, split, suffix=".csv")


def _iris_rows(seed: int) -> list[list[Any]]:
    with np.load(_SAMPLES / "iris.npz") as iris:
        features, classes = iris["features"], iris["classes"]
    order = np.random.default_rng(seed).permutation(len(features))
    return [[*map(float, features[row]), int(classes[row])] for row in order]


def _write_iris(path: Path, rows: list[list[Any]]) -> None:
    writer = CSVWriter(path, IRIS_COLUMNS)
    for row in rows:
        writer.write(row)
    writer.close()


def write_clicks(
    directory: str | Path,
    records: int,
    *,
    format: str = "recordio",
    num_fields: int = 10,
    ids: int = 1_000_000,
    zipf: float = 1.1,
    held_out: float = 0.1,
    compressor: str = "none",
    records_per_file: int = 100_000,
    seed: int = 0,
    force: bool = False,
    on_progress: OnProgress = lambda done, total: None,
) -> Generated:
    """Clicks drawn from a known factorisation machine, so that the best AUC any model can reach is known.

    Records are Examples with ``ids``, int64 ``[num_fields]``, and ``label``, int64 ``[1]``. As CSV: columns ``id0``,
    ``id1``, ... and ``label``. Memory does not grow with ``records``, but for 8 bytes for each validation record.

    Args:
        directory: where to make ``train/``, ``validation/`` and ``truth.json``.
        records: number of records in all.
        format: ``recordio``, ``tfrecord`` or ``csv``.
        num_fields: ids in each record; field f has the ids from ``f * ids / num_fields`` on.
        ids: number of ids of all fields together.
        zipf: how unequal ids are: the k-th most frequent of a field has weight ``k ** -zipf``.
        held_out: share of the records for validation.
        compressor: of RecordIO chunks.
        records_per_file: records in each file.
        seed: of the truth and of the records.
        force: replace data made before.
        on_progress: called with the records made and the number of all.

    Raises:
        DataError: an argument is impossible, or the folder cannot be written.
    """
    split = _split(records, held_out)
    truth = ClickTruth(num_fields, ids, zipf, seed)
    header = [*(f"id{i}" for i in range(num_fields)), "label"]
    chances: list[npt.NDArray[np.float64]] = []
    clicked = 0

    def rows(count: int, stream: int, before: int) -> Iterator[Any]:
        nonlocal clicked
        for batch in truth.draw(count, stream, _CLICK_BATCH):
            clicked += int(batch.labels.sum())
            if stream:
                chances.append(batch.chances)
            if format == "csv":
                yield from np.column_stack([batch.ids, batch.labels]).tolist()
            else:
                yield from encode_clicks(batch.ids, batch.labels)
            before += len(batch.labels)
            on_progress(before, records)

    with replacing(Path(directory), force=force) as temporary:
        train = records - split
        parts = {"train": rows(train, 0, 0), "validation": rows(split, 1, train)}
        _write_parts(temporary, format, parts, header, compressor, records_per_file)
        description = {
            **truth.describe(), "records": records, "validation_records": split, "click_rate": clicked / records,
            "auc_ceiling": expected_auc(np.concatenate(chances)) if chances else None,
        }  # fmt: skip
        (temporary / "truth.json").write_text(json.dumps(description, indent=2) + "\n")
    return _generated(Path(directory), train, split, truth=description)


def _write_parts(
    folder: Path, kind: str, parts: Mapping[str, Iterable[Any]], header: list[str], compressor: str, limit: int
) -> None:
    """Writes each part to a folder of its name, one after the other; an empty one is left out."""
    for name, records in parts.items():
        _write_part(folder / name, kind, records, header, compressor, limit)


def _write_part(
    folder: Path, kind: str, records: Iterable[Any], header: list[str], compressor: str, limit: int
) -> None:
    if kind not in _FORMATS:
        raise DataError(f"there is no format {kind!r}", fix=f"use one of: {', '.join(_FORMATS)}")
    settings: dict[str, Any] = {}
    if kind == "recordio":
        settings["compressor"] = compressor
    elif kind == "csv":
        settings["header"] = header
    iterator = iter(records)
    first = next(iterator, None)
    if first is None:
        return
    writer = PartsWriter(folder, kind, limit, **settings)
    try:
        writer.write(first)
        for record in iterator:
            writer.write(record)
    finally:
        writer.close()


def _generated(
    directory: Path, train: int, validation: int, *, suffix: str = "", truth: dict[str, Any] | None = None
) -> Generated:
    held_out = directory / f"validation{suffix}" if validation else None
    return Generated(directory / f"train{suffix}", held_out, train, validation, truth or {})


def _split(records: int, held_out: float) -> int:
    """The number of records that are held out.

    Raises:
        DataError: there are none, or that is no share.
    """
    if records < 1:
        raise DataError(f"{records} records", fix="give a number over 0")
    if not 0 <= held_out < 1:
        raise DataError(f"held_out is {held_out}", fix="give a share from 0 up to, not including, 1")
    return min(round(records * held_out), records - 1)


def _short_number(value: np.float32) -> float | int:
    return int(value) if float(value).is_integer() else float(value)
