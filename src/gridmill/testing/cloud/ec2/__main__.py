"""Runs a simulated EC2 as a process: `python -m gridmill.testing.cloud.ec2 --machines namespaces`.

It prints one line of JSON with the address and the credentials, and serves until it gets SIGTERM or SIGINT.
"""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence

from gridmill.errors import GridmillError, explained
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.ec2.simulation import simulated_ec2
from gridmill.testing.cloud.machine_host import MachineHost, NoMachines
from gridmill.testing.cloud.namespace_machines import NamespaceMachines


def main(words: Sequence[str]) -> int:
    """Serves until a signal comes, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gridmill.testing.cloud.ec2", description=__doc__)
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
    with simulated_ec2(faults=faults, host=host, seed=given.seed, port=given.port) as simulation:
        names = ("endpoint_url", "access_key", "secret_key")
        print(json.dumps({name: getattr(simulation, name) for name in names}), flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
