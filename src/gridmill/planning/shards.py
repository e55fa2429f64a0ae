"""How many shards a swarm's rows are cut into, and in how many rounds so many workers do them."""

from gridmill.planning.footprint import SHARD_CELLS

LEAST_ROWS, MOST_ROWS, PER_WORKER = 256, 50_000, 4
PER_PROBE_WORKER = 2


def count_shards(rows: int, workers: int, wanted: int | None, inputs: int = 1) -> int:
    """How many shards: several per worker so that all end together, neither tiny nor (rows of so many
    `inputs`) beyond memory."""
    if wanted is not None:
        return min(wanted, rows)
    bounded = min(workers * PER_WORKER, -(-rows // LEAST_ROWS))
    most = min(MOST_ROWS, max(LEAST_ROWS, SHARD_CELLS // max(1, inputs)))
    return max(1, bounded, -(-rows // most))


def count_probe_shards(rows: int, workers: int) -> int:
    """As few as tell a worker's first shard from the others: small ones would tell of what each one costs."""
    return max(1, min(rows, workers * PER_PROBE_WORKER))


def stretch(rows: int, workers: int, wanted: int | None) -> float:
    """How much longer the shards take than if they could be cut at will: the last round may not be full."""
    shards = count_shards(rows, workers, wanted)
    return -(-shards // workers) * workers / shards
