"""Counts the functions that a run's specification passes from the command to the pod, and an event back.

`python -m bench.stops` runs `gridmill run` on one job with a home of its own, then `gridmill logs`, and
follows markers through all of their processes: two in the pipeline, one in the line that the job prints. The
event goes from the pod into the log on the disk. What reads the log makes the text anew and gives it on in
iterators, which are not looked into: of `gridmill logs` the function that prints is followed. It prints each
stop.

- A function *receives* a value if an argument of it (but `self`) holds its markers: a text, bytes, a
  collection or record, a transaction, or a call that waits with it (a partial, a closure). The file's path
  stands for the pipeline. Only Gridmill's functions count.
- The value is *handed over* where it leaves a process, enters the ledger, or becomes the process of the job:
  `ENDS` names these functions. The functions that are active at that moment are on the way.
- A *stop* is a function on the way that has received the value, or one that receives it and returns it,
  changed or not, to a function on the way or to another stop, before the value is handed over. A function
  that only looks at the value, such as a check or a size, is none.
- `gridmill.declarations` reads a file as a whole: what it calls of its own is not counted (`INSIDE`). A
  provenance, which says what a version was made from, is another value (`OTHERS`).
- `gridmill.domain.frozen` does what the standard library's `dataclasses` does, and is not counted (`TOOLS`).
- A function counts once in each process, however often it is called.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from gridmill.domain.frozen import dataclass

FOLDER = "GRIDMILL_BENCH_STOPS"
"""Variable that names the folder in which each process writes its stops."""
# a function has to hold both: one that receives a part of it is no stop
SPECIFICATION = ("specification-5d1f", "stops-5d1f")
EVENT = ("event-5d1f",)
FILE = "file-5d1f.yaml"
PIPELINE = """
pipeline: {name}
jobs:
  job:
    command:
      run: printf '%s%s\\n' {begin} {end}; true {command}
"""
WAYS = {"specification": SPECIFICATION, "event": EVENT}
_RUN_SECONDS = 120.0

ENDS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "specification": {
        "cli": frozenset({"gridmill.rpc.protocol:send_frame"}),
        "control": frozenset(
            {
                "gridmill.control.ledger:Transaction.put",
                "gridmill.scheduler.snapshot:Snapshot.put",
                "gridmill.transport.server:PodLinkServer.send",
            }
        ),
        "pod": frozenset({"gridmill.pod.supervisor:Supervisor._open", "gridmill.pod.program:execute"}),
    },
    "event": {
        "pod": frozenset(
            {"gridmill.pod.journal:Journal.append", "gridmill.transport.pod_side:StreamLink.send"}
        ),
        "control": frozenset(
            {
                "gridmill.transport.server:PodLinkServer._deliver",
                "gridmill.control.steps.pod_events:apply_event",
                "gridmill.control.ledger:Ledger.stage",
                "gridmill.storage.log_writer:RunWriter.append",
            }
        ),
        "cli": frozenset({"gridmill.cli.format:for_terminal"}),
    },
}
"""By what is followed and by process, the functions that hand it over."""
INSIDE = ("gridmill.declarations",)
"""Packages of which only the function that others call counts."""
TOOLS = ("gridmill.domain.frozen",)
"""Modules that are not counted."""
OTHERS = frozenset({"Provenance", "Control", "Dialled", "EmbeddedNode"})
"""Classes of records, and of what holds everything, that are not looked into."""
LAST = frozenset({"gridmill.rpc.protocol:send_frame", "gridmill.transport.server:PodLinkServer.send"})
"""Functions after which the value has left the process for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A function that the value passes, in a process: `cli`, `control`, `pod` or `job`."""

    process: str
    function: str


def count(way: str, folder: Path) -> tuple[Stop, ...]:
    """The stops of `specification` or `event` in a run in that folder, in order."""
    stops: dict[Stop, None] = {}
    for process in ENDS[way]:
        files = sorted(
            (folder / "stops").glob(f"{way}.{process}.*"), key=lambda path: path.stat().st_mtime_ns
        )
        for path in files:
            stops.update(
                dict.fromkeys(Stop(process=process, function=line) for line in path.read_text().splitlines())
            )
    return tuple(stops)


def follow(folder: Path) -> None:
    """Run one job in that folder, with both markers, and print its log. Raises CalledProcessError."""
    for name in ("stops", "tracer", "project"):
        (folder / name).mkdir()
    (folder / "tracer" / "sitecustomize.py").write_text("from bench.stops_tracer import begin\n\nbegin()\n")
    begin, end = EVENT[0][:3], EVENT[0][3:]  # so that the command does not hold the line that it prints
    command, name = SPECIFICATION
    text = PIPELINE.format(name=name, begin=begin, end=end, command=command)
    (folder / "project" / FILE).write_text(text)
    root = Path(__file__).resolve().parents[1]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GRIDMILL_")},
        "GRIDMILL_HOME": str(folder / "home"),
        "PYTHONPATH": f"{folder / 'tracer'}:{root}",
        FOLDER: str(folder / "stops"),
    }
    for words in (("run", str(folder / "project" / FILE)), ("logs", name)):
        called = [sys.executable, "-m", "gridmill", *words]
        subprocess.run(called, env=environment, check=True, timeout=_RUN_SECONDS)


def shown(way: str, stops: tuple[Stop, ...]) -> Iterator[str]:
    """A line for each stop."""
    yield f"{way}: {len(stops)} stops"
    yield from (f"  {number:3} {stop.process:8} {stop.function}" for number, stop in enumerate(stops, 1))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gridmill-stops-") as name:
        follow(Path(name))
        for way in WAYS:
            print("\n".join(shown(way, count(way, Path(name)))))


if __name__ == "__main__":
    main()
