"""Runs the simulation of a batch service as a process, for scripts and for programs in other languages."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from gridmill.errors import GridmillError, explained
from gridmill.testing.cloud.batch_faults import BatchFaults
from gridmill.testing.cloud.containers import Image


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Returns the options of all batch services."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    made.add_argument("--port", type=int, default=0, help="The port of the server. Default: any free port.")
    made.add_argument("--seed", type=int, default=0, help="The seed of ids and random faults.")
    made.add_argument("--faults", default="{}", help="The fields of BatchFaults, as a JSON object.")
    made.add_argument(
        "--images",
        default="{}",
        help='The command of each image, as a JSON object: {"worker:1": ["python3", "-m", "worker"]}.',
    )
    return made


def serve(
    simulated: Callable[..., AbstractContextManager[Any]],
    given: argparse.Namespace,
    started: Callable[[Any], Mapping[str, Any]],
    notice_seconds: float,
) -> int:
    """Serves until the process gets SIGTERM or SIGINT, and returns the exit code. `started` prepares the
    simulation, and returns what the process prints as one line of JSON."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        faults = BatchFaults(seed=given.seed, notice_seconds=notice_seconds)
        faults.change(**json.loads(given.faults))
        images = _images(json.loads(given.images))
        with simulated(images=images, faults=faults, seed=given.seed, port=given.port) as simulation:
            print(json.dumps(started(simulation)), flush=True)
            ended.wait()
    except GridmillError as error:
        print(explained(error), file=sys.stderr)
        return 1
    return 0


def _images(given: Mapping[str, Sequence[str]]) -> dict[str, Image]:
    return {name: Image(entry_point=tuple(words)) for name, words in given.items()}
