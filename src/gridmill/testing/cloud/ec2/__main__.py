"""Runs a simulated EC2 as a process: `python -m gridmill.testing.cloud.ec2 --machines namespaces`.

It prints one line of JSON with the address and the credentials, and serves until it gets SIGTERM or SIGINT.
"""

import sys

from gridmill.testing.cloud.ec2.simulation import simulated_ec2
from gridmill.testing.cloud.serve import serve_machines

_NAMES = ("endpoint_url", "access_key", "secret_key")

if __name__ == "__main__":
    sys.exit(serve_machines("gridmill.testing.cloud.ec2", __doc__, simulated_ec2, _NAMES, sys.argv[1:]))
