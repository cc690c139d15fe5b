"""``elasticdl tokens``, ``whoami`` and ``audit``: who may do what, and who did what."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli.connection import connect
from elasticdl.cli.formats import FormatOption, JsonOption, choose_format, print_data
from elasticdl.cli.job_logs import moment_of
from elasticdl.cli.output import moment, print_table, write_line
from elasticdl_core.access import TokenScope
from elasticdl_core.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from elasticdl.client import Client

app = typer.Typer(
    no_args_is_help=True,
    help="Make, list and revoke tokens.",
    epilog="""Examples:

    elasticdl tokens create ada-laptop --namespace team-a --owner ada --scope submit --expires 90d

    elasticdl tokens list --namespace team-a

    elasticdl tokens revoke ada-laptop""",
)
_UNITS = {"m": 60, "h": 3600, "d": 86400}
Namespace = Annotated[str | None, typer.Option("--namespace", help="The namespace.", show_default=False)]


_AUDIT_EXAMPLES = """Examples:

    elasticdl audit digits-x7k2p9

    elasticdl audit --action job.cancel --since 1d"""


def register(parent: typer.Typer) -> None:
    """Adds the commands to the command line."""
    parent.add_typer(app, name="tokens", rich_help_panel="Access")
    parent.command("whoami", rich_help_panel="Access")(whoami)
    parent.command("audit", rich_help_panel="Access", epilog=_AUDIT_EXAMPLES)(audit)


def seconds(text: str) -> int:
    """A duration such as ``90d``, ``12h`` or ``30m`` in seconds.

    Raises:
        InvalidInputError: it is none.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,6})([mhd])", text)
    if match is None:
        raise InvalidInputError(f"{text!r} is no duration", fix="write a number and a unit: 90d, 12h or 30m")
    return int(match.group(1)) * _UNITS[match.group(2)]


