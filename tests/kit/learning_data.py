"""Small datasets in the form that dataset jobs write, and contexts to run jobs on them."""

import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.jobs.context import CODE, JobContext

ENTITIES = ("a", "b", "c")
_EVENTS = dict[int, tuple[int, int]]()
"""The open files of events, by descriptor: the device and the number of each."""


def series(rows: int = 400, seed: int = 0, ahead: int = 3) -> dict[str, object]:
    """Noisy waves of three entities, hourly; the label is the value `ahead` rows later."""
    random = np.random.default_rng(seed)
    parts = []
    for number, name in enumerate(ENTITIES):
        hour = np.arange(rows + ahead)
        value = 50 + 10 * np.sin(2 * np.pi * (hour + 5 * number) / 24) + random.normal(0, 0.3, rows + ahead)
        humid = random.random(rows)
        humid[random.random(rows) < 0.05] = np.nan
        parts.append(
            {
                "city": np.full(rows, name),
                "time": np.datetime64("2024-01-01T00", "us") + hour[:rows] * np.timedelta64(1, "h"),
                "value": value[:rows],
                "humid": humid,
                "wave": np.sin(2 * np.pi * (hour[:rows] + 5 * number) / 24),
                "slope": np.cos(2 * np.pi * (hour[:rows] + 5 * number) / 24),
                "ahead": value[ahead:],
                "split": np.repeat(
                    ["train", "validation", "test"], [rows // 2, rows // 4, rows - rows * 3 // 4]
                ),
            }
        )
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def write_dataset(
    root: Path,
    columns: dict[str, object],
    label: str | None = "ahead",
    files: int = 2,
    number: int = 1,
    **details: object,
) -> Artifact:
    """The version `number` of the dataset of these columns in `files` files; every column but time, split
    and label is a feature."""
    uri = "datasets/d" if number == 1 else f"datasets/d-{number}"
    folder = root / uri
    folder.mkdir(parents=True)
    table = pa.table({key: pa.array(values, from_pandas=True) for key, values in columns.items()})
    step = -(-table.num_rows // files) or 1
    for part in range(files):
        pq.write_table(
            table.slice(part * step, step),
            folder / f"part-{part:04}.parquet",
            row_group_size=max(1, step // 3),
        )
    known = {
        "features": [name for name in columns if name not in ("time", "split", label)],
        "label": label,
        "label_column": "value",
        "time": "time",
        "entity": ["city"],
    }
    output = Output(kind=ArtifactKind.DATASET, uri=uri, details=known | details)
    return Artifact(id=f"p/d@{number}", name="p/d", number=number, output=output, fingerprint=f"f{number}")


def artifact_of(name: str, output: Output) -> Artifact:
    """An output as the control node commits it."""
    return Artifact(id=f"p/{name}@1", name=f"p/{name}", number=1, output=output, fingerprint="f")


def training_context(
    root: Path, dataset: Artifact, model: str, name: str = "m", **options: object
) -> JobContext:
    """A context of one training."""
    job = Job(name=name, training=TrainingSpec(dataset="d", model=ModelKind(model), **options))
    return context_of(root, job, {"d": dataset})


def prediction_context(
    root: Path, dataset: Artifact, models: dict[str, Artifact], cpus: float = 2, **options: object
) -> JobContext:
    """A context of one prediction."""
    job = Job(name="swarm", prediction=PredictionSpec(dataset="d", models=tuple(models), **options))
    return context_of(root, job, {"d": dataset, **models}, cpus)


def context_of(root: Path, job: Job, inputs: dict[str, Artifact], cpus: float = 1) -> JobContext:
    work = root / "work" / job.name
    work.mkdir(parents=True, exist_ok=True)
    order = AttemptOrder(
        attempt_id=f"p-1.{job.name}.1",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=job,
        given=Amounts(cpus=cpus, memory_bytes=2**30),
        root=str(root),
        output_uri=f"outputs/{job.name}",
        inputs=tuple(Input(name=name, artifact=artifact) for name, artifact in inputs.items()),
    )
    return JobContext(order=order, work=work, events_fd=_events(work / "events"))


def _events(path: Path) -> int:
    """Opens the file of the events of a context, and closes those of contexts whose folders are deleted."""
    for descriptor, file in tuple(_EVENTS.items()):
        with suppress(OSError):
            now = os.fstat(descriptor)
            if (now.st_dev, now.st_ino) == file and now.st_nlink == 0:
                os.close(descriptor)
                del _EVENTS[descriptor]
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    found = os.fstat(opened)
    _EVENTS[opened] = found.st_dev, found.st_ino
    return opened


def events_of(context: JobContext) -> list[dict[str, object]]:
    """What the job said so far."""
    return [json.loads(line) for line in (context.work / "events").read_text().splitlines()]


def by_code(root: Path, answer: str, columns: dict[str, object] | None = None) -> JobContext:
    """A training by a function that answers so for classes `high` and `low`."""
    known = series(100)
    known |= {"ahead": np.where(known["ahead"] > 50, "high", "low")} | (columns or {})
    dataset = write_dataset(root, known)
    made = training_context(root, dataset, "custom", script="t.py:fit", predict="t.py:predict")
    (made.work / CODE).mkdir()
    script = f"import numpy as np\ndef fit(data): pass\ndef predict(folder, x):\n    return {answer}\n"
    (made.work / CODE / "t.py").write_text(script)
    return made
