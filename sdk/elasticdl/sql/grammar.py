"""The statements: a SELECT, or none, and what is to be done with its rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl.sql.lexing import refusal, suggest, tokens_of, word_of

VERBS = ("TRAIN", "PREDICT", "EVALUATE", "EXPLAIN", "RUN", "MAXIMIZE", "MINIMIZE")
_REFUSED: Mapping[str, str] = {
    "RUN": "write a job for the program, or `elasticdl run SCRIPT`",
    "MAXIMIZE": "use a solver; models are trained here",
    "MINIMIZE": "use a solver; models are trained here",
}
_CLAUSES: Mapping[str, tuple[str, ...]] = {
    "TRAIN": ("WITH", "COLUMN", "LABEL", "INTO"),
    "PREDICT": ("WITH", "USING"),
    "EVALUATE": ("WITH", "LABEL"),
    "EXPLAIN": ("WITH", "INTO"),
}
_AFTER_OLD = {*_CLAUSES["TRAIN"], "USING", ".", ";", ""}
_NO_END = {"SELECT", "FROM", "WHERE", "AND", "OR", "ON", "BY", "AS", ",", "JOIN", "DISTINCT", ".", "(", "=", "<", ">"}
_MOST_NESTING = 20
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True)
class Call:
    """A column's description such as ``EMBEDDING(city, 16) AS place``, or a column alone.

    Attributes:
        name: the function in capitals; empty for a column alone.
        args: its arguments: calls, numbers, texts and lists of them.
        offset: where it begins in the statement.
        column: the column's name, where it stands alone.
        options: arguments with names.
        alias: the name behind AS.
    """

    name: str
    args: tuple[Any, ...]
    offset: int
    column: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    alias: str = ""


@dataclass(frozen=True)
class Statement:
    """One statement.

    Attributes:
        text: as it was written; one of a file has space before it, so that places are those of the file.
        verb: ``TRAIN``, ``PREDICT``, ``EVALUATE``, ``EXPLAIN`` or ``SHOW``.
        select: the SELECT, with the space before it; empty for SHOW.
        subject: the model to train, evaluate, explain or show, or the ``table.column`` that predictions go to; empty
            for a training that names no model.
        attributes: those of WITH, and where each stands.
        columns: descriptions by the input that FOR names; empty where there is no FOR.
        label: the label's column.
        into: the name of what comes out.
        using: the model that predicts.
        offset: where the subject stands.
    """

    text: str
    verb: str
    select: str = ""
    subject: str = ""
    attributes: Mapping[str, tuple[Any, int]] = field(default_factory=dict)
    columns: Mapping[str, tuple[Call, ...]] = field(default_factory=dict)
    label: str = ""
    into: str = ""
    using: str = ""
    offset: int = 0


def split_statements(text: str) -> list[str]:
    """The statements of a file, which end with semicolons, each behind space so that places are those of the file."""
    found, start = [], 0
    ends = [token.start for token in tokens_of(text) if token.token_type.name == "SEMICOLON"]
    for end in [*ends, len(text)]:
        one = text[start:end]
        before = text[: start + len(one) - len(one.lstrip())]
        found.append("\n" * before.count("\n") + " " * (len(before) - before.rfind("\n") - 1) + one.strip())
        start = end + 1
    return [one for one in found if tokens_of(one)]


def parse_statement(text: str) -> Statement:
    """Reads one statement.

    Args:
        text: the statement; a semicolon may end it.

    Raises:
        InvalidInputError: with line, column and what to write instead.
    """
    tokens = tokens_of(text)
    if not tokens:
        raise refusal(text, 0, "there is no statement", "write SELECT ... TO TRAIN ...")
    first = word_of(tokens[0])
    if first == "SHOW" or (first == "COMMAND" and text.lstrip()[:4].upper() == "SHOW"):
        start = text.upper().index("SHOW")
        return _Tail(text, tokens_of(text[start + 4 :]), start + 4).show()
    if first not in ("SELECT", "WITH"):
        raise refusal(text, tokens[0].start, f"a statement begins with SELECT, not {tokens[0].text!r}",
                      suggest(tokens[0].text, ("SELECT", "WITH", "SHOW TRAIN")))  # fmt: skip
    cut, behind, has_verb = _cut(text, tokens)
    tail = _Tail(text, [one for one in tokens if one.start >= behind], 0)
    return tail.statement(text[:cut].rstrip(), has_verb=has_verb)


def _cut(text: str, tokens: list[Any]) -> tuple[int, int, bool]:
    """Positions of the SELECT's end and of the verb, or of what follows where there is none; and whether there is."""
    depth = 0
    for at, token in enumerate(tokens):
        word = word_of(token)
        depth += (word == "(") - (word == ")")
        following = [word_of(one) for one in tokens[at + 1 : at + 3]] + ["", ""]
        if depth or at == 0:
            continue
        if word == "TO" and word_of(tokens[at - 1]) not in _NO_END:
            return token.start, tokens[at + 1].start if at + 1 < len(tokens) else len(text), True
        old = word in ("TRAIN", "PREDICT", "EVALUATE") and word_of(tokens[at - 1]) not in _NO_END
        if old and at + 1 < len(tokens) and following[0] not in _AFTER_OLD and following[1] in _AFTER_OLD:
            return token.start, token.start, True
    if (label := _place_of_label(text, tokens)) is not None:
        return tokens[label].start, tokens[label].start, False
    raise refusal(text, len(text.rstrip()), "nothing says what to do with the rows",
                  "end it with TO TRAIN model ... LABEL column INTO name, EVALUATE, EXPLAIN or PREDICT; or with "
                  "LABEL column INTO name, and models are compared")  # fmt: skip


