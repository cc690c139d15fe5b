"""Model modules made from statements: columns become features, a premade model takes them, all in readable Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl.sql.grammar import Call, Statement
from elasticdl.sql.lexing import refusal, suggest
from elasticdl.sql.source import Column


@dataclass(frozen=True)
class _Family:
    """A kind of premade models.

    Attributes:
        parts: its parts that take columns.
        options: what WITH may set, and its default.
        before: lines between the columns of ``deep`` and its hidden layers.
        summed: the names whose projections are the output, in their sum.
        functions: what ``before`` calls.
        fewest: how many columns ``deep`` needs.
    """

    parts: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    before: str = ""
    summed: tuple[str, ...] = ()
    functions: str = ""
    fewest: int = 1


_HIDDEN: Mapping[str, Any] = {"hidden_units": [64, 32]}
_DEEPFM = """\
    linear = deep
    pairs = interactions(features, {vector_size})
"""
_INTERACTIONS = '''

def interactions(features, size):
    """Products of all pairs of vectors, one a column, in sum (Guo et al. 2017): half of squared sum less squares."""
    vectors = keras.ops.stack(
        [one if one.shape[-1] == size else keras.layers.Dense(size, use_bias=False)(one) for one in features], axis=1
    )
    squared_sum = keras.ops.square(keras.ops.sum(vectors, axis=1))
    return 0.5 * (squared_sum - keras.ops.sum(keras.ops.square(vectors), axis=1))
'''
_DCN = """\
    first = cross = deep
    for _ in range({cross_layers}):
        cross = first * keras.layers.Dense(first.shape[-1])(cross) + cross  # Wang et al. 2021
