"""Writes trained models so that plain Keras or TensorFlow loads them, in a process without ElasticDL.

Keras embeddings come out as the layers that the user wrote, with their whole table. A table whose id space is open
is exported as ids and vectors beside the model, and inside the SavedModel as a lookup table; the ``.keras`` format
cannot hold one, so it is left out for such models, and ``README.json`` says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray
from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef

from elasticdl.layers import lookup
from elasticdl_core.errors import UserCodeError
from elasticdl_core.model import TableSpec
from elasticdl_runtime import durable
from elasticdl_runtime.initializers import whole_matrix
from elasticdl_worker.parameters import Rows
from elasticdl_worker.trainers.exported_files import README, wanted_formats, write_note, write_tables
from elasticdl_worker.trainers.output_files import OutputFile, describe_file
from elasticdl_worker.trainers.tensorflow.export.initial_rows import InitialRows
from elasticdl_worker.trainers.tensorflow.framework import is_legacy, keras, keras_version, raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel, call_model
from elasticdl_worker.trainers.tensorflow.types import Features, KerasModel, Layer, NestedSpec, Predictions, Tensor

_log = structlog.get_logger(__name__)
_FORMATS = ("keras", "saved_model")
_TRIED_BYTES = 64 << 20
"""Of weights that are written on trial."""


def check_exportable(model: PreparedModel, formats: Sequence[str]) -> None:
    """Refuses before training what could not be written after it: writes the untrained model, and throws it away.

    Of one with many weights only the description is tried, for writing them takes time.

    Raises:
        UserCodeError: the model cannot be written in one of the formats.
    """
    wanted = wanted_formats(formats, _FORMATS)
    closed = all(isinstance(layer, keras.layers.Embedding) for layer in model.registry.layers.values())
    if "keras" in wanted and closed:
        _refuse_undescribed(model.keras_model)
    if sum(weight.nbytes for weight in model.values().values()) > _TRIED_BYTES:
        return
    with tempfile.TemporaryDirectory(prefix="elasticdl-export-") as folder:
        if "keras" in wanted and not model.tables:
            with _trying("keras", "a .keras file"):
                _save_keras(model.keras_model, Path(folder) / "model.keras")
        if "saved_model" in wanted:
            none = np.zeros(0, np.int64)
            empty = {name: (none, np.zeros((0, spec.dim), np.float32)) for name, spec in model.tables.items()}
            with _trying("saved_model", "a SavedModel"):
                _saved_model(model, Path(folder) / "saved_model", empty, model.tables)


@contextlib.contextmanager
def _trying(name: str, what: str) -> Iterator[None]:
    """Turns what cannot be written into a refusal."""
    try:
        yield
    except (OSError, tf.errors.ResourceExhaustedError) as error:  # the disk's trouble: the export goes elsewhere
        _log.warning("the export was not tried", reason=str(error)[:300])
    except Exception as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:300]
        raise UserCodeError(
            f"the model cannot be written as {what}: {type(error).__name__}: {said}",
            fix=f"change what cannot be written, or leave {name} out of --export_formats",
        ) from error


def _refuse_undescribed(whole: KerasModel) -> None:
    if _describes(whole):
        return
    # What contains a layer that has no description has none either: the innermost one is named.
    layers = [layer for layer in whole._flatten_layers() if layer is not whole]
    part = next((layer for layer in reversed(layers) if not _describes(layer)), whole)
    kind, what = type(part).__name__, "the model" if part is whole else "the layer"
    raise UserCodeError(
        f"{what} {part.name} cannot be written to a .keras file: {kind} has no get_config with the arguments of its "
        "constructor",
        fix=f"write {kind}.get_config, or leave keras out of --export_formats",
    )


def _describes(part: Layer) -> bool:
    """Whether Keras can describe a model or a layer as JSON, which is the first thing in a ``.keras`` file."""
    serialize = keras.utils.serialize_keras_object
    try:
        json.dumps(serialize(part))
    except Exception:
        return False
    return True


def fill_embeddings(
    model: PreparedModel, tables: Mapping[str, Rows], specs: Mapping[str, TableSpec]
) -> dict[str, Rows]:
    """Copies rows into the model's own embedding layers; ids without a row get the one that they begin with.

    Args:
        model: a model built with all Keras embeddings in the graph.
        tables: ids and rows of each table that was on parameter servers.
        specs: these tables.

    Returns:
        The tables that have no Keras layer: those of ``elasticdl.layers.Embedding``.
    """
    rest = dict(tables)
    for name, layer in model.registry.in_graph.items():
        if name not in rest:
            continue
        ids, rows = rest.pop(name)
        layer.set_weights([whole_matrix(specs[name], ids, rows, len(layer.get_weights()[0]))])
    return rest


def export_model(
    model: PreparedModel,
    output: Path,
    formats: Sequence[str],
    open_tables: Mapping[str, Rows],
    specs: Mapping[str, TableSpec],
) -> list[OutputFile]:
    """Writes the model into a directory, replacing what an earlier export left there.

    Args:
        model: the model with its final values.
        output: the directory; made if missing.
        formats: ``keras``, ``saved_model`` or ``auto``, which is both.
        open_tables: ids and rows of tables of ``elasticdl.layers.Embedding`` layers.
        specs: these tables.

    Returns:
        The files: ``{"name", "path", "sha256", "size"}``; names relative to ``output``, paths absolute.
    """
    durable.make_folder(output)
    formats = wanted_formats(formats, _FORMATS)
    written: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix=".export-", dir=output) as folder:
        staging = Path(folder)
        if "keras" in formats and model.tables:
            written["keras"] = "left out: the model has embeddings without a bound on their ids"
        elif "keras" in formats:
            _save_keras(model.keras_model, staging / "model.keras")
            written["keras"] = (
                f"model.keras: keras.models.load_model('model.keras'{_needed_to_load(model.keras_model)})"
            )
        if "saved_model" in formats:
            _saved_model(model, staging / "saved_model", open_tables, specs)
            _name_by_content(staging / "saved_model")
            written["saved_model"] = "saved_model: m = tf.saved_model.load('saved_model'); m.serve(features)"
        tables = write_tables(staging, open_tables, specs)
        write_note(staging, {"keras": keras_version(), "tensorflow": tf.__version__}, written, tables)
        for item in sorted(staging.iterdir()):
            durable.swap(item, output / item.name)
    names = ["model.keras", "saved_model", README, *(t["file"] for t in tables.values())]
    return [entry for name in names for entry in _listed(output, output / name)]


def _save_keras(whole: KerasModel, path: Path) -> None:
    """Writes a ``.keras`` file.

    Beside the thread that imported it, Keras 2.21 writes HDF5 under that name in each thread that has saved or loaded
    a model before (``saving_lib`` restores its thread-local flag to False, which was unset), so it gets a new thread.
    """
    if is_legacy():
        with ThreadPoolExecutor(1) as fresh:
            fresh.submit(whole.save, path).result()
    else:
        whole.save(path)


def _needed_to_load(whole: KerasModel) -> str:
    """The arguments beside the path with which a ``.keras`` file is loaded in another process."""
    layers = list(whole._flatten_layers())
    own = {
        type(one).__name__ for one in layers if type(one).__module__.partition(".")[0] not in ("keras", "tf_keras")
    }
    objects = ", ".join(f"'{name}': {name}" for name in sorted(own))
    unsafe = any(isinstance(one, keras.layers.Lambda) for one in layers)
    return (f", custom_objects={{{objects}}}" if own else "") + (", safe_mode=False" if unsafe else "")


def _listed(root: Path, path: Path) -> list[OutputFile]:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path] if path.exists() else []
    return [describe_file(file, str(file.relative_to(root))) for file in files]


def _saved_model(
    model: PreparedModel, path: Path, open_tables: Mapping[str, Rows], specs: Mapping[str, TableSpec]
) -> None:
    tables = {name: _OpenTable(ids, rows, specs[name]) for name, (ids, rows) in open_tables.items()}

    def serve(features: Features) -> Predictions:
        return _call(model, features, tables)

    spec = model.features_spec
    dense = all(isinstance(one, tf.TensorSpec) for one in tf.nest.flatten(spec))
    if is_legacy() or not dense:
        holder = tf.Module()
        holder.model, holder.tables = model.keras_model, list(tables.values())
        holder.serve = tf.function(serve, input_signature=[spec], autograph=False)
        # A signature takes tensors alone, and an ExportArchive makes one of each endpoint.
        signatures = {"serving_default": signature_of(serve, spec)} if dense else {}
        tf.saved_model.save(holder, str(path), signatures=signatures)
        return
    archive = _ordered_archive(model)
    archive.track(model.keras_model)
    for number, table in enumerate(tables.values()):
        setattr(archive, f"open_table_{number}", table)
        archive.track(table)
    archive.add_endpoint("serve", serve, input_signature=[spec])
    archive.write_out(str(path), verbose=False)


def _ordered_archive(model: PreparedModel) -> Any:
    """Keras' archive, with variables in the model's order: Keras leaves it to where they lie in memory."""
    places = {id(raw_variable(variable)): place for place, variable in enumerate(model.keras_model.variables)}
    archive = (
        keras.export.ExportArchive()
    )  # makes an object of another class, so that a subclass would be passed over
    track = archive._filter_and_track_resources

    def track_in_order() -> None:
        track()
        kept = archive._tf_trackable
        kept._all_variables = sorted(kept._all_variables, key=lambda one: places.get(id(one), len(places)))

    archive._filter_and_track_resources = track_in_order
    return archive


def _name_by_content(folder: Path) -> None:
    """Gives a SavedModel a name that follows from its bytes, where TensorFlow draws one."""
    path = folder / "fingerprint.pb"
    fingerprint = FingerprintDef.FromString(path.read_bytes())
    sums = folder / "variables" / "variables.index"  # of the values, each with its checksum
    content = (folder / "saved_model.pb").read_bytes() + (sums.read_bytes() if sums.exists() else b"")
    fingerprint.uuid = str(int.from_bytes(hashlib.sha256(content).digest()[:16], "big"))
    path.write_bytes(fingerprint.SerializeToString(deterministic=True))


def signature_of(serve: Callable[[Features], Predictions], spec: NestedSpec) -> object:
    """A signature whose arguments are the named features: ``capital_gain`` is that of ``capital-gain``."""
    if not isinstance(spec, Mapping):
        return tf.function(serve, input_signature=[spec], autograph=False)
    words = {re.sub(r"\W", "_", re.sub(r"^(?=\d)", "feature_", str(name))): name for name in spec}
    if len(words) < len(spec):  # of `a-b` and `a_b`
        words = {f"feature_{place}": name for place, name in enumerate(spec)}

    def by_name(**features: Features) -> Mapping[str, object]:
        outputs = serve({words[word]: value for word, value in features.items()})
        return outputs if isinstance(outputs, dict) else {"output_0": outputs}

    named = {word: spec[name] for word, name in words.items()}
    return tf.function(by_name, autograph=False).get_concrete_function(**named)


def _call(model: PreparedModel, features: Features, tables: Mapping[str, _OpenTable]) -> Predictions:
    if not tables:
        return call_model(model.keras_model, features, training=False)
    with lookup.looking_up(_ExportScope(tables)):
        return call_model(model.keras_model, features, training=False)


class _OpenTable(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
    """Ids and vectors inside a SavedModel; an id without a row reads as it does in training: as its first value."""

    def __init__(self, ids: NDArray[np.int64], rows: NDArray[np.float32], spec: TableSpec) -> None:
        super().__init__()
        self._first = InitialRows(spec)
        if not len(ids):  # TensorFlow's table takes no fewer than one key: this one is no id
            ids, rows = np.array([np.iinfo(np.int64).min]), np.zeros((1, spec.dim), np.float32)
        places = np.arange(1, len(ids) + 1, dtype=np.int64)
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant(ids, tf.int64), tf.constant(places))
        self.index = tf.lookup.StaticHashTable(pairs, default_value=0)
        self.rows = tf.Variable(np.concatenate([np.zeros((1, rows.shape[1]), np.float32), rows]), trainable=False)

    def find(self, ids: Tensor) -> Tensor:
        """Vectors of ids."""
        places = self.index.lookup(ids)
        return tf.where(places[..., tf.newaxis] > 0, tf.gather(self.rows, places), self._first(ids))


class _ExportScope:
    def __init__(self, tables: Mapping[str, _OpenTable]) -> None:
        self._tables = tables

    def lookup(self, table: str, ids: Tensor, dim: int) -> Tensor:
        """Vectors from the table inside the SavedModel."""
        rows = self._tables[table].find(ids)
        rows.set_shape(ids.shape.concatenate([dim]))
        return rows
