"""Rules of each field of a specification by itself, in the words of JSON schema.

The rules are those of ``elasticdl_core.job`` and ``elasticdl_core.path_policy``, which the api applies; here they are
written for who makes requests by the description. What JSON schema cannot say, such as which fields go together, is
told by a refusal (422), and so is what is wrong deep in parameters: public generators of clients know no schema that
names itself.
"""

from __future__ import annotations

from typing import Any

from elasticdl_core import pods
from elasticdl_core.devices import HIDING, MOST_DEVICES
from elasticdl_core.job import bounds
from elasticdl_core.job.fields import EXPORT_FORMATS, OUTPUT_FORMATS, WORDS, range_of
from elasticdl_core.job.names import LAST
from elasticdl_core.path_policy import READ_FIELDS, REMOTE_SCHEMES, STORE_SCHEMES, STORED_FIELDS, WRITTEN_FIELDS

_CONTROL = r"\x00-\x1f\x7f-\x9f"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_DOTTED = rf"{_NAME}(\.{_NAME})*"
_STORABLE = {"type": "string", "pattern": r"^[^\x00]*$"}
_FORMATS = "|".join(EXPORT_FORMATS)
_WHOLE_DEVICES = "|".join(map(str, range(1, MOST_DEVICES + 1)))
_SHARE = rf"(0\.(0[1-9]|[1-9][0-9]?)|{_WHOLE_DEVICES})"
_RESOURCE = rf"(cpu|memory|disk|ephemeral-storage)={pods.QUANTITY}"
_OF_WORKER = rf"({_RESOURCE}|gpu={_SHARE})"
_UP = r"(?!(.*/)?\.\.(/|$))"
_PATH = rf"/(?!/){_UP}[^\\{_CONTROL}]*"
_IN_STORES = r"[^/\x00-\x20\x7f-\x9f*?\[\]{}#%\\]"
_STORED = (
    rf"({'|'.join(sorted(STORE_SCHEMES))})://(?!.*::)(?![^/]*@){_IN_STORES}+(/(?!\.{{1,2}}(/|$)){_IN_STORES}+)*/*"
)
_REMOTE = "|".join(sorted({*REMOTE_SCHEMES, *(scheme.upper() for scheme in REMOTE_SCHEMES)}))
ROOT_PATTERN = rf"^(?![^\x00]*[*?\[{{])({_PATH}|({_REMOTE})://{_UP}(?=.*[^/])[^\x00-\x1f\x7f]*)$"
"""Roots of data (``elasticdl_core.path_policy.check_root``)."""
GPU_PATTERN = rf"^(gpu={_SHARE})?$"
"""What the workers of a job that does not exist may ask for."""
_VOLUME = rf"(claim_name|mount_path|sub_path|read_only)=[^,;={_CONTROL}]+"
_RULES: dict[str, dict[str, Any]] = {
    "name": {"pattern": rf"^(?!{LAST}$)[a-z0-9]([-a-z0-9]{{0,38}}[a-z0-9])?$", "maxLength": 40},
    "model_def": {"pattern": rf"^{_NAME}\.{_DOTTED}$"},
    "model_bundle": {"pattern": "^(sha256:[0-9a-f]{64})?$"},
    **{name: {"pattern": rf"^({_DOTTED})?$"} for name in bounds.ENTRIES},
    **{
        name: {"pattern": f"^((?!.*://){_PATH}{f'|{_STORED}' if name in STORED_FIELDS else ''})?$"}
        for name in (*READ_FIELDS, *WRITTEN_FIELDS)
    },
    "export_formats": {"pattern": rf"^({_FORMATS})?(,({_FORMATS})?)*$"},
    "output_format": {"enum": ["", *OUTPUT_FORMATS]},
    "worker_resource_request": {"pattern": rf"^({_OF_WORKER}(,{_OF_WORKER})*)?$"},
    **{f"{role}_resource_request": {"pattern": rf"^({_RESOURCE}(,{_RESOURCE})*)?$"} for role in ("ps", "master")},
    "image": {"pattern": f"^({pods.IMAGE})?$"},
    "volume": {"pattern": f"^({_VOLUME}(,{_VOLUME})*(;{_VOLUME}(,{_VOLUME})*)*)?$"},
    "node_selector": {
        "maxProperties": bounds.LABELS,
        "propertyNames": {
            "pattern": rf"^({pods.CLAIM}/)?(?=[^/]{{1,{pods.LABEL_CHARS}}}$){pods.LABEL}$",
            "maxLength": bounds.LABEL_KEY_CHARS,
        },
        "additionalProperties": {"type": "string", "maxLength": pods.LABEL_CHARS, "pattern": f"^{pods.LABEL}$"},
    },
    "keep_best": {"pattern": rf"^([^{_CONTROL}]+:(max|min))?$"},
    "delay_compensation": {"minimum": 0, "maximum": 1e9},
    "envs": {
        "maxProperties": bounds.VARIABLES,
        "propertyNames": {"pattern": r"^(?!ELASTICDL_|PYTHON(?!PATH$)|LD_)[A-Za-z_][A-Za-z0-9_]{0,127}$"},
        "properties": {
            "KERAS_BACKEND": {"const": "tensorflow"},
            **{name: {"enum": ["", "-1", "void", "none"]} for name in HIDING},
        },
        "additionalProperties": {**_STORABLE, "maxLength": bounds.VARIABLE_CHARS},
    },
    "labels": {
        "maxProperties": bounds.LABELS,
        "propertyNames": {"pattern": rf"^[^={_CONTROL}]{{1,{bounds.LABEL_KEY_CHARS}}}$"},
        "additionalProperties": {
            "type": "string",
            "maxLength": bounds.LABEL_CHARS,
            "pattern": rf"^[^{_CONTROL}]*$",
        },
    },
    **{
        name: {
            "maxProperties": bounds.VALUES,
            "propertyNames": {"pattern": r"^[^\x00]*$"},
        }
        for name in bounds.PARAMETERS
    },
}


def rules_of(name: str, kind: str) -> dict[str, Any]:
    """The JSON schema of what a field takes.

    Args:
        name: the field.
        kind: its type in JSON.
    """
    rules = dict(_RULES.get(name, {}))
    if name in WORDS:
        rules["enum"] = list(WORDS[name])
    elif kind == "string":
        rules.setdefault("pattern", rf"^[^{_CONTROL}]*$")
        rules.setdefault("maxLength", bounds.longest(name))
    if whole := range_of(name):
        rules |= {"minimum": whole[0], "maximum": whole[1]}
    return rules
