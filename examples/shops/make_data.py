"""Writes data/*.csv: two years of made-up daily sales of three shops, the same ones every time."""

import math
import random
from datetime import date, timedelta
from pathlib import Path

SHOPS = {"harbour": 120.0, "market": 80.0, "station": 200.0}
WEEK = (1.0, 0.95, 0.95, 1.0, 1.2, 1.5, 0.6)
FIRST, DAYS = date(2024, 1, 1), 730


def main() -> None:
    """One file per year."""
    draw = random.Random(7)
    rows: dict[int, list[str]] = {}
    for number in range(DAYS):
        day = FIRST + timedelta(days=number)
        season = 1 + 0.3 * math.sin(2 * math.pi * number / 365)
        for shop, usual in SHOPS.items():
            sold = usual * season * WEEK[day.weekday()] * draw.lognormvariate(0, 0.1)
            rows.setdefault(day.year, []).append(f"{day},{shop},{sold:.0f}")
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    for year, lines in rows.items():
        (folder / f"sales-{year}.csv").write_text("\n".join(["day,shop,sold", *lines]) + "\n")


if __name__ == "__main__":
    main()
