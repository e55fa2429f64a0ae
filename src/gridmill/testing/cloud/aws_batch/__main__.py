"""Runs a simulated AWS Batch as a process: `python -m gridmill.testing.cloud.aws_batch --images '{…}'`.

It prints one line of JSON with the address and the credentials, and serves until it gets SIGTERM or SIGINT.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.testing.cloud.aws_batch.records import Kind
from gridmill.testing.cloud.aws_batch.simulation import AwsBatchSimulation, simulated_aws_batch
from gridmill.testing.cloud.serve import batch_options, serve_batch

_NOTICE_SECONDS = 120.0


def main(words: Sequence[str]) -> int:
    """Serves until a signal comes, and returns the exit code."""
    options = batch_options("gridmill.testing.cloud.aws_batch", __doc__)
    options.add_argument(
        "--queues",
        default='{"queue": "EC2"}',
        help="The kind of the compute environment of each queue, as a JSON object.",
    )
    given = options.parse_args(words)

    def started(simulation: AwsBatchSimulation) -> Mapping[str, Any]:
        for queue, kind in json.loads(given.queues).items():
            simulation.add_environment(f"{queue}-environment", kind=Kind(kind))
            simulation.add_queue(queue, f"{queue}-environment")
        return {name: getattr(simulation, name) for name in ("endpoint_url", "access_key", "secret_key")}

    return serve_batch(simulated_aws_batch, given, started, _NOTICE_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
