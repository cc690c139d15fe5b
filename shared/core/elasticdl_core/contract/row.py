"""The rule for one thing that a model module can bring: it is honoured, translated or refused, never ignored."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """Verdicts on a thing."""

    HONOURED = "honoured"
    """It does what it does in Keras, or in PyTorch."""
    TRANSLATED = "translated"
    """Something of ours does the same, or what ``how`` says."""
    REFUSED = "refused"
    """The job ends before it trains, with ``how`` and ``fix`` in the message."""


class Subject(enum.StrEnum):
    """Kinds of things that rows are about; each is a section of the reference page."""

    ENTRY = "Entries of the module"
    MODEL = "What a model class can define"
    LAYER = "Layers, weights and their policies"
    OPTIMIZER = "Optimizers"
    OPTION = "Options of optimizers"
    CALLBACK = "Callbacks"
    METRIC = "Metrics"
    TORCH_ENTRY = "PyTorch: entries of the module"
    TORCH_LAYER = "PyTorch: layers, parameters and buffers"
    TORCH_OPTIMIZER = "PyTorch: optimizers"
    TORCH_SCHEDULER = "PyTorch: learning rate schedulers"
    TORCH_CALLBACK = "PyTorch: callbacks"
    TORCH_METRIC = "PyTorch: metrics"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        subject: what kind of things these are.
        names: of which the same is true, as Keras or PyTorch writes them.
        verdict: what becomes of them.
        how: how, or why not; a clause that can follow the name in a sentence.
        fix: what to do instead; every refusal has one.
    """

    subject: Subject
    names: tuple[str, ...]
    verdict: Verdict
    how: str
    fix: str = ""


def rows(subject: Subject, verdict: Verdict, names: str, how: str, fix: str = "") -> Row:
    """A row; ``names`` are separated by spaces."""
    return Row(subject, tuple(names.split()), verdict, how, fix)
