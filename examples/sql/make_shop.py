"""Adds a day of made-up sales to a shop's database: `make_shop.py [URL]`, with SQLAlchemy's URL.

Without one it is the SQLite file shop.db beside this script.
"""

import random
import sys
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

HERE = Path(__file__).parent
CITIES = {"harbour": "Bergen", "market": "Oslo", "station": "Oslo"}
FIRST_DAY = datetime(2026, 1, 1)
SALES_A_DAY = 200
SHEET = sa.MetaData()
SHOPS = sa.Table("shops", SHEET, sa.Column("shop", sa.Text, primary_key=True), sa.Column("city", sa.Text))
SALES = sa.Table(
    "sales",
    SHEET,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("shop", sa.Text),
    sa.Column("sold_at", sa.DateTime),
    sa.Column("pieces", sa.Integer),
    sa.Column("price", sa.Float),
)


def main(url: str) -> None:
    """The tables where they are not there yet, and the day after the last one that is."""
    if url.startswith("postgresql://"):
        url = url.replace("postgresql", "postgresql+psycopg", 1)
    with sa.create_engine(url).begin() as database:
        SHEET.create_all(database)
        if not database.scalar(sa.select(sa.func.count()).select_from(SHOPS)):
            shops = [{"shop": shop, "city": city} for shop, city in CITIES.items()]
            database.execute(sa.insert(SHOPS), shops)
        there = database.scalar(sa.select(sa.func.count()).select_from(SALES)) or 0
        database.execute(sa.insert(SALES), sales(there))
    print(f"{SALES_A_DAY} sales after {there}")


def sales(after: int) -> list[dict[str, object]]:
    """Those of the next day; the same day is always made alike."""
    drawn = random.Random(after)
    day = FIRST_DAY + timedelta(days=after // SALES_A_DAY)
    return [
        {
            "id": after + number,
            "shop": drawn.choice(sorted(CITIES)),
            "sold_at": day + timedelta(seconds=432 * number - 432),
            "pieces": drawn.randint(1, 5),
            "price": drawn.randint(4, 40) / 4,
        }
        for number in range(1, SALES_A_DAY + 1)
    ]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{HERE / 'shop.db'}")
