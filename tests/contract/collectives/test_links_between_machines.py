"""Members that reach each other by TCP alone, as on several machines: TLS, networks that swallow, wrong checksums.

All members are in this process, each with a thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from elasticdl_core.errors import InvalidInputError
from elasticdl_worker.collectives import (
    Collective,
    CollectiveError,
    CorruptStateError,
    GroupPlan,
    MemberLostError,
    SilenceLimits,
    open_listener,
    operations,
    tree,
)
from elasticdl_worker.collectives.endpoint import MemberEndpoint, choose_adapter
from elasticdl_worker.collectives.group_listener import MemberListener
from elasticdl_worker.collectives.links import Kind
from elasticdl_worker.collectives.security import LinkSecurity
from tests.contract.collectives.members import DEADLINE_S, on_device
from tests.fakes.frameworks import NEEDS_TORCH
from tests.fakes.swallowing_network import HOST, hole_before, seen_from

pytestmark = pytest.mark.contract
SECRET = b"only for tests, and long enough."


def security_by(authority: trustme.CA, folder: Path, name: str, trusted: trustme.CA | None = None) -> LinkSecurity:
    issued = authority.issue_cert(name)
    file = folder / f"{name}.pem"
    file.write_bytes(
        issued.private_key_pem.bytes() + issued.cert_chain_pems[0].bytes() + (trusted or authority).cert_pem.bytes()
    )
    return LinkSecurity(file, name)


@contextlib.contextmanager
def lobbies(*securities: LinkSecurity | None, **settings: Any) -> Iterator[list[MemberListener]]:
    with contextlib.ExitStack() as stack:
        made = []
        for security in securities:
            made.append(open_listener(None, host=HOST, security=security, **settings))
            stack.callback(made[-1].close)
        yield made


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results, or what was raised."""

    def attempt(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(attempt, calls))


def form(
    members: Sequence[MemberListener],
    views: Sequence[Sequence[bytes]] | None = None,
    timeout_s: float = 20.0,
    adapter: str = "auto",
) -> list[Any]:
    endpoints = [member.endpoint for member in members]
    calls = []
    for rank, member in enumerate(members):
        plan = GroupPlan(1, views[rank] if views else endpoints, SECRET, adapter=adapter)
        calls.append(lambda member=member, plan=plan, rank=rank: member.form(plan, rank, timeout_s=timeout_s))
    return at_once(calls)


def summed(group: Collective, length: int) -> np.ndarray:
    pending = group.begin_sum([length])
    pending.add(group.rank, 0, on_device(group.adapter, np.full(length, group.rank + 1, np.float32)))
    return np.asarray(pending.finish()[0])


def broken(group: Collective) -> CollectiveError:
    """Sums until the group breaks."""
    while True:
        try:
            summed(group, 1000)
        except CollectiveError as error:
            return error


def test_sums_and_state_travel_encrypted(tmp_path: Path) -> None:
    authority = trustme.CA()
    with lobbies(*(security_by(authority, tmp_path, f"worker-{index}.job") for index in range(3))) as members:
        groups = form(members)
        assert [group.adapter for group in groups] == ["sockets"] * 3
        for length in (10, 2_000_000):
            for result in at_once([lambda group=group, length=length: summed(group, length) for group in groups]):
                assert (result == 6).all()
        state = np.arange(1_000_000, dtype=np.int64)
        _, (_, arrays), _ = at_once(
            [lambda: groups[0].send(1, b"", [state]), lambda: groups[1].receive(0), lambda: None]
        )
        assert (arrays[0].view(np.int64) == state).all()


def test_state_and_sums_around_their_pieces_arrive_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_PIECE_BYTES", 64)
    sizes = [0, 1, *(times * 64 + more for times in (1, 2, 3) for more in (-1, 0, 1))]
    arrays = [np.arange(size, dtype=np.uint8) for size in sizes]
    with lobbies(None, None) as members:
        groups = form(members)
        for sent in ([], *([array] for array in arrays), arrays):
            _, (note, received) = at_once(
                [lambda sent=sent: groups[0].send(1, b"note", sent), lambda: groups[1].receive(0)]
            )
            assert (note, [array.tolist() for array in received]) == (b"note", [array.tolist() for array in sent])
        block = tree._BLOCK_BYTES // 4
        for length in (block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1):
            for result in at_once([lambda group=group, length=length: summed(group, length) for group in groups]):
                assert result.shape == (length,) and (result == 3).all()


def test_a_member_with_a_strange_certificate_does_not_get_in(tmp_path: Path) -> None:
    authority = trustme.CA()
    stranger = security_by(trustme.CA(), tmp_path, "worker-1.job", authority)
    with lobbies(security_by(authority, tmp_path, "worker-0.job"), stranger) as members:
        errors = form(members, timeout_s=2.0)
        assert all(isinstance(error, CollectiveError) for error in errors)


