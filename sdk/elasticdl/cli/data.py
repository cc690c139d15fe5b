"""``elasticdl data``: look at data, convert it, generate small data sets."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli import formats
from elasticdl.cli.output import json_text, write_line
from elasticdl_core.errors import ElasticDLError

if TYPE_CHECKING:
    from elasticdl.data.generate import Generated
    from elasticdl.data.inspection import DataReport

app = typer.Typer(no_args_is_help=True, help="Look at data, convert it, generate small data sets.")
generate_app = typer.Typer(no_args_is_help=True, help="Generate small data sets for examples and tests.")
app.add_typer(generate_app, name="generate")


class Format(StrEnum):
    """Formats that can be written."""

    recordio = "recordio"
    tfrecord = "tfrecord"
    csv = "csv"


class Target(StrEnum):
    """Formats that data can be converted to."""

    recordio = "recordio"
    tfrecord = "tfrecord"
    csv = "csv"
    parquet = "parquet"
    arrow = "arrow"


class Compression(StrEnum):
    """Compressors of RecordIO chunks."""

    none = "none"
    snappy = "snappy"
    gzip = "gzip"


Params = Annotated[
    str,
    typer.Option(
        "--data_reader_params",
        "--data-reader-params",
        help="Parameters of the reader, e.g. 'sep=\";\";with_header=true'.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of the files.")]
CompressorOption = Annotated[Compression, typer.Option("--compressor", help="Compressor of RecordIO chunks.")]
HeldOut = Annotated[float, typer.Option("--held-out", min=0, max=0.99, help="Share for validation.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of the order and of random values.")]
PerFile = Annotated[int | None, typer.Option("--records-per-file", min=1, help="Write parts of N records.")]


class ProgressLine:
    """Shows the records done on stderr: on a terminal one line that is updated in place, else a new line every 10 s.

    Args:
        verb: what is being done.
        quiet_s: nothing is shown before this many seconds, nor more often.
    """

    def __init__(self, verb: str, quiet_s: float = 0.2) -> None:
        self._verb = verb
        self._terminal = sys.stderr.isatty()
        self._every = quiet_s if self._terminal else 10.0
        self._started = self._last = time.monotonic()
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        """Updates the line.

        Args:
            done: records done so far.
            total: records known so far.
        """
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last, self._shown = now, True
        rate = done / max(now - self._started, 1e-9)
        text = f"{self._verb} {done:,} of {total:,} records, {rate:,.0f} records/s"
        sys.stderr.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Removes the line."""
        if self._shown and self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextlib.contextmanager
