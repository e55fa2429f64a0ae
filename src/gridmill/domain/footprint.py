"""This module estimates the memory that a job of each kind needs, which is used for sizing before the job
was measured.

Every estimate is `base + rows x columns x bytes per cell` (for a recurrent network, plus the activations of
one batch). The base is the memory of the interpreter with the libraries of this kind of job. The bytes per
cell include the columns as they are read, the copies that this kind of job makes of them, and the work space
of its algorithm. The bytes per cell are the largest values that `bench/sizing.py` has measured, with 12 and
with 300 columns. A long text takes more memory than a number. Because long texts take more memory, an
estimate from the stored bytes is made too, and the larger of the two estimates is used. A job that streams
its data holds at most `most_bytes` of the data in memory.

This module also computes the number of shards into which a swarm divides its rows, and the number of rounds
in which the workers process the shards.
"""

from math import inf

from gridmill.domain.amounts import GIB, MIB
from gridmill.domain.command import CommandSpec
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job, JobKind, JobSize
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.service_features import view_bytes
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.training import LARGEST_BATCH, ModelKind, TrainingSpec

COLUMNS = 12
"""The assumed number of columns of a table if the number is unknown."""
INPUT_FACTOR = 4.0
"""Bytes in memory per byte of input if the number of rows is unknown, because compressed Parquet grows by
about this factor."""
STORED_FACTOR = 8.0
"""Bytes in memory per byte of a stored table (compressed Parquet), for a kind of job that holds the whole
table in memory."""
WORKER_BYTES, SHARD_CELLS, SHARD_CELL_BYTES = 64 * MIB, 4 * 2**20, 24
"""Three constants of a swarm: the memory of each additional worker (its model and inference runtime), the
largest number of values in a shard, and the bytes per value for the columns as they are read and as model
inputs."""
RESULT_ROW_BYTES = 120
"""The bytes that the prediction, the true value and the keys of one row need while the result is checked."""
ADDED_VALUES, ADDED_ROWS = 24_000_000, 262_144
"""The windows, lags and as-of joins of a dataset are computed in chunks of this many added values, or of
this many rows, whichever gives the larger chunk."""
AHEAD_BYTES = 40
"""The bytes of one label while it is computed, encoded and written, if each row has labels for many later
rows."""
JOINED_COLUMNS = 6
"""The assumed number of columns that an as-of join adds if its declaration names no columns."""
COMMAND_CELL_BYTES = 16
"""The bytes per value for a command that declares its number of rows: one copy as numbers, and another copy
while the command works."""
PREDICTED_ROWS = 16_384
"""The number of rows that a trained network predicts at a time. The number follows from a measurement: 1,024
units needed 122 MiB more."""
WEIGHT_BYTES = 24
"""The bytes per weight of a network during training: the weight, its gradient, two moments of the optimizer,
the best weight so far, and the copy that is written."""
ROWS_PER_WORKER = 100_000
"""The number of rows per swarm worker: with fewer rows, starting another worker costs more time than the
worker saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The memory model of a kind of job. `floor_bytes` is the least memory that a job of this kind receives.
    `unknown_bytes` is the memory that is assumed for the data if the size of the data is not known. If
    `spills` is true, jobs of this kind use more memory if their memory limit is higher, and also succeed
    with a lower limit."""

    base_bytes: int
    cell_bytes: float
    floor_bytes: int
    unknown_bytes: int = 256 * MIB
    most_bytes: float = inf
    spills: bool = False


_DUCKDB, _TORCH, _SKLEARN, _INFERENCE = 220 * MIB, 300 * MIB, 200 * MIB, 180 * MIB