"""
_FAMILIES: Mapping[str, _Family] = {
    "DNN": _Family(("deep",), _HIDDEN),
    "Linear": _Family(("wide",)),
    "WideAndDeep": _Family(("deep", "wide"), _HIDDEN),
    "DeepFM": _Family(
        ("deep",), {**_HIDDEN, "vector_size": 8}, _DEEPFM, ("linear", "pairs", "deep"), _INTERACTIONS, 2
    ),
    "DCN": _Family(("deep",), {**_HIDDEN, "cross_layers": 3}, _DCN, ("cross", "deep")),
}
MODELS: Mapping[str, tuple[_Family, bool]] = {
    name + kind: (family, kind == "Classifier")
    for name, family in _FAMILIES.items()
    for kind in ("Classifier", "Regressor")
}
"""Premade models: their family, and whether they have classes."""
_PARTS = {"": ("deep", "wide"), "deep_embeddings": ("deep",), "dnn_feature_columns": ("deep",),
          "wide_embeddings": ("wide",), "linear_feature_columns": ("wide",)}  # fmt: skip
_NUMBERS = ("NUMERIC", "DENSE")
_IDS = ("BUCKET", "BUCKETIZE", "CATEGORY_ID", "IDENTITY", "HASH", "CATEGORY_HASH", "VOCABULARIZE", "CROSS", "CONCAT")
_DENSE = (*_NUMBERS, "EMBEDDING", "INDICATOR")
FUNCTIONS = (*_DENSE, *_IDS)
_TAKES: Mapping[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(("INDICATOR", "VOCABULARIZE"), (1, ())),
    **dict.fromkeys(_NUMBERS, (1, ("missing",))),
    "EMBEDDING": (2, ()),
    **dict.fromkeys(("BUCKET", "BUCKETIZE"), (2, ("boundaries", "num_buckets"))),
    **dict.fromkeys(("CATEGORY_ID", "IDENTITY"), (2, ("num_buckets",))),
    **dict.fromkeys(("HASH", "CATEGORY_HASH", "CROSS"), (2, ("hash_bucket_size",))),
    "CONCAT": (1_000, ()),
}
"""Of each function how many arguments it takes, and those that may be given by name."""
_AS_TEXT = "__as_text"
_EXACT = 1 << 24
"""Whole numbers up to here are exact as float32, which numbers are read as."""
_BINS = 1_000
_LARGEST_VOCABULARY = 10_000


@dataclass
class _Writer:
    """Turns descriptions of columns into expressions of a module.

    Attributes:
        statement: what they are from.
        columns: what is known of the columns of the rows.
        used: layers that expressions name.
        inputs: columns that they use, and whether as numbers.
        missing: the numbers that NULLs of columns count as.
        groups: ids that have a name, by AS.
    """

    statement: Statement
    columns: Mapping[str, Column]
    used: set[str] = field(default_factory=set)
    inputs: dict[str, bool] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)
    groups: dict[str, tuple[str, int]] = field(default_factory=dict)

    def feature(self, call: Call) -> str:
        """The expression of a float32 tensor ``[records, n]``."""
        if not call.name:
            if call.column in self.groups:
                raise self._refusal(call, f"{call.column} are ids", f"write EMBEDDING({call.column}, 8) or INDICATOR")
            numeric = self._column(call).numeric
            return self._number(call) if numeric else self._vectors(call, self.ids(call), 8)
        self._check_arguments(call)
        if call.name in _NUMBERS:
            inner = self._argument(call, 0, Call)
            if "missing" in call.options:
                self._note_missing(call, self._column(inner).name)
            return self._number(inner)
        if call.name == "EMBEDDING":
            size = self._argument(call, 1, int, 8)
            if size < 1:
                raise self._refusal(call, f"a vector has no {size} numbers", "write EMBEDDING(column, 8)")
            return self._vectors(call, self.ids(self._argument(call, 0, Call)), size)
        if call.name == "INDICATOR":
            ids, count = self.ids(self._argument(call, 0, Call))
            return f'keras.layers.CategoryEncoding({count}, output_mode="multi_hot")({ids})'
        if call.name in _IDS:
            ids, count = self.ids(call)
            return f'keras.layers.CategoryEncoding({count}, output_mode="multi_hot")({ids})'
        raise self._refusal(call, f"{call.name} is no function of columns", suggest(call.name, FUNCTIONS))

    def ids(self, call: Call) -> tuple[str, int]:
        """The expression of int64 ids ``[records, n]``, and how many ids there are."""
        found = self._ids(call)
        if call.alias:
            self.groups[call.alias] = found
        return found

    def _ids(self, call: Call) -> tuple[str, int]:
        if not call.name and call.column in self.groups:
            return self.groups[call.column]
        self._check_arguments(call)
        if not call.name or call.name == "VOCABULARIZE":
            inner = call if not call.name else self._argument(call, 0, Call)
            column = self._column(inner)
            if not column.known_whole:
                raise self._refusal(
                    call, f"{column.name} has over {_LARGEST_VOCABULARY} values", f"write HASH({column.name}, 100000)"
                )
            words = column.vocabulary
            return self._layer("IndexLookup", f"{words!r}", self._input(inner, numeric=False)), len(words) + 1
        if call.name in ("HASH", "CATEGORY_HASH"):
            count = self._count(call, "hash_bucket_size", _BINS)
            return self._layer(
                "Hashing", str(count), self._input(self._argument(call, 0, Call), numeric=False)
            ), count
        if call.name in ("CATEGORY_ID", "IDENTITY"):
            count = self._count(call, "num_buckets", None)
            if count > _EXACT:
                raise self._refusal(call, f"{call.name} takes up to {_EXACT} ids: numbers are float32", "write HASH")
            return self._layer("RoundIdentity", str(count), self._input(self._argument(call, 0, Call))), count
        if call.name in ("BUCKET", "BUCKETIZE"):
            return self._buckets(call)
        if call.name == "CROSS":
            return self._crossed(call)
        if call.name == "CONCAT":
            parts = [self.ids(one) for one in call.args if isinstance(one, Call)]
            if len(parts) != len(call.args) or len(parts) < 2:
                raise self._refusal(call, "CONCAT takes ids of at least two columns", "write CONCAT(a, b)")
            offsets = [sum(count for _, count in parts[:at]) for at in range(len(parts))]
            together = f"[{', '.join(ids for ids, _ in parts)}]"
            return self._layer("ConcatenateWithOffset", f"{offsets}", together), sum(count for _, count in parts)
        fix = suggest(call.name, _IDS) if call.name not in _DENSE else f"{call.name} gives numbers, not ids"
        raise self._refusal(call, f"{call.name} gives no ids", fix)

    def _crossed(self, call: Call) -> tuple[str, int]:
        names = call.args[0] if call.args else None
        if not isinstance(names, list) or len(names) < 2 or not all(isinstance(one, str) for one in names):
            raise self._refusal(call, "CROSS takes a list of columns and a number", "write CROSS([a, b], 1000)")
        given = ", ".join(self._input(Call("", (), call.offset, column=one), numeric=False) for one in names)
        count = self._count(call, "hash_bucket_size", None)
        return f"keras.layers.HashedCrossing({count})([{given}])", count

    def _buckets(self, call: Call) -> tuple[str, int]:
        inner = self._argument(call, 0, Call)
        if inner.name in _NUMBERS:
            inner = self._argument(inner, 0, Call)
        bounds = call.args[1] if len(call.args) > 1 else call.options.get("boundaries")
        if isinstance(bounds, list) and bounds:
            numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in bounds)
            if not numbers or sorted(set(bounds)) != bounds:
                raise self._refusal(call, "boundaries are numbers that grow", "write BUCKET(column, [10, 20])")
        else:
            count = bounds if isinstance(bounds, int) else call.options.get("num_buckets")
            if not isinstance(count, int) or not 2 <= count <= _BINS:
                raise self._refusal(
                    call, "buckets need boundaries, or their number", "write BUCKET(column, [10, 20])"
                )
            column = self._column(inner)
            values = sorted(one for one in column.values.values() if isinstance(one, int | float))
            if not column.numeric or not values:
                raise self._refusal(call, f"{column.name} has no numbers", f"write HASH({column.name}, 100)")
            bounds = sorted({values[len(values) * at // count] for at in range(1, count)})
        return self._layer("Discretization", f"{bounds}", self._input(inner)), len(bounds) + 1

    def _number(self, call: Call) -> str:
        column = self._column(call)
        arguments = f"{column.mean:.6g}, {column.deviation:.6g}"
        return self._layer("Normalizer", arguments, self._input(call))

    def _note_missing(self, call: Call, name: str) -> None:
        value = call.options["missing"]
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self._refusal(call, f"{value!r} is no number that NULLs could count as", "write missing=0")
        if self.missing.setdefault(name, value) != value:
            raise self._refusal(call, f"NULLs of {name} count as {self.missing[name]} already", "give one number")

    def _vectors(self, call: Call, ids: tuple[str, int], size: int) -> str:
        return f"keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding({ids[1]}, {size})({ids[0]}))"

    def _layer(self, name: str, arguments: str, given: str) -> str:
        self.used.add(name)
        return f"{name}({arguments})({given})"

    def _input(self, call: Call, *, numeric: bool = True) -> str:
        column = self._column(call)
        if numeric and not column.numeric:
            raise self._refusal(
                call,
                f"{column.name} holds text, such as {min(column.vocabulary)!r}",
                f"write HASH({column.name}, 100)",
            )
        if not column.name.isidentifier():
            raise self._refusal(call, f"{column.name!r} is no name of an input", "select it AS a plain name")
        if column.nulls and numeric and column.name not in self.missing:
            fix = f"select COALESCE({column.name}, 0), or write NUMERIC({column.name}, missing=0) before"
            raise self._refusal(call, f"{column.name} has {column.nulls} NULLs", fix)
        name = column.name if self.inputs.setdefault(column.name, numeric) == numeric else column.name + _AS_TEXT
        self.inputs.setdefault(name, numeric)
        return f"inputs[{name!r}]"

    def _column(self, call: Call) -> Column:
        if call.name:
            raise self._refusal(call, f"{call.name} stands where a column is needed", "name a column of the SELECT")
        if call.column == self.statement.label:
            raise self._refusal(call, f"{call.column} is the label", "leave it out of COLUMN")
        if call.column not in self.columns:
            known = [name for name in self.columns if name != self.statement.label]
            raise self._refusal(call, f"the SELECT has no column {call.column}", suggest(call.column, known))
        return self.columns[call.column]

    def _argument(self, call: Call, at: int, kind: type, default: Any = None) -> Any:
        found = call.args[at] if at < len(call.args) else default
        if not isinstance(found, kind) or isinstance(found, bool):
            what = "a column" if kind is Call else "a whole number"
            raise self._refusal(call, f"argument {at + 1} of {call.name} is no {what[2:]}", f"give {what}")
        return found

    def _check_arguments(self, call: Call) -> None:
        """Refuses arguments that nothing would be done with."""
        most, named = _TAKES.get(call.name, (0, ()))
        given = len(call.args) + len({*call.options} - {"missing"})
        if call.name in _TAKES and (given > most or not {*call.options} <= {*named}):
            by_name = f", by name only {' or '.join(named)}" if named else ", none by name"
            raise self._refusal(call, f"{call.name} takes up to {most} arguments{by_name}", "leave the others out")

    def _count(self, call: Call, option: str, default: int | None) -> int:
        count = call.args[1] if len(call.args) > 1 else call.options.get(option, default)
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 2**31:
            raise self._refusal(call, f"{call.name} needs a number of ids", f"write {call.name}(column, 100)")
        return count

    def _refusal(self, call: Call, message: str, fix: str) -> Any:
        return refusal(self.statement.text, call.offset, message, fix)


def write_module(
    statement: Statement, columns: Mapping[str, Column], options: Mapping[str, Any]
) -> tuple[str, list[str], list[str]]:
    """The text of a model module, the columns that its ``feed`` reads, in order, the label's last, and its classes.

    Args:
        statement: one to train.
        columns: what is known of the rows' columns.
        options: those of ``options_of``.

    Raises:
        InvalidInputError: a description fits no column, or the label cannot be learned.
    """
    family, classifies = MODELS[statement.subject]
    writer = _Writer(statement, columns)
    label = statement.label
    if label not in columns:
        raise _of_label(statement, f"the SELECT has no column {label}", suggest(label, list(columns)))
    classes = _classes(statement, columns[label], options) if classifies else []
    if not classifies and (not columns[label].numeric or columns[label].nulls):
        raise _of_label(statement, f"{label} holds something else than numbers", "train a classifier")
    given = statement.columns or {"": tuple(Call("", (), 0, column=one) for one in columns if one != label)}
    parts: dict[str, list[str]] = {"deep": [], "wide": []}
    for target, calls in given.items():
        if target not in _PARTS:
            fix = suggest(target, list(_PARTS)[1:])
            raise refusal(statement.text, calls[0].offset, f"the model has no input {target}", fix)
        if target and _PARTS[target][0] not in family.parts:
            raise refusal(statement.text, calls[0].offset, f"{statement.subject} has no input {target}",
                          "write COLUMN without FOR, or train a model with both")  # fmt: skip
        for call in calls:
            feature = writer.feature(call)
            for part in _PARTS[target]:
                parts[part].append(feature)
    parts = {part: parts[part] for part in family.parts}
    if not all(parts.values()):
        raise refusal(statement.text, statement.offset, f"{statement.subject} has a part without columns",
                      "write COLUMN without FOR, or one for each part")  # fmt: skip
    if len(parts.get("deep", ())) < family.fewest and "deep" in parts:
        raise refusal(statement.text, statement.offset, f"{statement.subject} takes products of columns",
                      f"name {family.fewest} or more, or train a DNN")  # fmt: skip
    names = [*dict.fromkeys(_column_of(one) for one in writer.inputs)]
    return _text(statement, writer, parts, classes, options), [*names, label], classes


def options_of(model: str) -> tuple[str, ...]:
    """The options of a model that WITH may set."""
    family, classifies = MODELS[model]
    return ("learning_rate", *family.options, *("n_classes",) * classifies)


def _column_of(name: str) -> str:
    """The column of an input."""
    return name.removesuffix(_AS_TEXT)


def _of_label(statement: Statement, message: str, fix: str) -> Any:
    return refusal(statement.text, statement.text.upper().rfind("LABEL"), message, fix)


def _classes(statement: Statement, column: Column, options: Mapping[str, Any]) -> list[str]:
    if column.nulls:
        raise _of_label(statement, f"{column.name} has {column.nulls} NULLs", "select rows WHERE it is NOT NULL")
    if len(column.values) < 2:
        raise _of_label(
            statement, f"all rows have the label {column.vocabulary[0]!r}", "select rows with other labels"
        )
    if len(column.values) > _BINS:
        raise _of_label(statement, f"{column.name} has over {_BINS} classes", "train a regressor")
    asked = options.get("n_classes")
    if asked is not None and asked != len(column.values):
        raise _of_label(
            statement, f"{column.name} has {len(column.values)} classes, not {asked}", "leave n_classes out"
        )
    return column.vocabulary


_MODULE = '''"""{model}, made from a statement; change it as you like."""

import keras
import tensorflow as tf
{imports}
COLUMNS = {columns!r}
LABEL = {label!r}
{classes}

def concatenate(features):
    features = [keras.ops.cast(one, "float32") for one in features]
    return features[0] if len(features) == 1 else keras.layers.Concatenate()(features)
{functions}

def forward():
    inputs = {{
{inputs}
    }}
{body}
    return keras.Model(inputs, {outputs})


def loss(labels, predictions):
    return {loss}


def optimizer(lr={rate!r}):
    return keras.optimizers.Adam(lr)


def eval_metrics_fn():
    return {metrics}


def read(row, mode):
    column = {{name: row[at] for at, name in enumerate(COLUMNS)}}
    features = {{
{reads}
    }}
    if mode == "prediction":
        return features
    column[LABEL] = row[len(COLUMNS)]
    return features, {target}


def feed(dataset, mode, metadata):
    return dataset.map(lambda row: read(row, mode))
'''
_CLASSIFIER = {
    "target": "tf.argmax(tf.equal(column[LABEL], CLASSES))",
    "loss": "tf.reduce_mean(\n        "
    "tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), predictions)\n    )",
    "metrics": '{"accuracy": keras.metrics.SparseCategoricalAccuracy()}',
}
_TWO_CLASSES = {
    **_CLASSIFIER,
    "metrics": '{"accuracy": keras.metrics.SparseCategoricalAccuracy(), "auc": AreaOfTwo(from_logits=True)}',
}
_AREA = '''

class AreaOfTwo(keras.metrics.AUC):
    """Area under the curve by how much more likely the second class is than the first."""

    def update_state(self, labels, predictions, sample_weight=None):
        return super().update_state(labels, predictions[:, 1:] - predictions[:, :1], sample_weight)
'''
_REGRESSOR = {
    "target": "tf.strings.to_number(column[LABEL])[tf.newaxis]",
    "loss": "tf.reduce_mean(tf.square(tf.reshape(labels, [-1, 1]) - predictions))",
    "metrics": '{"mean_absolute_error": keras.metrics.MeanAbsoluteError()}',
}


def _text(
    statement: Statement,
    writer: _Writer,
    parts: Mapping[str, Sequence[str]],
    classes: list[str],
    options: Mapping[str, Any],
) -> str:
    inputs, reads, body = [], [], []
    for name, numeric in writer.inputs.items():
        kind = "" if numeric else ', dtype="string"'
        inputs.append(f"        {name!r}: keras.Input((1,), name={name!r}{kind}),")
        value = f"column[{_column_of(name)!r}]"
        if numeric and name in writer.missing:
            value = f"tf.where(tf.equal({value}, ''), {str(writer.missing[name])!r}, {value})"
        read = f"tf.strings.to_number({value})" if numeric else value
        reads.append(f"        {name!r}: {read}[tf.newaxis],")
    family, _ = MODELS[statement.subject]
    chosen = {**family.options, **options}
    for part, features in parts.items():
        body += ["    features = [", *(f"        {one}," for one in features), "    ]"]
        body.append(f"    {part} = concatenate(features)")
        if part == "deep":
            body += family.before.format(**chosen).splitlines()
            body.append(f"    for units in {chosen['hidden_units']!r}:")
            body.append('        deep = keras.layers.Dense(units, activation="relu")(deep)')
    layers = ", ".join(sorted(writer.used))
    return _MODULE.format(
        model=statement.subject,
        label=statement.label,
        imports=f"\nfrom elasticdl_preprocessing.layers import {layers}\n" if layers else "",
        columns=[*dict.fromkeys(_column_of(one) for one in writer.inputs)],
        classes=f"CLASSES = {classes!r}\n" if classes else "",
        inputs="\n".join(inputs),
        body="\n".join(body),
        functions=family.functions + (_AREA if len(classes) == 2 else ""),
        outputs=" + ".join(f"keras.layers.Dense({len(classes) or 1})({part})" for part in family.summed or parts),
        rate=options.get("learning_rate", 0.001),
        reads="\n".join(reads),
        **(_TWO_CLASSES if len(classes) == 2 else _CLASSIFIER if classes else _REGRESSOR),
    )