def _progress(verb: str) -> Iterator[ProgressLine]:
    """Shows progress; an ``ElasticDLError`` ends the command with its message and exit code 1."""
    progress = ProgressLine(verb)
    try:
        yield progress
    except ElasticDLError as error:
        progress.close()
        write_line(f"error: {error}", to=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        progress.close()


@app.command("inspect")
def inspect_command(
    path: Annotated[str, typer.Argument(help="A file, directory, glob, comma-separated list or URL.")],
    records: Annotated[int, typer.Option("--records", min=0, help="Number of first records to show.")] = 3,
    verify: Annotated[bool, typer.Option("--verify", help="Read every record and check it.")] = False,
    output: formats.FormatOption = None,
    as_json: formats.JsonOption = False,
    data_reader_params: Params = "",
) -> None:
    """Say what some data is: kind, files, records, bytes, first records."""
    from elasticdl.data.inspection import inspect_data

    chosen = formats.choose_format(output, as_json)
    with _progress("verified") as progress:
        report = inspect_data(
            path, reader_params=data_reader_params, records=records, verify=verify, on_progress=progress
        )
    if chosen.of_data:
        formats.print_data(report.as_dict(), chosen)
    else:
        _print_report(report)


def _print_report(report: DataReport) -> None:
    lines = [
        f"kind      {report.kind}",
        f"files     {len(report.files):,}",
        f"records   {report.records:,}",
        f"bytes     {report.bytes:,}",
    ]
    if report.compressors:
        chunks = ", ".join(f"{count:,} {name}" for name, count in sorted(report.compressors.items()))
        lines.append(f"chunks    {chunks}")
    if report.columns:
        lines.append(f"columns   {', '.join(f'{name} ({kind})' for name, kind in report.columns.items())}")
    if report.classes:
        lines.append(f"classes   {', '.join(f'{name} ({count:,})' for name, count in report.classes.items())}")
    if report.with_header is not None:
        lines.append(f"header    {'yes' if report.with_header else 'no'}, separator {report.separator!r}")
    if report.empty:
        cells = ", ".join(f"{count:,} in {name}" for name, count in report.empty.items())
        lines.append(f"empty     {cells} (cells of {report.looked_at:,} records)")
    if report.features:
        lines.append(f"features  {', '.join(f'{name}: {kind}' for name, kind in report.features.items())}")
    if report.verified is not None:
        skipped = f", {report.skipped:,} corrupt" if report.skipped else ""
        lines.append(f"verified  {report.verified:,} records are sound{skipped}")
    lines.extend(f"damaged   {path}: {reason}" for path, reason in report.damaged.items())
    for number, record in enumerate(report.first_records):
        lines.append(f"record {number}  {json_text(record)}")
    for item in report.files[:20]:
        chunks = f" in {item.chunks:,} chunks" if item.chunks else ""
        lines.append(f"file      {item.path}: {item.records:,} records{chunks}, {item.bytes:,} bytes")
    if len(report.files) > 20:
        lines.append(f"          and {len(report.files) - 20:,} more")
    write_line("\n".join(lines))


@app.command("validate")
def validate_command(
    path: Annotated[str, typer.Argument(help="A file, directory, glob, comma-separated list or URL.")],
    most: Annotated[int, typer.Option("--most", min=1, help="End when so many problems were found.")] = 20,
    output: formats.FormatOption = None,
    as_json: formats.JsonOption = False,
    data_reader_params: Params = "",
    model_zoo: Annotated[
        str,
        typer.Option(
            "--model_zoo", "--model-zoo", help="Give the records to the feed of a module in this directory instead."
        ),
    ] = "",
    model_def: Annotated[
        str, typer.Option("--model_def", "--model-def", help="With --model_zoo: file.object of the model function.")
    ] = "",
) -> None:
    """Read all records as a job does, and list those that are not as the first ones; exit code 1 if there are any.

    With --model_zoo and --model_def: those that the module's own feed cannot take.
    """
    from elasticdl.data.validation import validate_data

    chosen = formats.choose_format(output, as_json)
    with _progress("validated") as progress:
        if model_zoo or model_def:
            from elasticdl.cli.local import run_feed
            from elasticdl.data.params import parse_reader_params
            from elasticdl.submission import prepare

            given = {"training_data": path, "data_reader_params": parse_reader_params(data_reader_params)}
            mapping = {"model_zoo": model_zoo, "model_def": model_def, **given}
            found = run_feed(prepare(mapping, local=True), most, progress)
        else:
            found = validate_data(path, reader_params=data_reader_params, most_problems=most, on_progress=progress)
    if chosen.of_data:
        formats.print_data(found.as_dict(), chosen)
    else:
        lines = [line for one in found.problems for line in (f"problem   {one.message}", f"  fix: {one.fix}")]
        skipped = f", {found.skipped:,} corrupt ones passed over" if found.skipped else ""
        more = "" if found.complete else ", and there may be more (--most)"
        lines.append(
            f"{found.kind}: {found.checked:,} of {found.records:,} records could be read{skipped}; "
            f"{len(found.problems):,} problems{more}"
        )
        write_line("\n".join(lines))
    if found.problems:
        raise typer.Exit(1)


@app.command("convert")
def convert_command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The data to read.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="A file, or a folder for parts.")],
    to: Annotated[Target, typer.Option("--to", help="Format to write.")],
    compressor: CompressorOption = Compression.snappy,
    records_per_file: PerFile = None,
    records_per_chunk: Annotated[
        int | None, typer.Option("--records-per-chunk", min=1, help="At most N records in a RecordIO chunk.")
    ] = None,
    types: Annotated[
        str, typer.Option("--types", help="Types of CSV columns, e.g. 'price=float,id=int64,name=bytes'.")
    ] = "",
    force: Force = False,
    output: formats.FormatOption = None,
    as_json: formats.JsonOption = False,
    data_reader_params: Params = "",
) -> None:
    """Convert between RecordIO, TFRecord, CSV, Parquet and Arrow; rows become tf.train.Example records and back."""
    from elasticdl.data.convert import convert

    chosen = formats.choose_format(output, as_json)
    with _progress("converted") as progress:
        done = convert(
            source,
            target,
            to.value,
            reader_params=data_reader_params,
            types=_parse_types(types),
            compressor=compressor.value,
            records_per_file=records_per_file,
            records_per_chunk=records_per_chunk,
            force=force,
            on_progress=progress,
        )
    if chosen.of_data:
        result = {"files": [str(file) for file in done.files], "records": done.records, "bytes": done.bytes}
        formats.print_data({**result, "skipped": done.skipped, "types": done.types}, chosen)
        return
    skipped = f", {done.skipped:,} corrupt records skipped" if done.skipped else ""
    write_line(f"{target}: {done.records:,} records in {len(done.files):,} files, {done.bytes:,} bytes{skipped}")


def _parse_types(text: str) -> dict[str, str]:
    from elasticdl.data.errors import DataError

    types = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, separator, kind = pair.rpartition("=")
        if not separator or not name:
            raise DataError(
                f"--types: {pair!r} is not column=type", fix="write e.g. --types 'price=float,name=bytes'"
            )
        types[name.strip()] = kind.strip()
    return types


