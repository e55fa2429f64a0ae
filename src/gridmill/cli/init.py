"""The command `init` writes a small pipeline that works, with example data, as a start for the user."""

import math
import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from gridmill.cli.session import Json, emit
from gridmill.domain.frozen import dataclass
from gridmill.errors import ConflictError, StorageError

PIPELINE, DATA = "pipeline.yaml", "data/rentals.csv"
_DAYS = 240
_STATIONS = {"harbour": 140, "park": 90}
_TEXT = """\
# A forecast of bicycle rentals: how many will each station rent out tomorrow?
#
#   gridmill plan pipeline.yaml       check it and show what a run would do
#   gridmill run pipeline.yaml        run it; a second run does nothing, as nothing changed
#   gridmill list models              show the models and how good they are
#   gridmill preview NAME/forecast    show the predictions
#
# To use your own data, put your file in place of data/rentals.csv and change the names of its columns below.
pipeline: NAME
description: Bicycle rentals of two stations, forecast a day ahead.

parameters:
  trees: 100                     # gridmill run pipeline.yaml --set trees=200

jobs:
  # A sink loads files into a table. New and changed files are loaded in the next run.
  rentals:
    sink:
      source: data/rentals.csv
      columns: {day: date, rentals: integer}     # the types of the others are inferred
      constraints:                               # rows that violate one are rejected and counted
        - {column: rentals, min: 0, required: true}

  # A dataset builds features and a label. A feature only uses data from before its row's time.
  features:
    dataset:
      basis: {table: rentals, time: day, entity: [station]}
      lags:
        - {column: rentals, steps: [1, 6]}       # the day before, and six days before
      windows:
        - {column: rentals, span: 7d, aggregates: [mean]}
      features:                                  # SQL over the row's columns
        weekday: isodow(day)
      label: {column: rentals, steps: 1}         # the next day's rentals
      split: {validation: 0.15, test: 0.15}      # the last days are held out

  # A training fits a model, which is then evaluated on the held-out days.
  baseline:
    training: {dataset: features, model: naive}  # repeats the last value: the baseline for other models
  trees:
    training: {dataset: features, model: gbdt, trees: "${trees}"}

  # A prediction applies the best of its models, and writes one row for each day of the test split.
  forecast:
    prediction: {dataset: features, models: [baseline, trees]}

  # A command runs any program. It reads the results of the jobs in `needs`, and writes to $GRIDMILL_OUTPUT.
  note:
    needs: [forecast]
    command: |
      echo "The forecast is ready." | tee "$GRIDMILL_OUTPUT/note.txt"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResult:
    """The result that `--json` prints: the name of the pipeline and the written files."""

    pipeline: str
    files: tuple[str, ...]


def init(
    folder: Annotated[
        Path,
        typer.Argument(metavar="[FOLDER]", help="Folder to write into. It is created if it does not exist."),
    ] = Path(),
    json: Json = False,
) -> None:
    """Write a small working pipeline with its data. Existing files are never overwritten."""
    write_example(folder)
    if json:
        return emit(InitResult(pipeline=name_of(folder), files=(str(folder / PIPELINE), str(folder / DATA))))
    print(f"{folder / PIPELINE}: a commented example; its data is in {folder / DATA}")
    print("next:")
    if folder != Path():
        print(f"  cd {folder}")
    print(f"  gridmill run {PIPELINE}")


def write_example(folder: Path) -> None:
    """Write the pipeline and its example data. Raises ConflictError if any of the files already exists,
    StorageError."""
    existing = [name for name in (PIPELINE, DATA) if (folder / name).exists()]
    if existing:
        raise ConflictError(
            f"{', '.join(existing)} exist{'s' * (len(existing) == 1)} already",
            hint="Write into another folder: gridmill init FOLDER",
            place=str(folder),
        )
    try:
        (folder / DATA).parent.mkdir(parents=True, exist_ok=True)
        with (folder / DATA).open("x") as file:
            file.write("\n".join(rows()) + "\n")
        with (folder / PIPELINE).open("x") as file:
            file.write(_TEXT.replace("NAME", name_of(folder)))
    except OSError as error:
        raise StorageError(f"the example cannot be written: {error.strerror}", place=str(folder)) from error


def name_of(folder: Path) -> str:
    """Return the name of the pipeline, which is the name of its folder without characters that are not
    allowed."""
    return re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-_") or "rentals"


def rows() -> Iterator[str]:
    """Yield the lines of the example data, which are the same in each call."""
    draw, first = Random(7), date(2024, 3, 1)
    yield "day,station,temperature,rain,rentals"
    for number in range(_DAYS):
        day = first + timedelta(days=number)
        temperature = 14 + 9 * math.sin((number - 50) / 365 * 2 * math.pi) + draw.gauss(0, 2.5)
        rain = max(0.0, draw.gauss(-1, 3))
        for station, usual in _STATIONS.items():
            weekend = 0.7 if day.isoweekday() > 5 else 1.0
            rented = usual * weekend * (0.5 + temperature / 30) - 6 * rain + draw.gauss(0, 6)
            yield f"{day.isoformat()},{station},{temperature:.1f},{rain:.1f},{max(0, round(rented))}"
