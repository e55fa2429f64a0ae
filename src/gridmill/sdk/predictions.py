"""The client method that answers a large request to a service by a prediction job."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from uuid import uuid4

from gridmill.domain.artifact import ArtifactKind
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.service import Service
from gridmill.domain.service_features import FeatureDefinition
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.domain.states import FINISHED_RUNS
from gridmill.domain.views import RunView
from gridmill.errors import GridmillError, InputError
from gridmill.ports.grid import Grid
from gridmill.sdk.artifacts import VersionVerbs
from gridmill.sdk.loaded import Version, plugged
from gridmill.sdk.runs import RunVerbs, Tick
from gridmill.sdk.services import ServiceVerbs

ROWS, TABLE, PREDICTIONS = "rows", "table", "predictions"
"""The names of the jobs: the load of the rows, the dataset, and the swarm."""
CHECKING, WRITING = "checking rows", "writing rows"
"""The steps of a request in which the client reads its rows."""
_CHAIN = (
    "{version} reads predictions of other models, which the service computes only for HTTP requests. Send "
    "the rows to the service, or predict a version of the dataset, which has all features: "
    "--data PIPELINE/DATASET"
)
_POSITION, _FILE = "gridmill_position", "rows.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProgress:
    """The progress of a step of a large request in the client: the rows so far, and all rows or bytes. A
    number that is unknown is 0."""

    step: str
    rows: int
    total_rows: int = 0
    bytes_read: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPredictions:
    """The answer to a large request: the version that has answered, the run, the file, and its rows.

    `tables` are the versions of the tables from which features were computed by key. `not_present` are the
    numbers of values of these features that were `stale`, `defaulted` or `missing`, by feature and status.
    """

    service: str
    version: str
    run: str
    path: str
    rows: int
    tables: tuple[str, ...] = ()
    not_present: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class PredictionVerbs(RunVerbs, VersionVerbs, ServiceVerbs):
    """The client method for large requests."""

    def predict(
        self,
        service: str,
        data: str | Path,
        output: str | Path,
        *,
        overwrite: bool = False,
        features: str = "",
        on_tick: Callable[[Tick], None] | None = None,
        on_rows: Callable[[RowProgress], None] | None = None,
    ) -> ServedPredictions:
        """Predict all rows of a file or a table with the version that a service serves now, and write the
        rows with their predictions to `output` (`.csv`, `.jsonl` or `.parquet`).

        `data` is such a file, or a version of a sink or dataset (`weather/hourly@3`). The rows are read in
        pieces, so that a file of any size needs little memory, and a row that the service would refuse is
        refused with the same reason. If the model reads sequences, the file is JSON Lines, and each line is a
        list of objects. With a canary, the version with the larger part of the requests is used.

        If the service computes features by key, the rows have keys, basis features and optionally an as-of
        time, as in a request, and the features are computed from the view of the service. With `features`
        "status", the answer has a column `NAME_status` for each feature that is computed by key, and with
        "values" also its value.

        The workers are started for the request, and end with it, also if this method is interrupted. The
        service itself gets no requests. `on_rows` is called while rows are checked or written, and `on_tick`
        while workers predict. Raises DataError that names missing columns, or the line and the field of a
        wrong value; InputError, NotFoundError, JobError.
        """
        target = Path(output)
        _check_target(target, overwrite=overwrite)
        served = self.service(service).service
        version = self.load(served_version(served))
        rows = self._rows(served, version, data, target.suffix, features)
        told = on_rows or _ignored
        with _draft(target) as file, TemporaryDirectory(prefix="gridmill-predict-") as folder:
            count = rows.write_features(Path(folder) / _FILE, _told(CHECKING, told))
            pipeline = _pipeline(
                f"predict-{service}-{uuid4().hex[:8]}", folder, version, bool(served.settings.trust)
            )
            run = self.attend(partial(_started, prepared=self.prepare(pipeline))).run.id
            try:
                self.wait(run, on_tick=on_tick, check=True)
                found = self.load(f"{pipeline.name}/{PREDICTIONS}").to_batches()
                written = plugged("write answer")(rows, count, found, file, _told(WRITING, told, count))
            finally:
                self._end(run)
                self._remove(pipeline.name)
        return ServedPredictions(
            service=service,
            version=version.id,
            run=run,
            path=str(target.absolute()),
            rows=written,
            tables=self._tables(served.features.get(version.id), rows.table_versions),
            not_present={name: dict(counted) for name, counted in rows.not_present.items()},
        )

    def _rows(self, served: Service, version: Version, data: str | Path, ending: str, features: str) -> Any:  # noqa: ANN401  the rows of a request
        """Return the rows of the request. A version of a dataset has all features of the model."""
        source, label, is_dataset = self._source(data)
        definition = served.features.get(version.id)
        is_chain = definition is not None and bool(definition.stages)
        if features and (definition is None or is_chain or is_dataset):
            raise InputError(
                f"no features of {version.id} are computed by key for {label}",
                hint="Leave out --features.",
                place="features",
            )
        return plugged("open request")(
            source,
            label,
            version.path,
            ending,
            _CHAIN.format(version=version.id) if is_chain else "",
            root=Path(version.root),
            definition=None if is_chain or is_dataset else definition,
            wish=features,
        )

    def _tables(
        self, definition: FeatureDefinition | None, table_versions: Mapping[str, int]
    ) -> tuple[str, ...]:
        """Return the ids of versions of tables, by their version numbers in the storage root."""
        ids: list[str] = []
        for name, number in sorted(table_versions.items()):
            artifact = definition.tables.get(name, name) if definition is not None else name
            versions = self.list_artifacts(name=artifact)
            found = (one.id for one in versions if one.output.table_version == number)
            ids.append(next(found, f"{artifact} (version {number} of the table)"))
        return tuple(ids)

    def _source(self, data: str | Path) -> tuple[Path | Callable[[], Any], str, bool]:
        """Return the file, or the function that opens the table, the text that names it, and whether it is a
        version of a dataset."""
        if Path(data).exists() or "/" not in str(data) or Path(data).suffix:
            return Path(data), str(data), False
        version = self.load(str(data))
        opened = partial(plugged("batches"), version.path, version.artifact)
        return opened, version.id, version.kind == ArtifactKind.DATASET

    def _end(self, run: str) -> None:
        """Stop the run if it is active, and wait for its end, so that its workers have ended."""
        if self.status(run).run.state not in FINISHED_RUNS:
            self.stop(run)
            self.wait(run)

    def _remove(self, pipeline: str) -> None:
        """Delete the versions of a request, from the last to the first."""
        for job in (PREDICTIONS, TABLE, ROWS):
            try:
                self.remove_artifact(f"{pipeline}/{job}", force=True)
            except GridmillError:  # the run has ended before this job, so that there is no version
                continue
        try:
            self.grid.remove_pipeline(pipeline)
        except GridmillError:
            return


def _started(grid: Grid, prepared: Pipeline) -> RunView:
    return grid.start_run(prepared)


def _ignored(progress: RowProgress) -> None:
    """Do nothing."""


def _told(
    step: str, on_rows: Callable[[RowProgress], None], total: int = 0
) -> Callable[[int, int, int], None]:
    def told(rows: int, done: int, every: int) -> None:
        on_rows(RowProgress(step=step, rows=rows, total_rows=total, bytes_read=done, total_bytes=every))

    return told


def served_version(service: Service) -> str:
    """Return the version that gets most of the requests of a service."""
    is_canary = bool(service.canary) and service.canary_percent > 50.0
    return service.canary if is_canary else service.version


def _features(version: Version) -> tuple[str, ...]:
    """Return the names of the features of a model."""
    return tuple(encoding.column for encoding in plugged("card")(version.path).encodings)


def _pipeline(name: str, folder: str, version: Version, trust: bool) -> Pipeline:
    """Return the pipeline that predicts the rows of a file of features. If the model reads sequences, the
    file has all rows of each sequence, and only the last of them is predicted."""
    card = plugged("card")(version.path)
    names = _features(version)
    columns = [_quoted(one) for one in names]
    columns += [f"cast(null as {kind}) as {_quoted(one)}" for one, kind in _keys(card, names).items()]
    split = None
    if card.sequence is not None:
        split, last = "test", f"{_quoted(_POSITION)} % {card.sequence} = {card.sequence - 1}"
        columns.append(f"case when {last} then 'test' else 'train' end as \"split\"")
    sql = f"select {', '.join(columns)} from {ROWS} order by {_quoted(_POSITION)}"
    return Pipeline(
        name=name,
        folder=folder,
        jobs=(
            Job(name=ROWS, sink=SinkSpec(source=Source(path=_FILE))),
            Job(name=TABLE, dataset=DatasetSpec(tables=(ROWS,), sql=sql)),
            Job(
                name=PREDICTIONS,
                prediction=PredictionSpec(dataset=TABLE, models=(version.id,), split=split, trust=trust),
            ),
        ),
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _keys(card: Any, names: Sequence[str]) -> Mapping[str, str]:  # noqa: ANN401  the card of a model
    """Return the columns that identify rows, with their SQL types. The model does not compute with them."""
    types = {**dict.fromkeys(card.entity, "varchar"), **({card.time: "timestamp"} if card.time else {})}
    return {name: kind for name, kind in types.items() if name not in names}


def _check_target(target: Path, *, overwrite: bool) -> None:
    """Raise InputError if the answer cannot be written to `target`."""
    endings = plugged("answer endings")()
    if target.suffix not in endings:
        raise InputError(f"{target} must end in {', '.join(endings)}", place="output")
    if target.is_dir():
        raise InputError(f"{target} is a folder", hint="Name a file.", place="output")
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists", hint="Name another file, or add --force.", place="output")
    if not target.absolute().parent.is_dir():
        raise InputError(
            f"the folder {target.absolute().parent} does not exist",
            hint=f"Make it, or name another file: mkdir -p {target.absolute().parent}",
            place="output",
        )


@contextmanager
def _draft(target: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `target`, which replaces it at the end. If an error is raised, the
    temporary file is deleted."""
    draft = target.with_name(f".{target.name}.{uuid4().hex[:8]}")
    try:
        with draft.open("wb") as file:
            yield file
        draft.replace(target)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written: {error.strerror or error}",
            hint="Name a file in a folder that is writable and has enough space.",
            place="output",
        ) from error
    finally:
        draft.unlink(missing_ok=True)
