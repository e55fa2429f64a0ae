"""The map jobs of `bench.map` written directly with Ray tasks, as one would who has a Ray cluster.

`python -m bench.map_tasks swarm|dataset ADDRESS FOLDER SOURCE...` prints the CPU seconds of all its workers.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from bench.dataset import WINDOW
from gridmill.jobs.dataset_reader import open_partitions
from gridmill.jobs.features import encode, numbers, runs
from gridmill.jobs.metrics import regression
from gridmill.jobs.model_files import load_card, load_model, predict_rows

SHARDS_PER_CPU, BUCKETS = 4, 8
Spent = tuple[int, float]
"""The pid of a worker, and the CPU seconds it has used since it began."""


def spent() -> Spent:
    """Of this process."""
    return os.getpid(), time.process_time()


def predict(dataset: Path, model: Path, target: Path, start: int, stop: int) -> Spent:
    """A shard of a swarm: its rows with what the model looks back at, one file of predictions."""
    card, predictor = load_card(model), load_model(model, threads=1)
    lead = min(start, (card.sequence or 1) - 1)
    names = [*card.keys, *(encoding.column for encoding in card.encodings), *card.labels]
    table = open_partitions(dataset).read(list(dict.fromkeys(names)), start - lead, stop)
    kept = np.arange(lead, table.num_rows)
    predicted = predict_rows(predictor, encode(table, card.encodings), runs(table, card.entity), kept)
    rows = pa.table(
        {
            **{name: table[name].take(kept) for name in card.keys},
            "row": kept + (start - lead),
            "prediction": predicted,
            "truth": numbers(table[card.labels[0]])[kept],
        }
    )
    pq.write_table(rows, target / f"part-{start:09}.parquet")
    return spent()


def swarm(folder: Path, dataset: Path, model: Path) -> list[Spent]:
    """All shards; then every row is looked for, and the whole measured."""
    rows = open_partitions(dataset).rows
    count = SHARDS_PER_CPU * len(os.sched_getaffinity(0))
    bounds = [rows * number // count for number in range(count + 1)]
    do: Any = ray.remote(predict)
    work = [do.remote(dataset, model, folder, start, stop) for start, stop in pairwise(bounds)]
    found: list[Spent] = ray.get(work)
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])
    assert np.array_equal(table["row"].to_numpy(), np.arange(rows)), "each row once"
    truth, predicted = (table[name].to_numpy() for name in ("truth", "prediction"))
    known = np.flatnonzero(~np.isnan(truth) & ~np.isnan(predicted))
    regression(truth[known], predicted[known], np.zeros(len(known)))
    return found


def features(events: Path, prices: Path, target: Path, bucket: int) -> Spent:
    """A bucket of a dataset: the rows of its users, their windows, and the price as of each."""
    connection = duckdb.connect(config={"threads": 1, "memory_limit": "1500MB"})
    spans = ", ".join(
        f"sum(amount) OVER w{days}, count(amount) OVER w{days}, avg(amount) OVER w{days}" for days in (7, 30)
    )
    frames = ", ".join(
        f'w{days} AS (PARTITION BY "user" ORDER BY time {WINDOW.format(days)})' for days in (7, 30)
    )
    mine = f'WHERE hash("user") % {BUCKETS} = {bucket}'
    connection.execute(
        f"""COPY (SELECT w.*, p.price FROM (
              SELECT *, {spans} FROM read_parquet('{events}/*.parquet') {mine} WINDOW {frames}) AS w
            ASOF LEFT JOIN (SELECT * FROM read_parquet('{prices}/*.parquet') {mine}) AS p
              ON w."user" = p."user" AND w.time > p.known_at)
            TO '{target}/part-{bucket}.parquet' (FORMAT parquet, COMPRESSION zstd)"""
    )
    return spent()


def dataset(folder: Path, events: Path, prices: Path) -> list[Spent]:
    """All buckets."""
    do: Any = ray.remote(features)
    found: list[Spent] = ray.get([do.remote(events, prices, folder, number) for number in range(BUCKETS)])
    assert pq.ParquetDataset(folder).read(columns=["user"]).num_rows
    return found


WORK: dict[str, Callable[[Path, Path, Path], list[Spent]]] = {"swarm": swarm, "dataset": dataset}


def main(name: str, address: str, folder: str, *sources: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    one, other = map(Path, sources)
    cpus: dict[int, float] = {}
    for pid, seconds in (*WORK[name](Path(folder), one, other), spent()):
        cpus[pid] = max(seconds, cpus.get(pid, 0.0))
    print(sum(cpus.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
