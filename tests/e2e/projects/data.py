"""Draws the data of the projects, by the standard library alone: a function of each gives the lines of a file."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from random import Random

_CITIES = ("Bern", "Köln", "Łódź", "Paris")
_SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "sta", "vo")


def orders(count: int, random: Random) -> Iterator[str]:
    """Orders, of which some come back."""
    yield "city,ordered,price,returned"
    for _ in range(count):
        city, month, price = random.randrange(4), random.randint(1, 12), random.expovariate(0.02)
        back = random.random() < 1 / (1 + exp(2 - city - (month > 9) * 1.5 + price / 80))
        yield f"{_CITIES[city]},2025-{month:02}-{random.randint(1, 28):02},{price:.2f},{int(back)}"


def fraud(count: int, random: Random) -> Iterator[str]:
    """Payments, and after them the frauds."""
    yield "x0,x1,x2,x3,x4,x5,fraud"
    for number in range(count):
        is_fraud = number >= count * 29 // 30
        values = [random.gauss(0.8 * is_fraud, 1 + 0.5 * is_fraud) for _ in range(6)]
        yield ",".join(f"{value:.4f}" for value in values) + f",{int(is_fraud)}"


def reviews(count: int, random: Random) -> Iterator[str]:
    """A label and words, of which some lean to its side; one label after the other."""
    for number in range(count):
        friendly = number * 2 >= count
        leaning = [f"{'good' if (random.random() < 0.75) == friendly else 'bad'}{random.randrange(6)}" for _ in "123"]
        words = [f"word{random.randrange(20)}" for _ in range(random.randint(2, 8))] + leaning
        random.shuffle(words)
        yield f"{int(friendly)}\t{' '.join(words)}"


def characters(count: int, random: Random) -> Iterator[str]:
    """The letters of a small language, one a line between bars: a syllable is mostly followed by the one after it."""
    text = ""
    while len(text) < count:
        word = [random.randrange(7)]
        for _ in range(random.randint(1, 3)):
            word.append((word[-1] + (1 if random.random() < 0.8 else random.randrange(7))) % 7)
        text += "".join(_SYLLABLES[one] for one in word) + " "
    yield from (f"|{letter}|" for letter in text[:count])


def shop(count: int, random: Random) -> Iterator[str]:
    """What visitors like, one after the other; tastes are of five kinds."""
    yield "visitor,article,liked"
    for number in range(count):
        visitor, article = number * 300 // count, random.randrange(200)
        agrees = visitor % 5 == article % 5
        yield f"{visitor * 331},{article * 249},{int(random.random() < (0.85 if agrees else 0.2))}"