def test_another_process_of_the_cluster_is_not_taken_for_the_member(tmp_path: Path) -> None:
    """It has a certificate of the same authority, with its own name."""
    authority = trustme.CA()
    impostor = dataclasses.replace(security_by(authority, tmp_path, "worker-0.other"), name="worker-0.job")
    with lobbies(impostor, security_by(authority, tmp_path, "worker-1.job")) as members:
        errors = form(members, timeout_s=2.0)
        assert all(isinstance(error, CollectiveError) for error in errors)
        assert "cannot be reached" in errors[1].message


def test_credentials_that_cannot_be_used_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be used"):
        open_listener(None, host=HOST, security=LinkSecurity(tmp_path / "missing.pem", "worker-0.job"))


def test_without_tls_nothing_listens_beyond_loopback() -> None:
    with pytest.raises(InvalidInputError, match="without TLS"):
        open_listener(None, host="192.0.2.1")
    with pytest.raises(InvalidInputError, match="cannot be reached"):
        open_listener(None)


@pytest.mark.parametrize("adapter", ["auto", pytest.param("gloo_tensors", marks=NEEDS_TORCH)])
def test_a_member_that_is_cut_off_without_a_word_is_suspected(adapter: str) -> None:
    """Nothing is closed, nothing arrives: as when a cable is pulled."""
    with lobbies(None, None, None, patience=SilenceLimits(0.05, 0.4, 60.0)) as members:
        endpoints = [member.endpoint for member in members]
        hole = hole_before(endpoints[0])
        # Members 1 and 2 reach member 0 only through the hole, and 2 reaches 1 directly.
        views = [seen_from(rank, endpoints, {0: hole}) for rank in range(3)]
        try:
            groups = form(members, views, DEADLINE_S, adapter)
            for result in at_once([lambda group=group: summed(group, 1000) for group in groups]):
                assert (result == 6).all()
            hole.swallow()
            errors = at_once([lambda group=group: broken(group) for group in groups])
            assert all(isinstance(error, MemberLostError) for error in errors)
            assert {frozenset(error.suspects) for error in errors[1:]} == {frozenset({0})}
        finally:
            hole.close()


def test_state_with_a_wrong_checksum_is_refused_and_its_sender_suspected() -> None:
    with lobbies(None, None) as members:
        groups = form(members)
        sender: Any = groups[0]
        send = sender._mesh.send

        def garble(target: int, tag: Any, payload: Any = b"", check: int = 0, sent: Any = None) -> None:
            send(target, tag, payload, check ^ (tag[0] is Kind.PIECE and tag[2] == 3), sent)

        sender._mesh.send = garble
        sent, received = at_once([lambda: groups[0].send(1, b"", [bytes(5 << 20)]), lambda: groups[1].receive(0)])
        assert isinstance(received, CorruptStateError)
        assert received.suspects == {0}
        assert isinstance(sent, CorruptStateError)


def endpoint(machine: str = "a", unix: str = "/run/x.sock", tcp: str = "h:1", name: str = "") -> MemberEndpoint:
    return MemberEndpoint(machine, 1, "pid:[1]", unix, tcp, name)


@pytest.mark.parametrize(
    ("endpoints", "wanted", "name"),
    [
        ([endpoint(), endpoint()], "auto", "shared_memory"),
        ([endpoint()], "auto", "shared_memory"),
        ([endpoint(), endpoint("b")], "auto", "sockets"),
        ([endpoint(), endpoint(unix="")], "auto", "sockets"),
        ([endpoint(), endpoint()], "sockets", "sockets"),
        ([endpoint(), endpoint("b")], "nccl", "nccl"),
    ],
)
def test_the_adapter_follows_from_where_members_are(endpoints: list[MemberEndpoint], wanted: str, name: str) -> None:
    choice = choose_adapter([MemberEndpoint.decode(each.encode()) for each in endpoints], wanted)
    assert choice.name == name
    assert choice.reason


@pytest.mark.parametrize(
    ("endpoints", "wanted", "reason"),
    [
        ([endpoint(), endpoint("b")], "shared_memory", "share no memory"),
        ([endpoint(name="n"), endpoint("b", name="m")], "nccl", "in the clear"),
        ([endpoint()], "smoke signals", "there is no adapter"),
    ],
)
def test_adapters_that_cannot_join_the_members_are_refused(
    endpoints: list[MemberEndpoint], wanted: str, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        choose_adapter(endpoints, wanted)


def test_a_process_that_is_out_of_sight_or_ended_is_not_running() -> None:
    here = MemberEndpoint.here("", "", "")
    assert here.is_running(here)
    assert not dataclasses.replace(here, machine="another").is_running(here)
    assert not dataclasses.replace(here, pid=2**22 + 1).is_running(here)
