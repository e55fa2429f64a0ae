"""Runs a simulated Google Cloud Batch as a process: `python -m gridmill.testing.cloud.gcp_batch --images
'{…}'`.

It prints one line of JSON with the address, the project and the content of a key file, and serves until it
gets SIGTERM or SIGINT.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.testing.cloud.gcp_batch.simulation import (
    NOTICE_SECONDS,
    GcpBatchSimulation,
    simulated_gcp_batch,
)
from gridmill.testing.cloud.serve import batch_options, serve_batch


def main(words: Sequence[str]) -> int:
    """Serves until a signal comes, and returns the exit code."""
    given = batch_options("gridmill.testing.cloud.gcp_batch", __doc__).parse_args(words)
    return serve_batch(simulated_gcp_batch, given, _started, NOTICE_SECONDS)


def _started(simulation: GcpBatchSimulation) -> Mapping[str, Any]:
    return {
        "endpoint_url": simulation.endpoint_url,
        "project": simulation.project,
        "key_file": simulation.key_file(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
