"""Images in files: folders of classes, lists, what becomes of labels elsewhere, decoding, and what is refused."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

from elasticdl.data import columns_of, create_data_reader, decode_image, params_like
from elasticdl.data.convert import convert
from elasticdl.data.errors import DataError
from elasticdl.data.inspection import inspect_data

pytestmark = pytest.mark.unit


def picture(value: int, kind: str = "png", size: tuple[int, int] = (4, 6), mode: str = "RGB") -> bytes:
    held = io.BytesIO()
    Image.new(mode, (size[1], size[0]), value if mode in ("L", "I;16") else (value, 0, 255)).save(held, kind)
    return held.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for path, value in {"cat/2.png": 2, "cat/sub/1.PNG": 1, "dog/3.png": 3, "bird/9.png": 9}.items():
        here = tmp_path / "photos" / path
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_bytes(picture(value))
    return tmp_path / "photos"


def records(origin: str | Path, predicting: bool = False, **params: Any) -> list[dict[str, Any]]:
    reader = create_data_reader(str(origin), 2, params, predicting=predicting)
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


def values(found: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(one["path"], one.get("label", -1), int(decode_image(one["image"])[0, 0, 0])) for one in found]


def test_the_first_folder_is_the_class(photos: Path) -> None:
    wanted = [("bird/9.png", 0, 9), ("cat/2.png", 1, 2), ("cat/sub/1.PNG", 1, 1), ("dog/3.png", 2, 3)]
    assert values(records(photos)) == wanted
    assert values(records(f"{photos}/*/*.png")) == [wanted[0], wanted[1], wanted[3]]
    metadata = create_data_reader(str(photos)).metadata
    assert (metadata.kind, metadata.classes) == ("images", ["bird", "cat", "dog"])
    assert metadata.column_types == {"image": "bytes", "path": "string", "label": "int64"}


def test_classes_that_are_numbers_go_by_their_value(tmp_path: Path) -> None:
    for label in ("10", "9", "2"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "x.png").write_bytes(picture(int(label)))
    assert values(records(tmp_path)) == [("10/x.png", 2, 10), ("2/x.png", 0, 2), ("9/x.png", 1, 9)]


def test_labels_of_other_data_are_those_of_training(photos: Path, tmp_path: Path) -> None:
    training = create_data_reader(str(photos))
    assert columns_of(training) == ["bird", "cat", "dog"]
    for label in ("dog", "cat"):
        (tmp_path / "held" / label).mkdir(parents=True)
        (tmp_path / "held" / label / "x.png").write_bytes(picture(7))
    params = params_like(training, {})
    assert values(records(tmp_path / "held", **params)) == [("cat/x.png", 1, 7), ("dog/x.png", 2, 7)]
    assert [row["label"] for row in records(tmp_path / "held", classes=["dog", "cat"])] == [1, 0]
    (tmp_path / "held" / "cow").mkdir()
    (tmp_path / "held" / "cow" / "x.png").write_bytes(picture(7))
    with pytest.raises(DataError, match=r"cow/x.png: is of the class 'cow', which is none of bird, cat, dog"):
        records(tmp_path / "held", **params)
    assert [row.keys() for row in records(tmp_path / "held", True, **params)] == [{"image", "path"}] * 3


def test_images_without_folders_have_no_label(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(5))
    assert values(records(tmp_path)) == values(records(tmp_path / "a.png")) == [("a.png", -1, 5)]
    assert "label" not in create_data_reader(str(tmp_path)).metadata.column_names


def test_lists_name_images_from_their_own_folder_on(photos: Path, tmp_path: Path) -> None:
    listed = photos.parent / "list.csv"
    listed.write_text(f'path,label\nphotos/dog/3.png,"a, b"\n{photos}/cat/2.png,c\n')
    assert values(records(listed, kind="images")) == [("photos/dog/3.png", 0, 3), (f"{photos}/cat/2.png", 1, 2)]
    listed.write_text("photos/dog/3.png\t1\nphotos/cat/2.png\t0\n\n")
    assert [row["label"] for row in records(listed, kind="images")] == [1, 0]
    listed.write_text("photos/dog/3.png\nphotos/cat/2.png\n")
    assert values(records(listed, kind="images")) == [("photos/dog/3.png", -1, 3), ("photos/cat/2.png", -1, 2)]
    before = create_data_reader(str(listed), None, {"kind": "images"}).fingerprint(str(listed))
    listed.write_text("photos/dog/3.png,1\nphotos/cat/2.png,0\n")
    after = create_data_reader(str(listed), None, {"kind": "images"})
    assert before != after.fingerprint(str(listed))  # other labels are other data


@pytest.mark.parametrize(
    ("files", "params", "words"),
    [
        ({"cat/a.png": b"x", "b.png": b"x"}, {}, r"b\.png: has no class, as others have"),
        ({"cat/a.png": b"x", "cat/notes.md": b"# x"}, {"kind": "images"}, r"cat/notes\.md: is no image"),
        ({"cat/a.png": b"x", "cat/rows.csv": b"a,b\n1,2\n"}, {}, "holds files of several kinds"),
        ({"cat/a.png": b"x", "cat/b.png": b""}, {}, r"cat/b\.png: is empty"),
        ({"cat/a.png": b"x"}, {"classes": ["dog"]}, "is of the class 'cat', which is none of dog"),
        ({"cat/a.png": b"x"}, {"classes": ["cat"], "trained_columns": ["dog"]}, "the model was trained on"),
        ({"cat/a.png": b"x"}, {"classes": "cat,cat"}, "names a column twice"),
        ({"cat/a.png": b"x"}, {"label": "cat"}, "the images reader has no parameter 'label'"),
        ({"cat/a.png": b"x"}, {"on_corrupt": "skip"}, "has no parameter 'on_corrupt'"),
        ({"cat/a.png": b"x"}, {"window": 2}, "window= does not go with images"),
        ({"l.csv": b"a.png,1,2\n"}, {"kind": "images"}, r"l\.csv: line 1: 'a\.png,1,2' is not path,label"),
        ({"l.csv": b"path,label\n1,a.png\n"}, {"kind": "images"}, r"line 2: '1,a\.png' is not path,label"),
        ({"l.csv": b"path,label\n"}, {"kind": "images"}, "names no image"),
        ({"l.csv": b"\xff\xfe"}, {"kind": "images"}, "is no list of images"),
        ({"l.csv": b"a.png,1\n"}, {"kind": "images"}, r"l\.csv: line 1: .*a\.png: no such file"),
        ({"l.csv": b"sub/a.png,\n", "sub/a.png": b"x"}, {"kind": "images"}, "line 1: the label is empty"),
        ({"l.csv": b"sub/a.png,1\n", "sub/a.png": b""}, {"kind": "images"}, "line 1: .* is empty"),
        ({"l.csv": b"sub/a.png,1\nsub/a.png\n", "sub/a.png": b"x"}, {"kind": "images"}, "has no class"),
        ({}, {"kind": "images"}, "holds no data files"),
    ],
)
def test_what_is_no_set_of_images_is_refused(
    files: dict[str, bytes], params: dict[str, Any], words: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        records(tmp_path / "l.csv" if "l.csv" in files else tmp_path, **params)


def test_an_image_that_changes_or_goes_is_an_error_with_both_states(photos: Path) -> None:
    reader = create_data_reader(str(photos))
    (shard,) = reader.create_shards()
    before = reader.fingerprint(shard.name)
    os.utime(photos / "cat" / "2.png", ns=(1, 1))
    with pytest.raises(
        DataError, match=r"cat/2\.png: was changed after its tasks were planned: .*version 1"
    ) as error:
        list(reader.read_records(shard))
    assert before in error.value.message
    (photos / "cat" / "2.png").unlink()
    with pytest.raises(DataError, match=r"cat/2\.png: no such file"):
        list(reader.read_records(shard))


def test_images_of_a_store_are_fetched_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    for number in range(6):
        store.pipe(f"/images-of-a-store/{'ab'[number % 2]}/{number}.png", picture(number))
    try:
        found = values(records("memory://images-of-a-store"))
        assert sorted(found) == [(f"{'ab'[one % 2]}/{one}.png", one % 2, one) for one in (0, 2, 4, 1, 3, 5)]
        monkeypatch.setattr("elasticdl.data.image_reader.FETCHED_BYTES", 100)
        assert values(records("memory://images-of-a-store")) == found
        store.pipe("/images-of-a-store/l.csv", b"b/1.png,x\na/0.png,y\n")
        listed = records("memory://images-of-a-store/l.csv", kind="images")
        assert values(listed) == [("b/1.png", 0, 1), ("a/0.png", 1, 0)]
    finally:
        store.rm("/images-of-a-store", recursive=True)


def test_inspecting_shows_classes_and_finds_damage(photos: Path) -> None:
    report = inspect_data(str(photos), records=1, verify=True)
    assert (report.records, report.verified, report.classes) == (4, 4, {"bird": 1, "cat": 2, "dog": 1})
    assert report.bytes == sum(path.stat().st_size for path in photos.rglob("*.[pP]*"))
    assert report.first_records[0]["path"] == "bird/9.png"
    (photos / "dog" / "3.png").write_bytes(picture(3)[:40])
    with pytest.raises(DataError, match=r"dog/3\.png: an image cannot be decoded"):
        inspect_data(str(photos), verify=True)


def test_images_become_rows_of_a_table(photos: Path, tmp_path: Path) -> None:
    convert(str(photos), tmp_path / "all.parquet", "parquet")
    assert values(records(tmp_path / "all.parquet")) == values(records(photos))


def test_decoding_gives_pixels_of_the_wanted_form() -> None:
    assert decode_image(picture(7)).shape == (4, 6, 3)
    assert decode_image(picture(7), (2, 3)).shape == (2, 3, 3)
    assert decode_image(picture(7, mode="L"), channels=1).tolist() == [[[7]] * 6] * 4
    assert decode_image(picture(7), channels=4)[0, 0].tolist() == [7, 0, 255, 255]
    assert decode_image(picture(7 << 8, mode="I;16"), channels=1)[0, 0, 0] == 7
    assert decode_image(picture(7, "gif"))[0, 0, 0] == 7
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter of a turn
    Image.new("RGB", (6, 4)).save(turned, "jpeg", exif=exif)
    assert decode_image(turned.getvalue()).shape == (6, 4, 3)
    for wrong in ({"channels": 2}, {"size": (0, 3)}, {"size": (4,)}, {"size": (1.5, 2)}):
        with pytest.raises(DataError, match=r"channels=|size="):
            decode_image(picture(7), **wrong)
    with pytest.raises(DataError, match="an image cannot be decoded"):
        decode_image(b"no image")


@pytest.mark.timeout(600)  # it imports TensorFlow
def test_decoding_in_a_graph_gives_the_same_pixels() -> None:
    tf = pytest.importorskip("tensorflow")
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (13, 9, 3), np.uint8))
    held = io.BytesIO()
    noise.save(held, "jpeg")
    data = tf.data.Dataset.from_tensors(held.getvalue()).map(
        tf.autograph.experimental.do_not_convert(lambda one: decode_image(one, (7, 5)))
    )
    assert data.element_spec.shape == (7, 5, 3)
    (pixels,) = data.as_numpy_iterator()
    assert pixels.tolist() == decode_image(held.getvalue(), (7, 5)).tolist()
