"""The flags of ``train``, ``evaluate`` and ``predict``: made from the fields of ``JobSpec``, and checked first.

One source: a field of ``JobSpec`` is a flag with the same name, and its line under ``Attributes`` is the flag's help.
Names have underscores, as they always had; dashes are taken too. What is unknown is refused with a suggestion.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from elasticdl.cli.pairs import parse_pairs, parse_strings
from elasticdl.cli.removed_flags import removed_flag
from elasticdl_core.errors import InvalidInputError, Problem, SpecError
from elasticdl_core.job import ALIASES, JobSpec, JobType
from elasticdl_core.job.field_groups import FIELD_GROUPS, NOT_FOR
from elasticdl_core.job.fields import JobFields

VERBS: Mapping[str, JobType] = {
    "train": JobType.TRAINING,
    "evaluate": JobType.EVALUATION,
    "predict": JobType.PREDICTION,
}
_HERE: Mapping[str, str] = {
    "model_zoo": "Directory of model modules; it is packed and uploaded (see --no-upload).",
    "model_bundle": "Digest of a zoo that was uploaded before, instead of --model_zoo.",
    "validation_data": "Path, directory, glob or URL of the records to evaluate on.",
    "prediction_data": "Path, directory, glob or URL of the records to predict.",
    "output": "Where the exported model, or predictions, go; by default they are artifacts of the job.",
}
"""Descriptions of fields that differ between the command line and the API."""
_OF_WORKERS = frozenset({"cpu", "memory", "gpu"})
"""Short for parts of ``worker_resource_request``."""
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_METAVARS: Mapping[Any, str] = {int: "N", float: "X", str: "TEXT", bool: "true|false"}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of a job command.

    Attributes:
        name: the field's name, and the flag's without its dashes.
        hint: the field's type.
        default: what it is when not given, as text; empty for nothing.
        help: one sentence.
        panel: the group it is shown in.
        aliases: other names.
    """

    name: str
    hint: Any
    default: str
    help: str
    panel: str
    aliases: tuple[str, ...]

    @property
    def metavar(self) -> str:
        """The placeholder for the value in the help."""
        if get_origin(self.hint) is dict:
            return "KEY=VALUE;..."
        return _METAVARS[self.hint]

    def value(self, text: str) -> Any:
        """Parses the value.

        Raises:
            InvalidInputError: it stands for none.
        """
        if get_origin(self.hint) is dict:
            return (parse_strings if get_args(self.hint)[1] is str else parse_pairs)(self.name, text)
        if self.hint is str:
            return text
        if self.hint is bool:
            return _truth(self.name, text)
        kind = "number" if self.hint is float else "whole number"
        try:
            return self.hint(text)
        except ValueError:
            raise InvalidInputError(f"{text!r} is not a {kind}", fix=f"give a {kind}") from None


@functools.cache
def flags_of(kind: JobType) -> Mapping[str, Flag]:
    """The flags of the command for a type of job, by name, in the order of the help."""
    described = _descriptions()
    hints = get_type_hints(JobSpec)
    plain = JobSpec(model_def="a.b")
    flags = {}
    for panel, names in FIELD_GROUPS.items():
        for name in names:
            if name in NOT_FOR[kind]:
                continue
            aliases = tuple(alias for alias, meant in ALIASES.items() if meant == name)
            default = "" if name == "model_def" else _shown(getattr(plain, name))
            flags[name] = Flag(name, hints[name], default, described[name], panel, aliases)
    return flags


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value in ("", {}) else str(value)


def _descriptions() -> dict[str, str]:
    """The lines under ``Attributes`` of ``JobFields``, as sentences without markup."""
    section = (inspect.getdoc(JobFields) or "").partition("Attributes:\n")[2]
    if not section:
        raise InvalidInputError(
            "this Python keeps no docstrings (-OO or PYTHONOPTIMIZE=2), and the options' help is made of them",
            fix="unset PYTHONOPTIMIZE, or set it to 1",
        )
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, flags=re.MULTILINE)
    return {**{name: _sentence(" ".join(lines.split())) for name, lines in found}, **_HERE}


def _sentence(line: str) -> str:
    """A line of a docstring as a sentence without markup; an identifier at its start keeps its case."""
    plain = line.replace("``", "").rstrip(".") + "."
    return plain if line.startswith("``") else plain[0].upper() + plain[1:]


