from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from elasticdl.cli.data import app
from elasticdl.data import create_data_reader
from elasticdl.data.errors import DataError
from elasticdl.data.example import decode_example
from elasticdl.data.generate import (
    Generated,
    write_clicks,
    write_digits,
    write_iris,
    write_iris_csv,
    write_mnist,
    write_textures,
)

pytestmark = pytest.mark.unit


def _read(origin: Path | None) -> list[object]:
    reader = create_data_reader(str(origin))
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


def _arrays(made: Generated, side: int) -> tuple[np.ndarray, np.ndarray]:
    examples = [decode_example(record) for part in (made.train, made.validation) for record in _read(part)]  # type: ignore[arg-type]
    images = np.array([example["image"] for example in examples], dtype=np.float32).reshape(-1, side, side)
    return images, np.array([example["label"][0] for example in examples])


@pytest.mark.parametrize("format", ["recordio", "tfrecord"])
def test_digits_are_those_of_sklearn_each_once(format: str, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    made = write_digits(tmp_path / "d", format)
    assert (made.train_records, made.validation_records) == (1438, 359)
    images, labels = _arrays(made, 8)
    expected, expected_labels = load_digits(return_X_y=True)
    found = np.column_stack([images.reshape(-1, 64), labels])
    wanted = np.column_stack([expected, expected_labels])
    assert np.array_equal(np.unique(found, axis=0), np.unique(wanted, axis=0))
    assert len(found) == len(wanted)
    assert set(labels[1438:]) == set(range(10))


def test_mnist_is_a_larger_image_with_a_border(tmp_path: Path) -> None:
    import tensorflow as tf

    made = write_mnist(tmp_path / "m", held_out=0.5)
    images, labels = _arrays(made, 28)
    assert (images.min(), images.max()) == (0, 255)
    assert not images[:, :4].any()
    assert not images[:, :, 24:].any()
    small, small_labels = _arrays(write_digits(tmp_path / "d", held_out=0.5), 8)
    assert np.array_equal(labels, small_labels)
    ink = small.mean(axis=(1, 2)) * 255 / 16 * 64 / 100  # 8x8 pixels become 20x20, then the mean is over 28x28
    assert np.corrcoef(ink, images.mean(axis=(1, 2)))[0, 1] > 0.99
    description = {
        "image": tf.io.FixedLenFeature([28, 28], tf.float32),
        "label": tf.io.FixedLenFeature([1], tf.int64),
    }
    parsed = tf.io.parse_single_example(_read(made.train)[0], description)
    assert np.array_equal(parsed["image"], images[0])


def test_digits_can_be_csv(tmp_path: Path) -> None:
    made = write_digits(tmp_path / "d", "csv", records_per_file=1000)
    assert [path.name for path in sorted(made.train.iterdir())] == ["part-00000.csv", "part-00001.csv"]
    rows = _read(made.train)
    assert len(rows) == 1438
    assert {len(row) for row in rows} == {65}  # type: ignore[arg-type]


def test_textures_are_of_ten_kinds_that_colours_do_not_tell(tmp_path: Path) -> None:
    made = write_textures(tmp_path / "t", 600, size=16, held_out=0.25)
    assert (made.train_records, made.validation_records) == (450, 150)
    records = [decode_example(record) for record in _read(made.train)]
    labels = np.array([record["label"][0] for record in records])
    images = np.array([np.frombuffer(record["image"][0], np.uint8) for record in records]).reshape(-1, 16, 16, 3)
    assert set(labels) == set(range(10))
    # Waves lie across the image, so that no kind is darker than another; their spectrum tells them apart.
    grey = images.mean(axis=3) - images.mean(axis=(1, 2, 3))[:, None, None]
    spectra = np.abs(np.fft.rfft2(grey)).reshape(len(grey), -1)
    spectra /= np.linalg.norm(spectra, axis=1, keepdims=True)
    half = len(labels) // 2
    kinds = np.array([spectra[:half][labels[:half] == kind].mean(axis=0) for kind in range(10)])
    nearest = (spectra[half:] @ (kinds / np.linalg.norm(kinds, axis=1, keepdims=True)).T).argmax(axis=1)
    assert (nearest == labels[half:]).mean() > 0.6, "a guess is right for 0.1"
    colours = images.reshape(len(images), -1, 3).mean(axis=1)
    centres = np.array([colours[:half][labels[:half] == kind].mean(axis=0) for kind in range(10)])
    by_colour = ((colours[half:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (by_colour == labels[half:]).mean() < 0.3


def test_textures_can_be_csv_and_of_one_size_in_reason(tmp_path: Path) -> None:
    made = write_textures(tmp_path / "t", 20, size=8, format="csv", held_out=0)
    assert {len(row) for row in _read(made.train)} == {8 * 8 * 3 + 1}  # type: ignore[arg-type]
    for wrong, said in (({"size": 4}, "size 4"), ({"records": 0}, "0 records")):
        with pytest.raises(DataError, match=said):
            write_textures(tmp_path / "w", **{"records": 5, **wrong})


def test_equal_arguments_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_digits(tmp_path / name, compressor="gzip")
        write_clicks(tmp_path / f"{name}c", 1000, ids=1000, seed=4)
    for folder in ("", "c"):
        files = [
            {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
            for root in (tmp_path / f"a{folder}", tmp_path / f"b{folder}")
        ]
        assert files[0] == files[1]
        assert len(files[0]) >= 2


def test_iris_has_every_flower(tmp_path: Path) -> None:
    assert write_iris_csv(tmp_path / "iris.csv") == 150
    rows = _read(tmp_path / "iris.csv")
    assert sorted({row[4] for row in rows}) == ["0", "1", "2"]  # type: ignore[index]
    made = write_iris(tmp_path / "iris")
    assert sorted(_read(made.train) + _read(made.validation)) == sorted(rows)  # type: ignore[type-var]
    assert (made.train.name, made.train_records, made.validation_records) == ("train.csv", 120, 30)


@pytest.mark.parametrize("format", ["recordio", "tfrecord", "csv"])
def test_clicks_tell_their_ceiling(format: str, tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    from elasticdl.data.clicks import ClickTruth

    made = write_clicks(tmp_path / "c", 20_000, format=format, ids=5000, held_out=0.5, records_per_file=6000)
    assert len(list(made.train.iterdir())) == 2
    truth = json.loads((tmp_path / "c" / "truth.json").read_text())
    assert truth == made.truth
    rows = _read(made.validation)
    if format == "csv":
        table = np.array(rows, dtype=np.int64)
    else:
        table = np.array([(e := decode_example(r))["ids"] + e["label"] for r in rows])  # type: ignore[arg-type,operator]
    assert table.shape == (10_000, 11)
    chances = ClickTruth(10, 5000, 1.1, 0).chances(table[:, :10])
    assert roc_auc_score(table[:, 10], chances) == pytest.approx(truth["auc_ceiling"], abs=0.015)
    assert 0.7 < truth["auc_ceiling"] < 0.9
    assert truth["click_rate"] == pytest.approx(table[:, 10].mean(), abs=0.03)


def test_nothing_held_out_makes_no_validation_data(tmp_path: Path) -> None:
    made = write_clicks(tmp_path / "c", 100, ids=100, held_out=0)
    assert (made.validation, made.train_records, made.truth["auc_ceiling"]) == (None, 100, None)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["train", "truth.json"]


def test_impossible_arguments_are_refused(tmp_path: Path) -> None:
    for call, message in (
        (lambda: write_digits(tmp_path / "d", size=16), "size 16"),
        (lambda: write_digits(tmp_path / "d", "parquet"), "no format 'parquet'"),
        (lambda: write_digits(tmp_path / "d", held_out=1.0), "held_out is 1.0"),
        (lambda: write_digits(tmp_path / "d", compressor="lz4"), "no RecordIO compressor"),
        (lambda: write_clicks(tmp_path / "d", 0), "0 records"),
    ):
        with pytest.raises(DataError, match=message):
            call()
    assert not any(tmp_path.iterdir())


def test_iris_is_that_of_sklearn(tmp_path: Path) -> None:
    from sklearn.datasets import load_iris

    assert write_iris_csv(tmp_path / "iris.csv") == 150
    found = np.loadtxt(tmp_path / "iris.csv", delimiter=",", skiprows=1)
    expected = np.column_stack(load_iris(return_X_y=True))
    assert np.array_equal(np.unique(found, axis=0), np.unique(expected, axis=0))


def test_the_commands_write_and_refuse_to_overwrite(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["generate", *words])
        return result.exit_code, result.stdout, result.stderr

    code, out, _ = run("digits", str(tmp_path / "d"))
    assert (code, out.splitlines()[1]) == (0, f"validation_data  {tmp_path}/d/validation: 359 records")
    assert run("digits", str(tmp_path / "d"))[0] == 1
    assert "--force" in run("digits", str(tmp_path / "d"))[2]
    assert run("digits", str(tmp_path / "d"), "--force", "--format", "csv")[0] == 0
    assert run("mnist", str(tmp_path / "m"))[0] == 0
    assert run("iris", str(tmp_path / "iris.csv"))[1] == f"{tmp_path}/iris.csv: 150 records\n"
    assert run("iris", str(tmp_path / "iris"))[0] == 0
    code, out, _ = run("clicks", str(tmp_path / "c"), "--records", "2000", "--ids", "1000")
    assert code == 0
    assert "best possible AUC on the validation data: 0." in out
