"""`python -m gridmill.bootstrap.batch_attempt BUCKET ATTEMPT [ENDPOINT]` runs an attempt in the container of
a batch service. The credentials of the bucket are those of the container.

In a job with several nodes, ATTEMPT is the attempt of rank 0, and each node runs the attempt of its rank."""

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from gridmill.domain.gang import member_id
from gridmill.errors import GridmillError
from gridmill.process_log import log_to_standard_error
from gridmill.sites.batch.exchange import open_exchange
from gridmill.sites.batch.runner import AttemptRunner
from gridmill.transport.server import PodLinkServer

# the variables of multi-node parallel jobs of AWS Batch
_NODE = "AWS_BATCH_JOB_NODE_INDEX"
_FIRST_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"

_ENDS = (signal.SIGTERM, signal.SIGINT)


def main(words: Sequence[str]) -> int:
    """Returns the exit code of the container: 0 if the attempt succeeded, 1 if it did not, and 2 if the
    attempt could not be read."""
    url, first, *more = words
    attempt_id = member_id(first, int(os.environ.get(_NODE, "0")))
    options = {"endpoint": more[0]} if more else {}
    for number in _ENDS:
        signal.signal(number, lambda *_: sys.exit(1))  # the folder goes, too
    folder = Path(tempfile.mkdtemp(prefix="gridmill-"))
    received = threading.Event()
    links = PodLinkServer(received.set)
    try:
        socket = folder / "links.sock"
        links.listen_unix(socket)
        runner = AttemptRunner(
            open_exchange(url, options),
            attempt_id,
            folder,
            links,
            f"unix:{socket}",
            received,
            os.environ.get(_FIRST_ADDRESS, ""),
        )
        for number in _ENDS:
            signal.signal(number, lambda *_: runner.terminate())
        return runner.run()
    except GridmillError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    finally:
        links.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    log_to_standard_error()
    raise SystemExit(main(sys.argv[1:]))
