"""Tries whether ``feed`` makes its rows of each record alone, as it has to where records are shuffled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from elasticdl_core.errors import UserCodeError
from elasticdl_core.shard import Shard

WINDOWS = "for windows of rows give the reader parameters window=N;stride=1;group_by=COLUMN"
_TRIALS = ((32, 23), (512, 211))
"""Records of a trial, and of its first part: primes, so that parts of a few records each do not end there too."""
LOOKED_AT = _TRIALS[-1][0]
_TIMES = 6
"""How often a number of rows has to come again before it is no chance."""


def refuse_combining(
    run: Callable[[Sequence[Shard]], Sequence[bytes]],
    records: Shard,
    kept: Callable[[], AbstractContextManager[None]],
    path: Path,
    alike: Callable[[Shard, int], Sequence[bytes]] | None = None,
) -> None:
    """Sees that ``feed`` gives of some records what it gives of them in two parts.

    A ``feed`` that draws may give others each time; then their number is compared alone, a few times. One that draws
    from a generator that it makes anew for each task gives others by the place of a record, whatever is in the
    records before it. What fails here is left to the reading of tasks, which says what is wrong.

    Args:
        run: the rows of each of some ranges of records, as bytes, one range after the other.
        records: of the data.
        kept: a context after which random numbers go on as before it.
        path: the user's module, for messages.
        alike: the rows of a range of which so many first records are replaced by the first of all; None where that
            cannot be had.

    Raises:
        UserCodeError: it makes rows of several records together.
    """
    try:
        for size, first in _TRIALS:
            end = min(records.start + size, records.end)
            cut = records.start + (first if first < end - records.start else (end - records.start) * 2 // 3)
            if not records.start < cut < end:
                return
            whole = Shard(records.name, records.start, end)
            with kept():
                together, again = run([whole]), run([whole])
            parts = [Shard(records.name, records.start, cut), Shard(records.name, cut, end)]
            with kept():
                apart = run(parts)
            if together or apart:
                break
        repeats = Counter(together) == Counter(again)
        changed = len(again) == len(together) != len(apart)
        if changed and not repeats:  # by chance, where it draws which records it takes
            with kept():
                changed = all(
                    len(run([whole])) == len(together) and len(run(parts)) == len(apart) for _ in range(_TIMES)
                )
        elif repeats and not changed and Counter(together) != Counter(apart):
            changed = True
            if alike is not None:
                with kept():
                    own = len(run(parts[:1]))
                with kept():
                    other = alike(whole, cut - records.start)
                changed = other == together or other[own:] != together[own:]
    except Exception:  # what user code raises
        return
    if changed:
        told = len(apart) if len(together) != len(apart) else "other rows"
        raise UserCodeError(
            f"feed in {path} makes rows of several records together: of {whole.records} records it gives "
            f"{len(together)} rows, of the same in two parts {told}",
            fix="make each row of one record: tasks and shuffling put others beside it each time. "
            f"{WINDOWS[0].upper()}{WINDOWS[1:]}: then a record is a window",
        )
