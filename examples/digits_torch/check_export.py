"""Loads the exported digits model with plain PyTorch, no ElasticDL, and measures its accuracy.

    python check_export.py ARTIFACTS VALIDATION_NPZ

Prints one line of JSON: accuracy of the program (``model.pt2``) and of the weights (``model.safetensors``) in the
model of ``zoo/digits.py``.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import numpy as np
import safetensors.torch
import torch


def model_of(zoo: Path) -> torch.nn.Module:
    """The model of the zoo, by its function ``forward`` alone: the rest of the file needs ElasticDL."""
    tree = ast.parse((zoo / "digits.py").read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "forward")
    names: dict[str, object] = {"nn": torch.nn}
    exec(compile(ast.Module([function], []), "digits.py", "exec"), names)
    model = names["forward"]()  # type: ignore[operator]
    assert isinstance(model, torch.nn.Module)
    return model


def main(artifacts: Path, validation: Path) -> None:
    """Prints the accuracies."""
    data = np.load(validation)
    images, labels = torch.from_numpy(data["images"])[:, None] / 16.0, torch.from_numpy(data["labels"])
    program = torch.export.load(next(artifacts.rglob("model.pt2"))).module()
    model = model_of(Path(__file__).parent / "zoo").eval()
    model.load_state_dict(safetensors.torch.load_file(next(artifacts.rglob("model.safetensors"))))
    with torch.no_grad():
        result = {
            "program": float((program(images).argmax(1) == labels).float().mean()),
            "weights": float((model(images).argmax(1) == labels).float().mean()),
        }
    assert not any(name.split(".")[0].startswith("elasticdl") for name in sys.modules), "this must be a plain process"
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
