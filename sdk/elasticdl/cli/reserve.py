"""``elasticdl reserve``: slots for processes that are not the cluster's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli.formats import FormatOption, JsonOption, OutputFormat, choose_format, print_data
from elasticdl.cli.output import EXIT_UNAVAILABLE, print_table, write_line
from elasticdl_core.errors import InvalidInputError

if TYPE_CHECKING:
    from elasticdl.client import Client

POLL_S = 0.2


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command(
        "reserve",
        rich_help_panel="Cluster",
        epilog="""Examples:

    elasticdl reserve web-shop --slots 3 --wait 60

    elasticdl reserve

    elasticdl reserve web-shop --release""",
    )(reserve)


def reserve(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The service that takes the slots; without it all are listed.")
    ] = "",
    slots: Annotated[int | None, typer.Option("--slots", min=0, help="Number of slots.", show_default=False)] = None,
    grace: Annotated[
        float | None,
        typer.Option("--grace", help="Seconds that workers have to leave; then they are ended.", show_default="30"),
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="Give the slots back to jobs.")] = False,
    wait: Annotated[
        float, typer.Option("--wait", help="Wait at most this many seconds until all are granted.")
    ] = 0.0,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take worker slots from jobs for processes that are not the cluster's, such as a service; or list what is taken.

    Reservations go before all jobs: workers above what is left drain, and are ended if that takes longer than the
    grace. Exits with 4 when --wait ends before all slots are granted.
    """
    from elasticdl.client import Client

    chosen = choose_format(output, as_json)
    _check(name, slots, release, given=grace is not None or wait > 0)
    with Client() as client:
        if not name:
            _list(client.reservations(), chosen)
        elif release:
            client.release(name)
        else:
            _reserve(client, name, slots or 0, grace, wait, chosen)


def _check(name: str, slots: int | None, release: bool, *, given: bool) -> None:
    if name and (slots is None) is not release:
        raise InvalidInputError(
            f"what is to happen to the reservation {name!r} is not clear", fix="give either --slots N or --release"
        )
    if not name and (slots is not None or release):
        raise InvalidInputError("the name of the reservation is missing", fix="write elasticdl reserve NAME ...")
    if given and slots is None:
        raise InvalidInputError("--grace and --wait go with --slots", fix="give --slots N too, or leave them out")


def _reserve(client: Client, name: str, slots: int, grace: float | None, wait: float, chosen: OutputFormat) -> None:
    found = client.reserve(name, slots, grace_s=grace)
    deadline = time.monotonic() + wait
    while found["granted"] < slots and time.monotonic() < deadline:
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
        found = next((one for one in client.reservations()["reservations"] if one["name"] == name), found)
    if chosen.of_data:
        print_data(found, chosen)
    else:
        write_line(f"{found['granted']} of {found['slots']} slots are granted to {name}.")
    if wait > 0 and found["granted"] < slots:
        raise typer.Exit(EXIT_UNAVAILABLE)


def _list(answer: Mapping[str, Any], chosen: OutputFormat) -> None:
    if chosen.of_data:
        print_data(answer, chosen)
        return
    rows = [
        (str(one["name"]), str(one["slots"]), str(one["granted"]), f"{one['grace_s']:g} s")
        for one in answer["reservations"]
    ]
    print_table(("name", "slots", "granted", "grace"), rows, empty="Nothing is reserved.")
    write_line(f"{answer['for_jobs']} of {answer['slots']} slots are for jobs (headroom {answer['headroom']}).")