TRAINING: dict[ModelKind, Footprint] = {
    ModelKind.LSTM: Footprint(base_bytes=_TORCH, cell_bytes=32, floor_bytes=_TORCH + 84 * MIB),
    ModelKind.MLP: Footprint(base_bytes=_TORCH, cell_bytes=32, floor_bytes=_TORCH + 84 * MIB),
    ModelKind.GBDT: Footprint(base_bytes=_SKLEARN, cell_bytes=36, floor_bytes=_SKLEARN + 56 * MIB),
    ModelKind.LINEAR: Footprint(base_bytes=_SKLEARN, cell_bytes=48, floor_bytes=_SKLEARN + 56 * MIB),
    ModelKind.CUSTOM: Footprint(base_bytes=2 * _TORCH, cell_bytes=40, floor_bytes=2 * _TORCH),
    ModelKind.ENSEMBLE: Footprint(base_bytes=_SKLEARN, cell_bytes=48, floor_bytes=_SKLEARN + 56 * MIB),
    ModelKind.NAIVE: Footprint(base_bytes=_DUCKDB, cell_bytes=24, floor_bytes=_DUCKDB + 42 * MIB),
}
REPLICA_BYTES = 192 * MIB
"""The assumed memory of one replica of a service with its model."""
KINDS: dict[JobKind, Footprint] = {
    # A sink streams its data: only wide batches make it large.
    JobKind.SINK: Footprint(
        base_bytes=_DUCKDB, cell_bytes=48, floor_bytes=_DUCKDB + 42 * MIB, most_bytes=512 * MIB
    ),
    # DuckDB respects its memory limit: with less memory it spills to disk, and writes smaller row groups.
    JobKind.DATASET: Footprint(
        base_bytes=_DUCKDB, cell_bytes=20, floor_bytes=_DUCKDB + 42 * MIB, most_bytes=4 * GIB, spills=True
    ),
    JobKind.TRAINING: TRAINING[ModelKind.LSTM],
    JobKind.PREDICTION: Footprint(base_bytes=_INFERENCE, cell_bytes=0, floor_bytes=_INFERENCE + 204 * MIB),
    # the parent process; `memory_of` adds the replicas
    JobKind.SERVICE: Footprint(base_bytes=64 * MIB, cell_bytes=0, floor_bytes=256 * MIB),
    # The next attempt of a command may need far more memory: its floor is far above the memory of an idle
    # shell.
    JobKind.COMMAND: Footprint(base_bytes=0, cell_bytes=0, floor_bytes=256 * MIB, unknown_bytes=512 * MIB),
}


def footprint_of(job: Job) -> Footprint:
    """Return the memory model for a job."""
    spec = job.spec
    return TRAINING[spec.model] if isinstance(spec, TrainingSpec) else KINDS[job.kind]


def cells_of(size: JobSize) -> int | None:
    """Return the number of cells, which is rows times columns. The number of cells is None if the number of
    rows is unknown."""
    return None if size.rows is None else size.rows * (size.columns or COLUMNS)


def memory_of(job: Job, size: JobSize, workers: int) -> int:
    """Return the memory of the job in bytes according to the memory model, without a margin."""
    footprint = footprint_of(job)
    spec = job.spec
    extra = activation_bytes(spec) + weight_bytes(spec, size) if isinstance(spec, TrainingSpec) else 0
    if isinstance(spec, TrainingSpec) and spec.search:
        each = footprint.base_bytes // 2 + extra + data_bytes(footprint, size)
        return footprint.base_bytes + workers * each
    if isinstance(spec, PredictionSpec):
        return footprint.base_bytes + swarm_bytes(size, workers)
    if isinstance(spec, ServiceSpec) and spec.routes:
        return footprint.floor_bytes + (view_bytes(0) if spec.has_view else 0)
    if isinstance(spec, ServiceSpec):
        extra = view_bytes(spec.replicas) if spec.has_view else 0
        extra += (spec.replicas + 1) * spec.canary_bytes + spec.shadow_bytes
        return footprint.base_bytes + service_bytes(spec.replicas) + extra
    if isinstance(spec, DatasetSpec):
        return footprint.base_bytes + _dataset_bytes(spec, footprint, size)
    if isinstance(spec, CommandSpec) and job.rows is not None:
        declared = job.rows * (size.columns or COLUMNS) * COMMAND_CELL_BYTES
        return max(footprint.unknown_bytes, declared)
    return footprint.base_bytes + extra + data_bytes(footprint, size)


def service_bytes(replicas: int) -> int:
    """Return the memory of the replicas of a service. It includes one more replica, because during an update
    the first replica of the new version starts before a replica of the old version ends."""
    return (replicas + 1) * REPLICA_BYTES


def _dataset_bytes(spec: DatasetSpec, footprint: Footprint, size: JobSize) -> int:
    """Return the memory of a dataset job. The job needs memory for the rows that it reads and sorts, for the
    chunks that it computes, and for labels of many later rows, which it encodes as a whole."""
    rows, added = size.rows or 0, _added_columns(spec)
    values = min(rows * added, max(ADDED_VALUES, added * ADDED_ROWS))
    ahead = len(spec.label.sources) * (spec.label.next_rows or 0) if spec.label else 0
    extra = values * footprint.cell_bytes + rows * ahead * AHEAD_BYTES
    return int(min(footprint.most_bytes, data_bytes(footprint, size) + extra))


def data_bytes(footprint: Footprint, size: JobSize) -> int:
    """Return the memory for the data of a job: from cells and stored bytes if they are known; otherwise from
    the bytes of the input; otherwise an assumed value."""
    cells, stored = cells_of(size), size.input_bytes
    if not footprint.cell_bytes or (cells is None and stored is None):
        return footprint.unknown_bytes
    if cells is None:
        return int(min(footprint.most_bytes, (stored or 0) * INPUT_FACTOR))
    estimate = max(cells * footprint.cell_bytes, (stored or 0) * STORED_FACTOR)
    return int(min(footprint.most_bytes, estimate))


