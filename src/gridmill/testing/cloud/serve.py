"""Runs the simulation of a cloud or of a batch service as a process, for scripts and for programs in other
languages."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from gridmill.errors import GridmillError, explained
from gridmill.testing.cloud.cloud_faults import BatchFaults, CloudFaults
from gridmill.testing.cloud.containers import Image
from gridmill.testing.cloud.machine_host import MachineHost, NoMachines
from gridmill.testing.cloud.namespace_machines import NamespaceMachines

_Simulated = Callable[..., AbstractContextManager[Any]]


def serve_machines(
    module: str, description: str | None, simulated: _Simulated, names: Sequence[str], words: Sequence[str]
) -> int:
    """Serves a cloud until the process gets SIGTERM or SIGINT, and returns the exit code. The process prints
    one line of JSON with the attributes `names` of the simulation: its address and its credentials."""
    options = _options(module, description, CloudFaults)
    options.add_argument("--machines", choices=("none", "namespaces"), default="none")
    given = options.parse_args(words)

    def simulation(faults: CloudFaults) -> AbstractContextManager[Any]:
        host: MachineHost = NamespaceMachines() if given.machines == "namespaces" else NoMachines()
        return simulated(faults=faults, host=host, seed=given.seed, port=given.port)

    def started(made: Any) -> Mapping[str, Any]:  # noqa: ANN401  any simulation
        return {name: getattr(made, name) for name in names}

    return _serve(simulation, CloudFaults(seed=given.seed), given.faults, started)


def batch_options(module: str, description: str | None) -> argparse.ArgumentParser:
    """Returns the options of all batch services."""
    made = _options(module, description, BatchFaults)
    made.add_argument(
        "--images",
        default="{}",
        help='The command of each image, as a JSON object: {"worker:1": ["python3", "-m", "worker"]}.',
    )
    return made


def serve_batch(
    simulated: _Simulated,
    given: argparse.Namespace,
    started: Callable[[Any], Mapping[str, Any]],
    notice_seconds: float,
) -> int:
    """Serves a batch service until the process gets SIGTERM or SIGINT, and returns the exit code. `started`
    prepares the simulation, and returns what the process prints as one line of JSON."""

    def simulation(faults: CloudFaults) -> AbstractContextManager[Any]:
        images = {name: Image(entry_point=tuple(words)) for name, words in json.loads(given.images).items()}
        return simulated(images=images, faults=faults, seed=given.seed, port=given.port)

    faults = BatchFaults(seed=given.seed, notice_seconds=notice_seconds)
    return _serve(simulation, faults, given.faults, started)


def _options(module: str, description: str | None, faults: type[CloudFaults]) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    made.add_argument("--port", type=int, default=0, help="The port of the server. Default: any free port.")
    made.add_argument("--seed", type=int, default=0, help="The seed of ids and random faults.")
    made.add_argument("--faults", default="{}", help=f"The fields of {faults.__name__}, as a JSON object.")
    return made


def _serve(
    simulation: Callable[[CloudFaults], AbstractContextManager[Any]],
    faults: CloudFaults,
    changes: str,
    started: Callable[[Any], Mapping[str, Any]],
) -> int:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        faults.change(**json.loads(changes))
        with simulation(faults) as made:
            print(json.dumps(started(made)), flush=True)
            ended.wait()
    except GridmillError as error:
        print(explained(error), file=sys.stderr)
        return 1
    return 0
