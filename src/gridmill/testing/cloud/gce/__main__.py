"""Runs a simulated Compute Engine as a process: `python -m gridmill.testing.cloud.gce --machines namespaces`.

It prints one line of JSON with the address, the project and the key of a service account, and serves until it
gets SIGTERM or SIGINT.
"""

import sys

from gridmill.testing.cloud.gce.simulation import simulated_gce
from gridmill.testing.cloud.serve import serve_machines

_NAMES = ("endpoint_url", "project", "service_account_key")

if __name__ == "__main__":
    sys.exit(serve_machines("gridmill.testing.cloud.gce", __doc__, simulated_gce, _NAMES, sys.argv[1:]))