def swarm_bytes(size: JobSize, workers: int) -> int:
    """Return the memory of the workers of a swarm, each of which holds one shard, plus the memory of the
    complete result."""
    cells = cells_of(size)
    shard = SHARD_CELLS if cells is None else min(cells, SHARD_CELLS)
    return workers * (WORKER_BYTES + shard * SHARD_CELL_BYTES) + (size.rows or 0) * RESULT_ROW_BYTES


def _added_columns(spec: DatasetSpec) -> int:
    """Return the number of columns that the windows, lags, as-of joins and features of a dataset add."""
    aggregates = sum(len(window.aggregates) for window in spec.windows)
    lags = sum(len(lag.steps) + len(lag.back_seconds) for lag in spec.lags)
    joined = sum(len(join.columns) or JOINED_COLUMNS for join in spec.asof_joins)
    return aggregates + lags + joined + len(spec.features)


def activation_bytes(spec: TrainingSpec) -> int:
    """Return the memory for the activations of a network. A recurrent network needs this memory during
    training: about 12 floats per step and unit of one batch. Other networks need the most memory when the
    trained network predicts many rows: two floats per row and unit."""
    if spec.model is ModelKind.MLP:
        return PREDICTED_ROWS * spec.units * 2 * 4
    if spec.model is not ModelKind.LSTM:
        return 0
    return (spec.batch_size or LARGEST_BATCH) * spec.sequence * spec.units * spec.layers * 12 * 4


def weight_bytes(spec: TrainingSpec, size: JobSize) -> int:
    """Return the memory of the weights of a network during training."""
    if spec.model not in (ModelKind.LSTM, ModelKind.MLP):
        return 0
    inputs, units = size.columns or COLUMNS, spec.units
    if spec.model is ModelKind.LSTM:
        count = 4 * units * (inputs + units) + (spec.layers - 1) * 8 * units * units
    else:
        count = units * inputs + (spec.layers - 1) * units * units
    return count * WEIGHT_BYTES


def knows_settings(job: Job) -> bool:
    """Return whether the memory estimate depends on the settings of the job. The estimate cannot depend on
    the text of a program or a query."""
    spec = job.spec
    if isinstance(spec, DatasetSpec):
        return not spec.sql
    return not (isinstance(spec, CommandSpec) or job.runs_code)


def workers_of(job: Job, size: JobSize, cpus: float) -> int:
    """Return the number of workers of a swarm, or the number of parallel trials of a search. If no number is
    declared, the number follows from the number of rows or CPUs."""
    spec = job.spec
    if isinstance(spec, TrainingSpec) and spec.search:
        return spec.search.parallel or max(1, min(spec.search.trials, int(cpus)))
    if not isinstance(spec, PredictionSpec):
        return 1
    if spec.workers is not None:
        return spec.workers
    wanted = -(-(size.rows or 0) // ROWS_PER_WORKER)
    return max(1, min(wanted, int(cpus)))


def leaves_trials_open(job: Job) -> bool:
    """Return whether the job is a search that does not declare its number of parallel trials."""
    search = job.training.search if job.training else None
    return search is not None and search.parallel is None


def model_name(job: Job) -> str:
    """Return the name of the job's memory model as messages show it, for example `training/lstm` or
    `command`."""
    return f"training/{job.training.model}" if job.training else str(job.kind)


def is_plain(job: Job) -> bool:
    """Return whether only measurements can determine the memory of the job."""
    return isinstance(job.spec, CommandSpec)


LEAST_ROWS, MOST_ROWS, PER_WORKER = 256, 50_000, 4
PER_PROBE_WORKER = 2


def count_shards(rows: int, workers: int, wanted: int | None, inputs: int = 1) -> int:
    """Return the number of shards of a swarm: each worker gets several shards, so that all workers end at
    about the same time. The number of shards is chosen so that no shard is tiny, and no shard is too large
    for the memory if each row has `inputs` values."""
    if wanted is not None:
        return min(wanted, rows)
    bounded = min(workers * PER_WORKER, -(-rows // LEAST_ROWS))
    most = min(MOST_ROWS, max(LEAST_ROWS, SHARD_CELLS // max(1, inputs)))
    return max(1, bounded, -(-rows // most))


def count_probe_shards(rows: int, workers: int) -> int:
    """Return the smallest number of shards with which a probe can distinguish the first shard of a worker
    from its other shards. With more and smaller shards, a probe would mainly measure the constant cost of
    each shard."""
    return max(1, min(rows, workers * PER_PROBE_WORKER))


def stretch(rows: int, workers: int, wanted: int | None) -> float:
    """Return the ratio of the time of the shards to the time that they would need if rows could be divided
    evenly. The ratio is above 1 if the last round has fewer shards than workers."""
    shards = count_shards(rows, workers, wanted)
    return -(-shards // workers) * workers / shards
