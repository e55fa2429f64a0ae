"""Runs a simulated Lambda Cloud as a process: `python -m gridmill.testing.cloud.lambda_cloud`.

It prints one line of JSON with the address and the API key, and serves until it gets SIGTERM or SIGINT.
"""

import sys

from gridmill.testing.cloud.lambda_cloud.simulation import simulated_lambda
from gridmill.testing.cloud.serve import serve_machines

_NAMES = ("endpoint_url", "api_key")

if __name__ == "__main__":
    sys.exit(
        serve_machines("gridmill.testing.cloud.lambda_cloud", __doc__, simulated_lambda, _NAMES, sys.argv[1:])
    )