@app.command("create", epilog="Example: elasticdl tokens create ci --namespace team-a --scope submit --expires 90d")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The purpose of the token.", show_default=False)],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help="The only one that its holder sees.", show_default="your own"),
    ] = None,
    scope: Annotated[TokenScope, typer.Option("--scope", help="The rights of its holder.")] = TokenScope.READ,
    owner: Annotated[
        str | None, typer.Option("--owner", help="The user who will hold it.", show_default="yourself")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", help="Time for which it is valid: 90d, 12h, 30m.", show_default="until revoked"),
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Its holder sees all namespaces.")] = False,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it: it is not shown again."""
    chosen = choose_format(output, as_json)
    lifetime = None if expires is None else seconds(expires)
    with connect() as client:
        made = client.create_token(
            name, scope=str(scope), namespace=namespace, of_cluster=cluster, owner=owner, expires_in_s=lifetime
        )
    if chosen.of_data:
        print_data(made, chosen)
        return
    # The token alone goes to standard output, so that TOKEN=$(elasticdl tokens create ...) works.
    write_line(made["token"])
    place = f"the namespace {made['namespace']}" if made["namespace"] else "the whole cluster"
    until = f"until {_moment(made['expires_at'])}" if made["expires_at"] else "until it is revoked"
    write_line(
        f"{made['id']} ({made['name']}) of {made['owner']}: {made['scope']} in {place}, {until}. "
        "Keep it: it is not shown again.",
        to=sys.stderr,
    )


@app.command("list", epilog="Example: elasticdl tokens list --namespace team-a")
def list_tokens(
    namespace: Namespace = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only of that user.", show_default=False)] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those that are expired or revoked.")] = False,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tokens that you administer, the newest first; never the tokens themselves."""
    chosen = choose_format(output, as_json)
    with connect() as client:
        found = client.tokens(namespace=namespace, owner=owner, ended=all_)
    if chosen.of_data:
        print_data(found, chosen)
        return
    rows = [
        (
            str(one["id"]),
            str(one["name"]),
            str(one["owner"]),
            str(one["namespace"] or "(all)"),
            str(one["scope"]),
            str(one["state"]),
            _moment(one["expires_at"]),
            _moment(one["last_used_at"]),
        )
        for one in found
    ]
    columns = ("id", "name", "owner", "namespace", "scope", "state", "expires", "last used")
    print_table(columns, rows, empty="No tokens but the admin token of the cluster.")


@app.command("revoke", epilog="Example: elasticdl tokens revoke ada-laptop")
def revoke(
    tokens: Annotated[list[str], typer.Argument(metavar="ID|NAME...", help="Ids or names.", show_default=False)],
    namespace: Namespace = None,
) -> None:
    """Revoke tokens: they are refused from the next request on."""
    with connect() as client:
        known = client.tokens(namespace=namespace)
        for one in [_find(known, token) for token in tokens]:
            client.revoke_token(one["id"])
            write_line(f"{one['id']} ({one['name']}) is revoked.")


def _find(known: Sequence[Mapping[str, Any]], wanted: str) -> Mapping[str, Any]:
    """The token of that id, else the one of that name.

    Raises:
        NotFoundError: there is none.
        InvalidInputError: there are some of that name, in several namespaces.
    """
    found = [one for one in known if one["id"] == wanted] or [one for one in known if one["name"] == wanted]
    if not found:
        raise NotFoundError(f"there is no valid token {wanted}", fix="list them: `elasticdl tokens list`")
    if len(found) > 1:
        places = ", ".join(f"{one['id']} in {one['namespace'] or 'the cluster'}" for one in found)
        raise InvalidInputError(
            f"{len(found)} tokens are named {wanted!r}: {places}", fix="give the id of one of them"
        )
    return found[0]


def whoami(output: FormatOption = None, as_json: JsonOption = False) -> None:
    """Show who your token says that you are, and what you may do."""
    chosen = choose_format(output, as_json)
    with connect() as client:
        me = client.whoami()
        if chosen.of_data:
            print_data(me, chosen)
            return
        version = client.version()["version"]
        place = f"the namespace {me['namespace']}" if me["namespace"] else "all namespaces"
        write_line(f"{me['user']}: {me['scope']} in {place} of {client.endpoint.url} (ElasticDL {version})")
    until = f"until {_moment(me['expires_at'])}" if me["expires_at"] else "until it is revoked"
    write_line(f"token {me['token_id']}, valid {until}")


def audit(
    job: Annotated[
        str, typer.Argument(metavar="[JOB]", help="Audit the records of this job instead.", show_default=False)
    ] = "",
    namespace: Namespace = None,
    actor: Annotated[str | None, typer.Option("--actor", help="Only of that user.", show_default=False)] = None,
    action: Annotated[
        str | None, typer.Option("--action", help="Only such, e.g. job.cancel.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Only about that object, e.g. a job's id.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="AGO|TIME",
            help="Only what was changed since then: 30s, 10m, 2h or 1d ago, or a time such as 2026-01-31T09:30 "
            "(local, unless it has a zone).",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many, the latest first.")] = 50,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who changed what, the latest first; with a JOB whether each of its records was processed, and by whom.

    The exit code is 1 if a job's promise was broken.
    """
    chosen = choose_format(output, as_json)
    if job:
        given = {"--namespace": namespace, "--actor": actor, "--action": action, "--target": target, "--since": since}
        for name, value in given.items():
            if value is not None:
                raise InvalidInputError(
                    f"{name} chooses changes, and not records of a job", fix=f"leave out {name}, or the job"
                )
        from elasticdl.cli.record_audit import audit_job

        raise typer.Exit(audit_job(job, chosen))
    start = None if since is None else moment_of(since, datetime.now(UTC))
    with connect() as client:
        entries = _entries(client, limit, start, namespace=namespace, actor=actor, action=action, target=target)
    if chosen.of_data:
        print_data(entries, chosen)
        return
    rows = [
        (
            _moment(one["at"]),
            str(one["actor"]),
            str(one["namespace"] or "-"),
            str(one["action"]),
            str(one["target"]),
            ", ".join(f"{key}={value}" for key, value in one["detail"].items()),
        )
        for one in entries
    ]
    print_table(("at", "who", "namespace", "did", "to", "with"), rows, empty="Nothing was changed.")


def _entries(client: Client, limit: int, since: datetime | None, **filters: str | None) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    token = ""
    while len(found) < limit:
        page = client.audit(
            namespace=filters["namespace"],
            actor=filters["actor"],
            action=filters["action"],
            target=filters["target"],
            since=since,
            limit=min(limit - len(found), 500),
            page_token=token,
        )
        found += page["entries"]
        token = page["next_page_token"]
        if not token:
            break
    return found


def _moment(text: str | None) -> str:
    return "-" if text is None else moment(datetime.fromisoformat(text))