def _place_of_label(text: str, tokens: list[Any]) -> int | None:
    """The place of LABEL column INTO name, or of WITH before it, if a statement ends so and names no model."""
    words = [word_of(one) for one in tokens]
    end = len(words) - (words[-1] == ";")
    if end < 6 or words[end - 4 : end - 1 : 2] != ["LABEL", "INTO"] or words[end - 5] in _NO_END:
        return None
    depth = 0
    for at in range(end - 5, 0, -1):
        depth += (words[at] == ")") - (words[at] == "(")
        begins = words[at] == "WITH" and words[at - 1] not in _NO_END and words[at + 2] in ("=", ".")
        if not depth and begins:
            return at
        if not depth and words[at] == "COLUMN" and words[at - 1] not in _NO_END:
            raise refusal(text, tokens[at].start, "COLUMN is for a model, and none is named",
                          "write TO TRAIN and a model before it, or leave it out")  # fmt: skip
    return end - 4


class _Tail:
    """Reads what stands behind the SELECT."""

    def __init__(self, text: str, tokens: list[Any], start: int) -> None:
        self._text, self._start = text, start
        self._tokens = tokens
        self._at = 0

    def show(self) -> Statement:
        self._keyword("TRAIN")
        subject = self._plain("the name of a model")
        self._end()
        return Statement(self._text, "SHOW", subject=subject)

    def statement(self, select: str, *, has_verb: bool) -> Statement:
        verb, subject, offset = self._word(), "", self._offset()
        if not has_verb:
            verb = "TRAIN"
        elif verb not in VERBS:
            raise self._refusal("TO is followed by what is to be done", suggest(verb or "TRAIN", VERBS[:4]))
        elif verb in _REFUSED:
            raise self._refusal(f"TO {verb} is not done by ElasticDL", _REFUSED[verb])
        else:
            self._at += 1
            offset = self._offset()
            subject = self._dotted("a model" if verb != "PREDICT" else "a table and a column", plain=True)
        if verb == "PREDICT" and "." not in subject:
            raise refusal(self._text, offset, "predictions go to a column of a table", f"write {subject}.prediction")
        given: dict[str, Any] = {}
        seen: set[str] = set()
        columns: dict[str, tuple[Call, ...]] = {}
        clauses = _CLAUSES[verb]
        while (word := self._word()) and word != ";":
            if (verb, word) == ("EVALUATE", "INTO"):
                raise self._refusal("INTO is not done for TO EVALUATE: the database is only read",
                                    "leave INTO out: the metrics are printed, and kept with the job")  # fmt: skip
            if word not in clauses:
                raise self._refusal(f"{self._shown()} is no clause of TO {verb}", suggest(word, clauses))
            if word in seen and word != "COLUMN":
                raise self._refusal(f"{word} is there twice", "leave one of them out")
            if any(clauses.index(word) < clauses.index(one) for one in seen):
                raise self._refusal(f"{word} is too late", f"write the clauses in this order: {', '.join(clauses)}")
            seen.add(word)
            self._at += 1
            if word == "WITH":
                given["attributes"] = self._attributes()
            elif word == "COLUMN":
                self._columns(columns)
            else:
                read = self._name if word == "LABEL" else self._plain
                given[word.lower()] = read(f"a name behind {word}")
        self._end()
        for needed in {"TRAIN": ("LABEL", "INTO"), "PREDICT": ("USING",), "EVALUATE": ("LABEL",), "EXPLAIN": ()}[
            verb
        ]:
            if needed not in seen:
                raise self._refusal(f"TO {verb} lacks {needed}", f"add {needed} and a name")
        return Statement(self._text, verb, select, subject, columns=columns, offset=offset, **given)

    def _columns(self, columns: dict[str, tuple[Call, ...]]) -> None:
        found = [self._call(0)]
        while self._word() == ",":
            self._at += 1
            found.append(self._call(0))
        target = ""
        if self._word() == "FOR":
            self._at += 1
            target = self._name("the name of an input")
        if target in columns:
            raise self._refusal(f"COLUMN for {target or 'the model'} is there twice", "put the columns in one clause")
        columns[target] = tuple(found)

    def _attributes(self) -> dict[str, tuple[Any, int]]:
        found: dict[str, tuple[Any, int]] = {}
        while True:
            offset = self._offset()
            name = self._dotted("an attribute")
            if name in found:
                raise refusal(self._text, offset, f"{name} is given twice", "leave one of them out")
            self._keyword("=")
            found[name] = (self._value(0), offset)
            if self._word() != ",":
                return found
            self._at += 1

    def _value(self, depth: int) -> Any:
        token = self._peek()
        kind = token.token_type.name if token is not None else ""
        if kind == "STRING":
            self._at += 1
            return str(token.text)
        if kind == "NUMBER" or self._word() in ("-", "+"):
            return self._number()
        if self._word() == "[":
            return self._list(depth)
        if self._word() in ("TRUE", "FALSE"):
            self._at += 1
            return token.text.upper() == "TRUE"
        if kind in ("VAR", "IDENTIFIER"):
            return self._dotted("a value")
        raise self._refusal(
            f"a value is missing before {self._shown()}", "write a number, 'a text', true, or [a, list]"
        )

    def _number(self) -> int | float:
        sign = 1
        if self._word() in ("-", "+"):
            sign = -1 if self._word() == "-" else 1
            self._at += 1
        token = self._peek()
        if token is None or token.token_type.name != "NUMBER":
            raise self._refusal("a number is missing", "write one, such as 0.01")
        self._at += 1
        try:
            return sign * int(token.text)
        except ValueError:
            return sign * float(token.text)

    def _list(self, depth: int) -> list[Any]:
        self._nested(depth)
        self._keyword("[")
        found: list[Any] = []
        while self._word() != "]":
            if found:
                self._keyword(",")
            found.append(self._value(depth + 1))
        self._at += 1
        return found

    def _call(self, depth: int) -> Call:
        self._nested(depth)
        offset = self._offset()
        name = self._name("a column")
        if self._word() != "(":
            return Call("", (), offset, column=name)
        self._at += 1
        args: list[Any] = []
        options: dict[str, Any] = {}
        while self._word() != ")":
            if args or options:
                self._keyword(",")
            token, after = self._peek(), self._peek(1)
            if after is not None and word_of(after) == "=":
                key = self._name("an option")
                self._at += 1
                options[key] = self._value(depth + 1)
            elif (token is not None and token.token_type.name in ("NUMBER", "STRING")) or self._word() in ("-", "["):
                args.append(self._value(depth + 1))
            else:
                args.append(self._call(depth + 1))
        self._at += 1
        alias = ""
        if self._word() == "AS":
            self._at += 1
            alias = self._name("a name behind AS")
        return Call(name.upper(), tuple(args), offset, options=options, alias=alias)

    def _nested(self, depth: int) -> None:
        if depth > _MOST_NESTING:
            raise self._refusal("brackets are too deep", f"use no more than {_MOST_NESTING}")

    def _dotted(self, what: str, *, plain: bool = False) -> str:
        read = self._plain if plain else self._name
        parts = [read(what)]
        while self._word() == ".":
            self._at += 1
            parts.append(read(what))
        return ".".join(parts)

    def _plain(self, what: str) -> str:
        """A name that may be part of a path."""
        offset = self._offset()
        name = self._name(what)
        if not _PLAIN.fullmatch(name):
            raise refusal(self._text, offset, f"{name!r} is no plain name", "use letters, digits and underscores")
        return name

    def _name(self, what: str) -> str:
        token = self._peek()
        text = "" if token is None else str(token.text)
        quoted = token is not None and token.token_type.name == "IDENTIFIER"
        keyword = self._word() in {*_CLAUSES["TRAIN"], "USING", "FOR"}
        if not text or not (quoted or (text.isidentifier() and not keyword and token.token_type.name != "STRING")):
            raise self._refusal(f"{what} is missing before {self._shown()}", f"write {what}")
        self._at += 1
        return text

    def _keyword(self, word: str) -> None:
        if self._word() != word:
            raise self._refusal(f"{word} is missing before {self._shown()}", f"write {word} here")
        self._at += 1

    def _end(self) -> None:
        if self._word() == ";":
            self._at += 1
        if self._peek() is not None:
            raise self._refusal(f"{self._shown()} stands behind the statement", "give one statement, or a --file")

    def _peek(self, ahead: int = 0) -> Any:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def _word(self) -> str:
        token = self._peek()
        return "" if token is None else word_of(token)

    def _offset(self) -> int:
        token = self._peek()
        return len(self._text.rstrip()) if token is None else self._start + int(token.start)

    def _shown(self) -> str:
        token = self._peek()
        return "the end" if token is None else repr(str(token.text))

    def _refusal(self, message: str, fix: str) -> Any:
        return refusal(self._text, self._offset(), message, fix)
