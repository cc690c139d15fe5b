"""One seed of Python's hashes in every process that imports users' code.

Python draws the order in which it goes through a set of texts anew in each process. A model whose layers are made in
that order would give them other names each time, and tables of one shape would change places (ADR 87).
"""

from __future__ import annotations

HASHING = {"PYTHONHASHSEED": "0"}
"""What the environment of such a process has; jobs cannot set variables of Python's."""
