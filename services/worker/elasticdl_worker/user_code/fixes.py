"""Suggests what to do about errors that users' code often raises, by their text."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ORIGINAL = ("elasticdl", "elasticai_api", "elasticdl_preprocessing", "elasticdl_client")
"""Packages of the original project, of whose import paths some are there."""
_BY_TEXT = (
    (
        r"(?<!<)KerasTensor",  # in angle brackets it is an argument that is shown
        "apply keras.ops or layers to Keras tensors; a module written for Keras 2 runs with --keras legacy",
    ),
    (
        r"has no attribute '(Dense|Linear|Sequence)(Features|Model)'",
        "Keras 3 has no layers for feature columns: run the module with --keras legacy",
    ),
    (r"name 'Mode' is not defined", "add `from elasticdl import Mode`"),
    (
        r"[Vv]ocabulary|adapt\(\)|[Tt]able not initialized|must be adapted",
        "give the layer its vocabulary (vocabulary=[...]) or call its adapt() where it is made, before the model is",
    ),
    (
        r"Could not (locate|deserialize) (function|class)|Unknown (loss|metric|optimizer) function",
        "load_model(PATH, compile=False) leaves out what the file was compiled with, as the job has a loss and an "
        "optimizer of its own; layers of your own go into custom_objects={...}",
    ),
    (
        r"Cannot add tensor to the batch|Cannot batch tensors with different shapes|stack expects each tensor to be "
        r"equal size",
        "records of a minibatch have one length: pad (tf.pad, torch.nn.functional.pad) or cut in feed; "
        "those of different lengths are ragged tensors (tf.RaggedTensor), in PyTorch what your collate(samples) "
        "makes (torch.nn.utils.rnn.pad_sequence)",
    ),
    (
        r"None values not supported|'NoneType' and '\w*Tensor'|'\w*Tensor' and 'NoneType'",
        "if these are the labels: let feed give (features, labels); the features alone are for mode prediction",
    ),
    (r"the label is None", "give each record a label, or leave out a record that has none"),
    (
        r"cast to the desired output type (Long|Int|Short|Bool)|Found dtype (Long|Int|Bool) but expected Float",
        "the labels are whole numbers, and this loss wants fractions: use `labels.float()` in loss",
    ),
    (
        r"expected scalar type Long but found|expected target dtype to be Long",
        "the labels are fractions, and this loss wants the numbers of classes: use `labels.long()` in loss",
    ),
    (
        r"__init__\(\) missing 1 required positional argument: 'params'",
        "let optimizer give what makes it of the parameters: return functools.partial(torch.optim.Adam, lr=0.001)",
    ),
    (
        r"does not require grad and does not have a grad_fn",
        "a forward that differentiates (torch.autograd.grad) does it within torch.enable_grad(), as evaluations and "
        "predictions run without gradients",
    ),
)


def suggest_fix(error: BaseException) -> str:
    """A remedy for an exception of the user's code; empty if its text does not tell."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in _ORIGINAL:
        return "docs/model-api.md, Older modules, lists the original's import paths that are there"
    path = error.filename if isinstance(error, FileNotFoundError) else None
    path = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""  # it may be a descriptor
    if path and not Path(path).is_absolute() and "://" not in path:
        return (
            "a path begins at the folder of the process, another one on a cluster: name a file of the zoo by "
            f"Path(__file__).parent / {path!r}"
        )
    for pattern, fix in _BY_TEXT:
        legacy = "legacy" in fix and os.environ.get("TF_USE_LEGACY_KERAS") == "1"
        if not legacy and re.search(pattern, str(error)):
            return fix
    return ""
