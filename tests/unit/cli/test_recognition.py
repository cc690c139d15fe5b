"""The framework of a module is found in its source, and what is not clear is refused with the flag that says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.model_check import check_model_module
from elasticdl.recognition import resolve_framework
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec

pytestmark = pytest.mark.unit

ENTRIES = """
def forward(): ...
def loss(labels, predictions): ...
def feed(dataset, mode, metadata): ...
"""


def spec(zoo: Path, **fields: object) -> JobSpec:
    base = {"model_def": "net.forward", "model_zoo": str(zoo), "training_data": "data"}
    return JobSpec.from_mapping(base | fields)


FILES = {
    "torch": ({"net.py": "import torch.nn as nn"}, "torch"),
    "torch in a function": ({"net.py": "def forward():\n    from torch import nn"}, "torch"),
    "ours for torch": ({"net.py": "from elasticdl.torch import Embedding"}, "torch"),
    "tensorflow": ({"net.py": "import tensorflow as tf"}, "tensorflow"),
    "keras": ({"net.py": "from keras import layers"}, "tensorflow"),
    "neither": ({"net.py": "import numpy"}, "tensorflow"),
    "behind a file": ({"net.py": "import layers.own", "layers/own.py": "import torch"}, "torch"),
    "behind a relative import": (
        {"net.py": "from .own import Net", "own.py": "from torch import nn"},
        "torch",
    ),
    "only for types": (
        {"net.py": "import torch\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tensorflow"},
        "torch",
    ),
    "by a call": ({"net.py": "import importlib\ntorch = importlib.import_module('torch')"}, "torch"),
    "by a call of its own name": (
        {"net.py": "from importlib import import_module\nnn = import_module(name='torch.nn')"},
        "torch",
    ),
    "by the call behind imports": ({"net.py": "keras = __import__('keras')"}, "tensorflow"),
    "by a relative call": (
        {"net.py": "import importlib\nown = importlib.import_module('.own', __package__)", "own.py": "import torch"},
        "torch",
    ),
    "by a call of what nobody knows": (
        {"net.py": "import importlib\ndef forward(name):\n    return importlib.import_module(name)"},
        "tensorflow",
    ),
    "of another file": ({"net.py": "", "tf.py": "import tensorflow"}, "tensorflow"),
}


def zoo_of(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n" + ENTRIES)
    return folder


@pytest.mark.parametrize("name", FILES)
def test_the_framework_is_what_the_module_and_its_files_import(name: str, tmp_path: Path) -> None:
    files, framework = FILES[name]
    assert resolve_framework(zoo_of(tmp_path, files), spec(tmp_path)) == framework


def test_both_are_refused_with_their_lines_and_the_flag(tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path, {"net.py": "import torch\nimport own", "own.py": "\n\nimport tensorflow"})
    with pytest.raises(UserCodeError, match=r"tensorflow \(own.py:3\) and torch \(net.py:1\)") as raised:
        resolve_framework(zoo, spec(zoo))
    assert "--framework" in raised.value.fix
    assert resolve_framework(zoo, spec(zoo, framework="torch")) == "torch"


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("import torch", {"keras": "legacy"}),
        ("import torch", {"xla": "on"}),
        ("import torch", {"export_formats": "keras"}),
        ("import keras", {"torch_compile": "on"}),
        ("import keras", {"autocast": "bfloat16"}),
        ("import keras", {"export_formats": "pt2"}),
    ],
)
def test_what_means_nothing_to_a_framework_is_refused(source: str, fields: dict[str, object], tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path, {"net.py": source})
    with pytest.raises(UserCodeError, match=next(iter(fields))) as raised:
        resolve_framework(zoo, spec(zoo, **fields))
    assert raised.value.fix


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("return functools.partial(torch.optim.LBFGS, lr=1)", "net.py:5: the optimizer LBFGS is not among"),
        ("return torch.optim.Rprop(params)", "net.py:5: the optimizer Rprop is not among"),
        ("return torch.optim.Muon", "net.py:5: the optimizer Muon"),
        (
            "return torch.optim.SGD, torch.optim.lr_scheduler.ReduceLROnPlateau",
            "net.py:5: the scheduler ReduceLROnPlateau",
        ),
        (
            "return torch.optim.SGD, functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=1, total_steps=9)",
            "net.py:5: the scheduler OneCycleLR changes the momentum",
        ),
        (
            "return torch.optim.SGD, lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.1, 1, cycle_momentum=True)",
            "net.py:5: the scheduler CyclicLR changes the momentum",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_before_the_job_is_submitted(
    optimizer: str, said: str, tmp_path: Path
) -> None:
    source = f"import functools\nimport torch\n\ndef optimizer():\n    {optimizer}\n"
    zoo = zoo_of(tmp_path, {"net.py": source})
    with pytest.raises(UserCodeError, match=said):
        check_model_module(zoo, spec(zoo))
    (tmp_path / "net.py").write_text(source.replace(optimizer, "return torch.optim.Adam") + ENTRIES)
    assert check_model_module(zoo, spec(zoo)) == "torch"


def test_a_group_of_workers_trains_either(tmp_path: Path) -> None:
    files, _ = FILES["torch"]
    found = resolve_framework(zoo_of(tmp_path, files), spec(tmp_path, distribution_strategy="AllReduceStrategy"))
    assert found == "torch"