def _truth(name: str, text: str) -> bool:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise InvalidInputError(f"--{name}: {text!r} is neither true nor false", fix="give true or false")
    return word in _TRUE


def rewrite(kind: JobType, args: Sequence[str], others: Mapping[str, bool], verb: str = "") -> list[str]:
    """Normalises the arguments of a job command to ``--name=value`` with the name of the field.

    Args:
        kind: the type of job that the command makes.
        args: arguments as typed.
        others: the command's own options (without dashes at the front): whether they take a value.
        verb: the command, if it is not the one that is named by the type.

    Raises:
        InvalidInputError: an argument that the command does not know, or that lacks its value.
        SpecError: with all that is wrong with the line, also with the values of the flags that are known.
    """
    verb = verb or next(verb for verb, one in VERBS.items() if one is kind)
    rewriter = _Rewriter(kind, others, verb)
    words = list(rewriter.run(args))
    if rewriter.refused:
        pairs = [word[2:].split("=", 1) for word in words if "=" in word]
        given = {name: value for name, value in pairs if name in flags_of(kind)}
        problems = [
            Problem(flag, error.message.removeprefix(f"--{flag} "), error.fix) for flag, error in rewriter.refused
        ]
        problems += _read(kind, given)[1]
        raise SpecError(problems) if len(problems) > 1 else rewriter.refused[0][1]
    return words


class _Rewriter:
    def __init__(self, kind: JobType, others: Mapping[str, bool], verb: str) -> None:
        self._verb = verb
        self._flags = flags_of(kind)
        self._others = {name.replace("-", "_"): takes_value for name, takes_value in others.items()}
        self._given: dict[str, tuple[str, str]] = {}
        self._asked = ""
        self.refused: list[tuple[str, InvalidInputError]] = []

    def run(self, args: Sequence[str]) -> Iterator[str]:
        """The arguments as they are read; what is wrong with others is in ``refused``."""
        rest = list(args)
        while rest:
            word = rest.pop(0)
            try:
                yield from self._word(word, rest)
            except InvalidInputError as error:
                self.refused.append((word.partition("=")[0].lstrip("-"), error))
                if word.startswith("-") and "=" not in word and rest and not rest[0].startswith("--"):
                    rest.pop(0)  # its value

    def _word(self, word: str, rest: list[str]) -> Iterator[str]:
        if word in {"-h", "--help"}:
            yield "--help"
        else:
            if word.startswith("-o"):
                word = "--format" + (f"={word[2:].removeprefix('=')}" if word[2:] else "")
            if not word.startswith("--") or word == "--":
                raise InvalidInputError(
                    f"{word!r} is not a flag",
                    fix="every argument is a flag with its value: --name value or --name=value" + self._of_scripts(),
                )
            typed, has_value, value = word[2:].partition("=")
            given = value if has_value else None
            name = typed.replace("-", "_")
            name = ALIASES.get(name, name)
            if name in _OF_WORKERS:
                amount = self._next(typed, rest) if given is None else given
                yield self._request(name, amount)
            elif name == "restart_policy":
                if (self._next(typed, rest) if given is None else given) != "Never":
                    raise self._unknown(typed, name)
                # which is what is done: pods are not restarted, but replaced
            elif name in self._others:
                yield from self._own(name, given, rest)
            else:
                flag = self._flag(typed, name, given, rest)
                if name == "worker_resource_request":
                    self._asked = flag.partition("=")[2]
                self._refuse_two_names(typed.replace("-", "_"), flag)
                yield flag

    def _request(self, part: str, amount: str) -> str:
        """The request of workers with one part more; the last that is said of a part counts."""
        parts = [one for one in self._asked.split(",") if one and one.partition("=")[0].strip() != part]
        self._asked = ",".join([*parts, f"{part}={amount}"])
        return f"--worker_resource_request={self._asked}"

    def _refuse_two_names(self, typed: str, flag: str) -> None:
        """Refuses a flag under two names with two values; under one name the last value counts, as in any program."""
        name, _, value = flag.partition("=")
        before, earlier = self._given.setdefault(name, (typed, value))
        if before != typed and {before, typed} & ALIASES.keys() and earlier != value:
            raise InvalidInputError(
                f"--{before}={earlier} and --{typed}={value} are two names of one flag", fix=f"give {name} alone"
            )
        self._given[name] = (typed, value)

    def _own(self, name: str, given: str | None, rest: list[str]) -> Iterator[str]:
        option = "--" + name.replace("_", "-")
        if given is not None:
            yield f"{option}={given}"
        elif self._others[name]:
            yield f"{option}={self._next(name, rest)}"
        else:
            yield option

    def _flag(self, typed: str, name: str, given: str | None, rest: list[str]) -> str:
        negated = name.removeprefix("no_")
        if negated != name and negated in self._flags and self._flags[negated].hint is bool:
            if given is not None:
                raise InvalidInputError(f"--{typed} takes no value", fix=f"write --no-{negated} or --{negated}=false")
            return f"--{negated}=false"
        flag = self._flags.get(name)
        if flag is None:
            raise self._unknown(typed, name)
        if flag.hint is bool:
            if given is None and rest and rest[0].lower() in _TRUE | _FALSE:
                given = rest.pop(0)
            truth = given is None or _truth(name, given)
            return f"--{name}={str(truth).lower()}"
        return f"--{name}={self._next(typed, rest) if given is None else given}"

    def _next(self, typed: str, rest: list[str]) -> str:
        if not rest or rest[0].startswith("--"):
            raise InvalidInputError(f"--{typed} lacks its value", fix=f"write --{typed} VALUE or --{typed}=VALUE")
        return rest.pop(0)

    def _unknown(self, typed: str, name: str) -> InvalidInputError:
        homes = [other for other, kind in VERBS.items() if name in flags_of(kind)]
        if homes:
            return InvalidInputError(
                f"--{typed} means nothing to `elasticdl {self._verb}`",
                fix=f"leave it out; it belongs to `elasticdl {'` and `elasticdl '.join(homes)}`",
            )
        if name == "type":
            return InvalidInputError("--type is no flag", fix="use `elasticdl train`, `evaluate` or `predict`")
        gone = removed_flag(name)
        if gone is not None:
            return InvalidInputError(f"--{typed} is no longer a flag: {gone.reason}", fix=gone.instead)
        known = [*self._flags, *ALIASES, *self._others, *_OF_WORKERS]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        fix = f"did you mean --{near[0]}?" if near else f"`elasticdl {self._verb} --help` lists all flags"
        return InvalidInputError(f"there is no flag --{typed}", fix=fix + self._of_scripts())

    def _of_scripts(self) -> str:
        return "; what is the script's own stands after `--`" if self._verb == "run" else ""


