"""Suggests what to do about errors that users' code often raises, by their text."""

from __future__ import annotations

import os
import re

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
)


def suggest_fix(error: BaseException) -> str:
    """What the user can do about an exception of their code; empty if its text does not tell."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in _ORIGINAL:
        return "docs/model-api.md, Older modules, lists the original's import paths that are there"
    for pattern, fix in _BY_TEXT:
        legacy = "legacy" in fix and os.environ.get("TF_USE_LEGACY_KERAS") == "1"
        if not legacy and re.search(pattern, str(error)):
            return fix
    return ""