@generate_app.command("digits")
def digits_command(
    target: Annotated[Path, typer.Argument(metavar="DST", help="Folder for train/ and validation/.")],
    format: FormatOption = Format.recordio,
    held_out: HeldOut = 0.2,
    compressor: CompressorOption = Compression.none,
    records_per_file: Annotated[int, typer.Option("--records-per-file", min=1)] = 512,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """1797 handwritten digits of 8x8 pixels, from scikit-learn."""
    from elasticdl.data.generate import write_digits

    settings = _settings(format, held_out, compressor, records_per_file, seed, force)
    with _progress("generated"):
        made = write_digits(target, **settings)
    _print_generated(made)


@generate_app.command("mnist")
def mnist_command(
    target: Annotated[Path, typer.Argument(metavar="DST", help="Folder for train/ and validation/.")],
    format: FormatOption = Format.recordio,
    held_out: HeldOut = 0.2,
    compressor: CompressorOption = Compression.none,
    records_per_file: Annotated[int, typer.Option("--records-per-file", min=1)] = 512,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """The same digits in the form of MNIST: 28x28 pixels, 0 to 255."""
    from elasticdl.data.generate import write_mnist

    settings = _settings(format, held_out, compressor, records_per_file, seed, force)
    with _progress("generated"):
        made = write_mnist(target, **settings)
    _print_generated(made)


def _settings(
    format: Format, held_out: float, compressor: Compression, records_per_file: int, seed: int, force: bool
) -> dict[str, Any]:
    """Settings common to all data sets that are written in parts."""
    return {
        "format": format.value,
        "held_out": held_out,
        "compressor": compressor.value,
        "records_per_file": records_per_file,
        "seed": seed,
        "force": force,
    }


@generate_app.command("iris")
def iris_command(
    target: Annotated[Path, typer.Argument(metavar="DST", help="A .csv file for all, or a folder for both parts.")],
    held_out: HeldOut = 0.2,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """150 iris flowers as CSV: four measurements and the class."""
    from elasticdl.data.generate import write_iris, write_iris_csv

    with _progress("generated"):
        if target.suffix == ".csv":
            records = write_iris_csv(target, seed=seed, force=force)
            write_line(f"{target}: {records:,} records")
        else:
            _print_generated(write_iris(target, held_out=held_out, seed=seed, force=force))


@generate_app.command("textures")
def textures_command(
    target: Annotated[Path, typer.Argument(metavar="DST", help="Folder for train/ and validation/.")],
    records: Annotated[int, typer.Option("--records", min=1, max=10**9, help="Number of images in all.")] = 10_000,
    size: Annotated[int, typer.Option("--size", min=8, max=512, help="Width and height in pixels.")] = 32,
    format: FormatOption = Format.recordio,
    held_out: HeldOut = 0.2,
    compressor: CompressorOption = Compression.none,
    records_per_file: Annotated[int, typer.Option("--records-per-file", min=1)] = 2048,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Drawn colour images of ten kinds of texture, in the form of CIFAR-10."""
    from elasticdl.data.generate import write_textures

    settings = _settings(format, held_out, compressor, records_per_file, seed, force)
    with _progress("generated") as progress:
        made = write_textures(target, records, size=size, on_progress=progress, **settings)
    _print_generated(made)


@generate_app.command("clicks")
def clicks_command(
    target: Annotated[Path, typer.Argument(metavar="DST", help="Folder for train/, validation/ and truth.json.")],
    records: Annotated[int, typer.Option("--records", min=1, max=10**12, help="Number of records in all.")] = 200_000,
    format: FormatOption = Format.recordio,
    num_fields: Annotated[int, typer.Option("--num-fields", min=1, max=10_000, help="Ids in a record.")] = 10,
    ids: Annotated[
        int, typer.Option("--ids", min=1, max=10**9, help="Number of ids of all fields together.")
    ] = 1_000_000,
    zipf: Annotated[float, typer.Option("--zipf", min=0, max=100, help="Skew of the frequencies of ids.")] = 1.1,
    held_out: HeldOut = 0.1,
    compressor: CompressorOption = Compression.none,
    records_per_file: Annotated[int, typer.Option("--records-per-file", min=1)] = 100_000,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Clicks for DeepFM, drawn from a known model: the best possible AUC is in truth.json."""
    from elasticdl.data.generate import write_clicks

    settings = _settings(format, held_out, compressor, records_per_file, seed, force)
    with _progress("generated") as progress:
        made = write_clicks(
            target, records, num_fields=num_fields, ids=ids, zipf=zipf, on_progress=progress, **settings
        )
    _print_generated(made)
    if made.truth["auc_ceiling"] is not None:
        write_line(f"best possible AUC on the validation data: {made.truth['auc_ceiling']:.4f}")


def _print_generated(made: Generated) -> None:
    write_line(f"training_data    {made.train}: {made.train_records:,} records")
    if made.validation is not None:
        write_line(f"validation_data  {made.validation}: {made.validation_records:,} records")


if __name__ == "__main__":
    app()
