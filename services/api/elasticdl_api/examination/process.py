"""The process that reads what tenants made: inflates their zips and parses their modules, under limits.

It has no secret, no database and no network of its own, and loads no framework. It is given one JSON object a line on
its standard input and answers each with one; ``examiners.Examiners`` keeps a few of them, and ends one that is late.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from elasticdl.model_check import check_model_module
from elasticdl_core.errors import ElasticDLError, InvalidInputError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.path_policy import PathPolicy
from elasticdl_runtime.bundles import MAX_UNPACKED_BYTES, examine_bundle, unpack_bundle

_TEXT = 4000
"""Most characters of one text of an answer: a name in a module may be as long as the module."""


def main(memory_bytes: int, cpu_s: int) -> None:
    """Answers requests until its input ends.

    Args:
        memory_bytes: most address space of this process.
        cpu_s: most seconds of processor time for one request; the kernel ends a process that takes more.
    """
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_UNPACKED_BYTES, MAX_UNPACKED_BYTES))
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + cpu_s, resource.RLIM_INFINITY))
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        _examine(**request)
    except MemoryError:
        return {"died": "it took more memory than is allowed"}
    except UserCodeError as error:
        return _described("user_code", error) | {"traceback": _shortened(error.traceback)}
    except InvalidInputError as error:
        return _described("invalid_input", error)
    except ElasticDLError as error:
        return _described("unavailable", error)
    except OSError as error:
        return {
            "code": "unavailable",
            "message": f"model code cannot be read: {error.strerror}",
            "fix": "try again",
        }
    return {}


def _examine(
    *,
    zip: str = "",
    zoo: str = "",
    folder: str = "",
    spec: dict[str, Any] | None = None,
    reach: dict[str, Any] | None = None,
) -> None:
    if spec is None:
        examine_bundle(zip)
        return
    if zip:
        zoo = str(unpack_bundle(zip, Path(folder) / "zoo", suffix=".py"))
    allowed = None if reach is None else PathPolicy.from_mapping(reach)
    check_model_module(zoo, JobSpec.from_mapping(spec), reach=allowed)


def _described(code: str, error: ElasticDLError) -> dict[str, Any]:
    return {"code": code, "message": _shortened(error.message), "fix": _shortened(error.fix)}


def _shortened(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