def mapping_of(kind: JobType, given: Mapping[str, str | None]) -> dict[str, Any]:
    """The JSON data of a specification from the texts of flags; only what was given is in it.

    Raises:
        SpecError: with every text that does not fit its flag, and then with all that is wrong with the others.
    """
    mapping, problems, unread = _read(kind, given)
    if unread:
        raise SpecError(problems)
    return mapping


def _read(kind: JobType, given: Mapping[str, str | None]) -> tuple[dict[str, Any], list[Problem], bool]:
    """The data of a specification, what is wrong with it, and whether some of it is no text that fits its flag."""
    flags = flags_of(kind)
    mapping: dict[str, Any] = {} if kind is JobType.TRAINING else {"type": str(kind)}
    problems: list[Problem] = []
    for name, text in given.items():
        if text is None:
            continue
        try:
            mapping[name] = flags[name].value(text)
        except InvalidInputError as error:
            problems.append(Problem(name, error.message.removeprefix(f"--{name}: "), error.fix))
    unread = bool(problems)
    try:
        JobSpec.from_mapping({"model_def": "module.model", **mapping})  # which a line may leave to --from
    except SpecError as error:
        problems += [problem for problem in error.problems if problem.field in mapping]  # what is absent may come yet
    return mapping, problems, unread


def fields_without_flag() -> set[str]:
    """Fields of ``JobSpec`` that no command has a flag for: the type, which is the command itself."""
    shown = {name for names in FIELD_GROUPS.values() for name in names}
    return {field.name for field in dataclasses.fields(JobSpec)} - shown
