"""Draws the daily sales of some shops: a level, a weekly pattern, a slow season and noise; a CSV file by days.

Usage: python make_series.py DIR [SHOPS [DAYS]]
"""

import csv
import sys
from pathlib import Path

import numpy as np

HELD_OUT = 4
"""Of so many parts of the days the last one is for validation."""


def main() -> None:
    folder = Path(sys.argv[1])
    shops, days = int(sys.argv[2]) if len(sys.argv) > 2 else 12, int(sys.argv[3]) if len(sys.argv) > 3 else 400
    drawing = np.random.default_rng(5)
    level = drawing.uniform(60, 140, shops)
    week = drawing.uniform(0.6, 1.4, (shops, 7))
    cut = days * (HELD_OUT - 1) // HELD_OUT
    for name, chosen in (("train", range(cut)), ("validation", range(cut, days))):
        (folder / name).mkdir(parents=True, exist_ok=True)
        with (folder / name / "sales.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["day", "shop", "sold"])
            for day in chosen:
                season = 1 + 0.2 * np.sin(2 * np.pi * day / 365)
                for shop in range(shops):
                    sold = level[shop] * week[shop, day % 7] * season + drawing.normal(0, 6)
                    writer.writerow([day, f"shop{shop}", round(max(0.0, sold), 1)])


if __name__ == "__main__":
    main()
