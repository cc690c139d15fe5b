"""The head of an answer and its body, in one piece where they come together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticdl_api.web.wire import JOINED_BYTES, JoinedWrites

pytestmark = pytest.mark.unit


class Recorded:
    """A transport that keeps what is done to it."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.done


@pytest.fixture
def transport() -> Recorded:
    return Recorded()


@pytest.fixture
async def joined(transport: Recorded) -> JoinedWrites:
    return JoinedWrites(transport, asyncio.get_running_loop())  # type: ignore[arg-type]


async def test_what_comes_together_goes_together(joined: JoinedWrites, transport: Recorded) -> None:
    joined.write(b"head ")
    assert transport.done == []
    joined.write(b"body")
    joined.write(b"more")
    await asyncio.sleep(0)
    assert transport.done == [b"head body", b"more"]


async def test_a_head_whose_body_takes_its_time_goes_alone(joined: JoinedWrites, transport: Recorded) -> None:
    joined.write(b"head")
    await asyncio.sleep(0)
    assert transport.done == [b"head"]
    joined.write(b"body")
    assert transport.done == [b"head", b"body"]


async def test_an_answer_without_a_body_is_not_forgotten(joined: JoinedWrites, transport: Recorded) -> None:
    joined.write(b"head")
    joined.close()
    await asyncio.sleep(0)
    assert transport.done == [b"head", "closed"]
    assert joined.is_closing()


async def test_what_is_large_is_not_copied(joined: JoinedWrites, transport: Recorded) -> None:
    body = b"x" * (JOINED_BYTES + 1)
    joined.write(b"head")
    joined.write(body)
    assert transport.done == [b"head", body]
    assert transport.done[1] is body
