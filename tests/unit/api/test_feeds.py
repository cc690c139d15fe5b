"""Feeds and their followers, without a database."""

from __future__ import annotations

import pytest

from elasticdl_api.feeds.feed import QUEUED_BYTES, QUEUED_MOST, REMEMBERED, Feed, FeedMessage, Follower

pytestmark = pytest.mark.unit


def numbered(first: int, last: int) -> list[FeedMessage]:
    return [FeedMessage(b"%d;" % number, number) for number in range(first, last + 1)]


async def test_messages_come_in_order_and_then_the_end() -> None:
    follower = Follower()
    follower.begin([FeedMessage(b"a")])
    follower.put(FeedMessage(b"b"))
    assert await follower.take(0.0) == b"ab"
    assert await follower.take(0.0) == b""
    follower.put(FeedMessage(b"c", last=True))
    follower.put(FeedMessage(b"too late"))
    assert await follower.take(1.0) == b"c"
    assert await follower.take(1.0) is None
    assert not follower.overrun


async def test_a_message_of_a_topic_replaces_the_one_that_waits() -> None:
    follower = Follower()
    for number in range(3 * QUEUED_MOST):
        follower.put(FeedMessage(b"status %d" % number, topic="status"))
    follower.put(FeedMessage(b", event", 1))
    assert await follower.take(1.0) == b"status %d, event" % (3 * QUEUED_MOST - 1)


@pytest.mark.parametrize(
    "messages",
    [numbered(1, QUEUED_MOST + 1), [FeedMessage(b"x" * (QUEUED_BYTES // 2 + 1), n) for n in (1, 2)]],
    ids=["many", "large"],
)
async def test_who_takes_nothing_is_let_go(messages: list[FeedMessage]) -> None:
    follower = Follower()
    for message in messages:
        follower.put(message)
    assert follower.overrun
    assert await follower.take(1.0) is None


async def test_one_large_message_is_no_reason() -> None:
    follower = Follower()
    follower.put(FeedMessage(b"x" * (2 * QUEUED_BYTES), 1))
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
