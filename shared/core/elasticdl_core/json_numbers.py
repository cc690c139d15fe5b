"""Numbers that JSON cannot write: NaN and the infinities travel as the strings ``NaN``, ``Infinity``, ``-Infinity``.

Text that cannot be sent is escaped (``elasticdl_core.well_formed``), and not read back.

The one home of that rule: whoever writes JSON calls ``to_json``, whoever reads a number out of JSON calls
``from_json``. (Python's own ``NaN`` literal is not JSON: Postgres, browsers and strict parsers refuse it.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from elasticdl_core.well_formed import well_formed

Spelled = Literal["NaN", "Infinity", "-Infinity"]
_READ = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> Any:
    """The value with every number that JSON cannot write replaced by its string, and text escaped that it cannot."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else spelled(value)
    if isinstance(value, Mapping):
        return {to_json(key) if isinstance(key, str) else key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def whole(value: Any) -> Any:
    """A number without a fraction as the whole number that it is, as JSON schema has it: 3.0 is 3."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def spelled(value: float) -> Spelled:
    """The string of a number that is not finite."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def from_json(value: Any) -> Any:
    """The value with each of the three strings replaced by its number; for values that are numbers, or hold them."""
    if isinstance(value, str):
        return _READ.get(value, value)
    if isinstance(value, Mapping):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [from_json(item) for item in value]
    return value
