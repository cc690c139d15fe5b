"""Files that a module opens and its workers would not have, found without running it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticdl.model_check import check_model_module
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.path_policy import PathPolicy

pytestmark = pytest.mark.unit

MODEL = """
import gzip, io, os, pathlib
from os.path import join
from pathlib import Path
import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from PIL import Image
{top}
def custom_model():
    {model}
def loss(labels, predictions): ...
def optimizer(): ...
def feed(dataset, mode, metadata):
    {feed}
"""


def _check(
    zoo: Path, top: str = "", feed: str = "...", model: str = "...", file: str = "model", **how: object
) -> None:
    path = (zoo / Path(*file.split("."))).with_suffix(".py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(MODEL.format(top=top, feed=feed, model=model))
    values = {"model_def": f"{file}.custom_model", "model_zoo": "/zoo", "training_data": "/data"}
    check_model_module(zoo, JobSpec.from_mapping(values), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "top",
    [
        "WORDS = open('vocab.txt').read().split()",
        "with open('vocab.txt', encoding='utf-8') as file: WORDS = file.read()",
        "with open('vocab.txt', 'rb') as file, io.open('vocab.txt', mode='r') as other: ...",
        "PATH = 'vocab.txt'\nWORDS = open(PATH).read()",
        "PATH = Path('vocab.txt')\nWORDS = PATH.read_text()",
        "WORDS = pathlib.Path('vocab.txt').read_bytes()",
        "WORDS = Path('vocab.txt').open().read()",
        "WORDS = pd.read_csv('vocab.txt')",
        "WORDS = np.load('vocab.txt')",
        "WORDS = gzip.open('vocab.txt').read()",
        "WORDS = Image.open('vocab.txt')",
        "WORDS = tf.io.read_file('vocab.txt')",
        "lookup = keras.layers.StringLookup(vocabulary='vocab.txt')",
        "lookup = tf.keras.layers.TextVectorization(vocabulary='vocab.txt')",
        "def load():\n    return open('vocab.txt').read()\nWORDS = load()",
        "class Words:\n    def __init__(self):\n        self.words = open('vocab.txt').read()\nWORDS = Words()",
    ],
)
def test_a_relative_path_is_refused_with_the_way(tmp_path: Path, top: str) -> None:
    with pytest.raises(UserCodeError, match=r"^model.py:\d+: it opens 'vocab.txt', relative to the folder") as caught:
        _check(tmp_path, top)
    assert caught.value.fix == (
        "have vocab.txt in the model zoo, which travels with the job, "
        "and open pathlib.Path(__file__).parent / 'vocab.txt'"
    )
    _check(tmp_path, top, local=True)  # which finds it as plain Python does


def test_the_way_leads_from_the_module_to_where_the_file_lies(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    (zoo / "data").mkdir(parents=True)
    (zoo / "data" / "vocab.txt").write_text("a b")
    for path, file, way in [
        ("data/vocab.txt", "model", "pathlib.Path(__file__).parent / 'data' / 'vocab.txt'"),
        ("zoo/data/vocab.txt", "model", "pathlib.Path(__file__).parent / 'data' / 'vocab.txt'"),
        ("data/vocab.txt", "models.text", "pathlib.Path(__file__).parent / '..' / 'data' / 'vocab.txt'"),
    ]:
        with pytest.raises(UserCodeError) as caught:
            _check(zoo, feed=f"return open({path!r})", file=file)
        assert caught.value.fix.endswith(way)
    with pytest.raises(UserCodeError, match=r"it opens 'data/vocab\.txt'"):
        _check(zoo, model="return open(join('data', 'vocab.txt'))")
    with pytest.raises(UserCodeError, match=r"it opens 'data/vocab\.txt'"):
        _check(zoo, "DATA = Path('data')", model="return (DATA / 'vocab.txt').read_text()")


@pytest.mark.parametrize(
    "top",
    [
        "WORDS = (Path(__file__).parent / 'vocab.txt').read_text()",
        "WORDS = open(os.path.join(os.path.dirname(__file__), 'vocab.txt')).read()",
        "with open('notes.txt', 'w') as file: file.write('it is written here')",
        "with open('notes.txt', MODE) as file: ...",
        "import urllib.request as net\nnet.urlretrieve('http://x/v', 'vocab.txt')\nWORDS = open('vocab.txt').read()",
        "PATH = 'vocab.txt'\nfetch(PATH)\nWORDS = open(PATH).read()",
        "if os.path.exists('vocab.txt'):\n    WORDS = open('vocab.txt').read()",
        "try:\n    WORDS = open('vocab.txt').read()\nexcept OSError:\n    WORDS = ''",
        "import contextlib\nwith contextlib.suppress(OSError):\n    WORDS = open('vocab.txt').read()",
        "os.chdir(os.path.dirname(__file__))\nWORDS = open('vocab.txt').read()",
        "def prepare():\n    return open('raw.csv').read()\nif __name__ == '__main__':\n    prepare()",
        "def open(path): ...\nWORDS = open('vocab.txt')",
        "WORDS = open(os.environ['WORDS']).read()",
        "FILES = tf.io.gfile.GFile('s3://bucket/vocab.txt')",
        "lookup = keras.layers.StringLookup(vocabulary=['a', 'b'])",
    ],
)
def test_what_may_be_there_is_left_alone(tmp_path: Path, top: str) -> None:
    _check(tmp_path, top, workers_see=os.path.exists)


def test_a_script_runs_its_main(tmp_path: Path) -> None:
    source = "import elasticdl.torch\ndef main():\n    open('vocab.txt')\nif __name__ == '__main__':\n    main()\n"
    (tmp_path / "loop.py").write_text(source)
    spec = JobSpec.from_mapping({"model_def": "loop.__main__", "model_zoo": "/zoo", "training_data": "/data"})
    with pytest.raises(UserCodeError, match=r"loop.py:3: it opens 'vocab.txt'"):
        check_model_module(tmp_path, spec)


def test_an_absolute_path_is_refused_where_workers_do_not_have_it(tmp_path: Path) -> None:
    there, missing = tmp_path / "vocab.txt", tmp_path / "gone.txt"
    there.write_text("a b")
    _check(tmp_path, f"WORDS = open({str(there)!r}).read()", workers_see=os.path.exists)
    _check(tmp_path, f"WORDS = open({str(missing)!r}).read()")  # of the cluster's machines nothing is known here
    with pytest.raises(
        UserCodeError, match=r"gone.txt', which is outside the model zoo and is not there where workers"
    ):
        _check(tmp_path, f"WORDS = open({str(missing)!r}).read()", workers_see=os.path.exists)
    reach = PathPolicy(read=(str(tmp_path / "model.py"), str(missing)))
    _check(tmp_path, f"WORDS = open({str(missing)!r}).read()", reach=reach)
    _check(tmp_path, "CORES = open('/proc/cpuinfo').read()", reach=reach)
    with pytest.raises(UserCodeError, match="outside what this job may read") as caught:
        _check(tmp_path, f"WORDS = open({str(there)!r}).read()", reach=reach)
    assert "put the file into the model zoo" in caught.value.fix
