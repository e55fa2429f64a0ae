"""Runs the simulation of a cloud as a process, for scripts and for programs in other languages."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from gridmill.errors import GridmillError, explained
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.machine_host import MachineHost, NoMachines
from gridmill.testing.cloud.namespace_machines import NamespaceMachines


def serve(
    module: str,
    description: str | None,
    simulated: Callable[..., AbstractContextManager[Any]],
    names: Sequence[str],
    words: Sequence[str],
) -> int:
    """Serves until the process gets SIGTERM or SIGINT, and returns the exit code. The process prints one
    line of JSON with the attributes `names` of the simulation: its address and its credentials."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--port", type=int, default=0, help="The port of the server. Default: any free port.")
    parser.add_argument("--seed", type=int, default=0, help="The seed of ids and random faults.")
    parser.add_argument("--machines", choices=("none", "namespaces"), default="none")
    parser.add_argument("--faults", default="{}", help="The fields of CloudFaults, as a JSON object.")
    given = parser.parse_args(words)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        faults = CloudFaults(seed=given.seed)
        faults.change(**json.loads(given.faults))
        host: MachineHost = NamespaceMachines() if given.machines == "namespaces" else NoMachines()
    except GridmillError as error:
        print(explained(error), file=sys.stderr)
        return 1
    with simulated(faults=faults, host=host, seed=given.seed, port=given.port) as simulation:
        print(json.dumps({name: getattr(simulation, name) for name in names}), flush=True)
        ended.wait()
    return 0
