"""Feeds and their followers, without a database."""

from __future__ import annotations

import pytest

from elasticdl_api.feeds.feed import QUEUED_BYTES, QUEUED_MOST, REMEMBERED, Feed, FeedMessage, Follower

pytestmark = pytest.mark.unit


def put(follower: Follower, message: FeedMessage) -> None:
    follower.put([message], message.data)


def numbered(first: int, last: int) -> list[FeedMessage]:
    return [FeedMessage(b"%d;" % number, number) for number in range(first, last + 1)]


async def test_messages_come_in_order_and_then_the_end() -> None:
    follower = Follower()
    follower.begin([FeedMessage(b"a")])
    put(follower, FeedMessage(b"b"))
    assert await follower.take(0.0) == b"ab"
    assert await follower.take(0.0) == b""
    put(follower, FeedMessage(b"c", last=True))
    put(follower, FeedMessage(b"too late"))
    assert await follower.take(1.0) == b"c"
    assert await follower.take(1.0) is None
    assert not follower.overrun


async def test_a_message_of_a_topic_replaces_the_one_that_waits() -> None:
    follower = Follower()
    for number in range(3 * QUEUED_MOST):
        put(follower, FeedMessage(b"status %d" % number, topic="status"))
    put(follower, FeedMessage(b", event", 1))
    assert await follower.take(1.0) == b"status %d, event" % (3 * QUEUED_MOST - 1)


@pytest.mark.parametrize(
    "messages",
    [numbered(1, QUEUED_MOST + 1), [FeedMessage(b"x" * (QUEUED_BYTES // 2 + 1), n) for n in (1, 2)]],
    ids=["many", "large"],
)
async def test_who_takes_nothing_is_let_go(messages: list[FeedMessage]) -> None:
    follower = Follower()
    for message in messages:
        put(follower, message)
    assert follower.overrun
    assert await follower.take(1.0) is None


async def test_one_large_message_is_no_reason() -> None:
    follower = Follower()
    put(follower, FeedMessage(b"x" * (2 * QUEUED_BYTES), 1))
    assert not follower.overrun


async def test_a_feed_remembers_the_last_messages_and_knows_what_it_forgot() -> None:
    feed = Feed()
    await feed.publish(numbered(1, REMEMBERED + 10))
    assert (feed.first, feed.last) == (10, REMEMBERED + 10)
    assert feed.after(9) is None
    assert [message.number for message in feed.after(10) or ()] == list(range(11, REMEMBERED + 11))
    assert feed.after(REMEMBERED + 10) == []


async def test_who_left_is_told_nothing() -> None:
    feed, stays, leaves = Feed(), Follower(), Follower()
    feed.add(stays)
    feed.add(leaves)
    feed.remove(leaves)
    await feed.publish(numbered(1, 1))
    assert (await stays.take(0.0), await leaves.take(0.0)) == (b"1;", b"")
    feed.end()
    assert await stays.take(1.0) is None


class Valve:
    """A sink that takes messages while it is open."""

    def __init__(self) -> None:
        self.open = True
        self.taken = b""
        self.finished = False

    def offer(self, data: bytes) -> bool:
        if self.open:
            self.taken += data
        return self.open

    def finish(self) -> None:
        self.finished = True


async def test_messages_go_straight_to_a_sink_and_in_order_past_a_queue() -> None:
    follower, valve = Follower(), Valve()
    follower.begin([FeedMessage(b"begin;")])
    put(follower, FeedMessage(b"0;", 0))
    follower.attach(valve)
    put(follower, FeedMessage(b"1;", 1))
    valve.open = False
    put(follower, FeedMessage(b"2;", 2))
    put(follower, FeedMessage(b"old status;", topic="status"))
    valve.open = True
    put(follower, FeedMessage(b"new status;", topic="status"))  # not past those that wait
    assert valve.taken == b"begin;0;1;"
    follower.drain()
    put(follower, FeedMessage(b"end", last=True))
    assert valve.taken == b"begin;0;1;2;new status;end"
    assert valve.finished


async def test_a_sink_is_finished_when_all_is_taken() -> None:
    follower, valve = Follower(), Valve()
    follower.attach(valve)
    valve.open = False
    put(follower, FeedMessage(b"end", last=True))
    assert not valve.finished
    valve.open = True
    follower.drain()
    assert (valve.taken, valve.finished) == (b"end", True)


async def test_who_lets_a_sink_fill_is_let_go() -> None:
    follower, valve = Follower(), Valve()
    follower.attach(valve)
    valve.open = False
    for message in numbered(1, QUEUED_MOST + 1):
        put(follower, message)
    assert follower.overrun
    assert valve.finished
    assert valve.taken == b""
