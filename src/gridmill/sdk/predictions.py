"""The client method that answers a large request to a service by a prediction job."""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.service import Service
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.errors import GridmillError, InputError
from gridmill.sdk.artifacts import VersionVerbs
from gridmill.sdk.loaded import Version, plugged
from gridmill.sdk.runs import RunVerbs, Tick
from gridmill.sdk.services import ServiceVerbs

ROWS, TABLE, PREDICTIONS = "rows", "table", "predictions"
"""The names of the jobs: the load of the rows, the dataset, and the swarm."""
_POSITION = "gridmill_position"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPredictions:
    """The answer to a large request: the version that has answered, the run, the file, and its rows."""

    service: str
    version: str
    run: str
    path: str
    rows: int


class PredictionVerbs(RunVerbs, VersionVerbs, ServiceVerbs):
    """The client method for large requests."""

    def predict(
        self,
        service: str,
        data: str | Path,
        output: str | Path,
        *,
        overwrite: bool = False,
        on_tick: Callable[[Tick], None] | None = None,
    ) -> ServedPredictions:
        """Predict all rows of a file or a table with the version that a service serves now, and write the
        rows with their predictions to `output` (`.csv`, `.jsonl` or `.parquet`).

        `data` is such a file, or a version of a sink or dataset (`weather/hourly@3`). With a canary, the
        version with the larger part of the requests is used. The rows must have all features of the model,
        also those that the service computes by key. The workers are started for the request, and end with
        it. The service itself gets no requests. Raises DataError that names missing columns, or the row and
        the column of a wrong value; InputError, NotFoundError, JobError.
        """
        target, endings = Path(output), plugged("answer endings")()
        if target.suffix not in endings:
            raise InputError(f"{target} must end in {', '.join(endings)}", place="output")
        if target.exists() and not overwrite:
            raise InputError(f"{target} exists", hint="Name another file, or add --force.", place="output")
        served = self.service(service).service
        version = self.load(served_version(served))
        features = _features(version)
        rows = plugged("checked request")(self._rows(data, features), features, str(data))
        name = f"predict-{service}-{uuid4().hex[:8]}"
        with TemporaryDirectory(prefix="gridmill-predict-") as folder:
            plugged("write request")(rows, features, Path(folder) / "rows.parquet")
            pipeline = _pipeline(name, folder, version, bool(served.settings.trust))
            try:
                view = self.run(pipeline, check=True, on_tick=on_tick)
                found = self.load(f"{name}/{PREDICTIONS}").to_arrow()
            finally:
                self._remove(name)
        count = _write(target, rows, found)
        path = str(target.absolute())
        return ServedPredictions(service=service, version=version.id, run=view.run.id, path=path, rows=count)

    def _rows(self, data: str | Path, features: Mapping[str, str]) -> Any:  # noqa: ANN401  an Arrow table
        if Path(data).exists() or "/" not in str(data) or Path(data).suffix:
            return plugged("read request")(Path(data), features)
        return self.load(str(data)).to_arrow()

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


def served_version(service: Service) -> str:
    """Return the version that gets most of the requests of a service."""
    is_canary = bool(service.canary) and service.canary_percent > 50.0
    return service.canary if is_canary else service.version


def _features(version: Version) -> Mapping[str, str]:
    """Return the Arrow types of the features of a model, by name. Raises InputError for a model that reads
    sequences."""
    details = version.artifact.output.details
    if details.get("sequence"):
        raise InputError(
            f"{version.id} reads sequences of rows, so the rows of a request do not suffice",
            hint="Declare a prediction in a pipeline, whose dataset has the entity and the time of each row.",
            place="service",
        )
    types = details.get("feature_types") or {}
    return {name: types.get(name, "double") for name in details.get("features") or ()}


def _pipeline(name: str, folder: str, version: Version, trust: bool) -> Pipeline:
    features = ", ".join(f'"{_quoted(one)}"' for one in _features(version))
    nulls = (f', cast(null as {kind}) as "{_quoted(one)}"' for one, kind in _keys(version).items())
    keys = "".join(nulls)
    sql = f'select {features}{keys} from {ROWS} order by "{_POSITION}"'
    source = Source(path="rows.parquet")
    return Pipeline(
        name=name,
        folder=folder,
        jobs=(
            Job(name=ROWS, sink=SinkSpec(source=source)),
            Job(name=TABLE, dataset=DatasetSpec(tables=(ROWS,), sql=sql)),
            Job(
                name=PREDICTIONS,
                prediction=PredictionSpec(dataset=TABLE, models=(version.id,), split=None, trust=trust),
            ),
        ),
    )


def _quoted(name: str) -> str:
    return name.replace('"', '""')


def _keys(version: Version) -> Mapping[str, str]:
    """Return the columns that identify rows, with their SQL types. The model does not compute with them."""
    card = plugged("card")(version.path)
    types = {**dict.fromkeys(card.entity, "varchar"), **({card.time: "timestamp"} if card.time else {})}
    return {name: kind for name, kind in types.items() if name not in _features(version)}


def _write(target: Path, rows: Any, predictions: Any) -> int:  # noqa: ANN401  Arrow tables
    """Write the answer completely or not at all."""
    partial_file = target.with_name(f".{target.name}.{uuid4().hex[:8]}")
    try:
        with partial_file.open("wb") as file:
            count: int = plugged("write answer")(rows, predictions, file, target.suffix)
        partial_file.replace(target)
    finally:
        partial_file.unlink(missing_ok=True)
    return count
