"""Puts made-up visits into a bucket, an object for each day: `put_events.py BUCKET ENDPOINT DAY...`.

The credentials are those of the environment. The bucket must be there.
"""

import random
import sys
from datetime import date, datetime, timedelta

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import S3Store

VISITS_A_DAY = 500


def main(bucket: str, endpoint: str, days: list[date]) -> None:
    """An object for each day; one that is there already is replaced."""
    store = S3Store(
        bucket,
        endpoint=endpoint,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    for day in days:
        path = f"events/{day:%Y/%m}/{day}.parquet"
        obstore.put(store, path, parquet(visits(day)))
        print(path)


def visits(day: date) -> pa.Table:
    """Those of a day, always alike."""
    drawn = random.Random(day.toordinal())
    begin = datetime(day.year, day.month, day.day)
    return pa.table(
        {
            "seen": [begin + timedelta(seconds=172 * number) for number in range(VISITS_A_DAY)],
            "visitor": [f"u{drawn.randint(1, 40):02}" for _ in range(VISITS_A_DAY)],
            "seconds": [round(drawn.expovariate(1 / 60), 1) for _ in range(VISITS_A_DAY)],
        }
    )


def parquet(table: pa.Table) -> bytes:
    """The table as the bytes of a file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [date.fromisoformat(day) for day in sys.argv[3:]])
