"""`python -m gridmill.embedded FD`: the control node that the first command of a home starts.

It ends with the last command. FD is a socket to the process that starts it: an empty message means that the
control node is up, a non-empty one says why not.
"""

import gc
import os
import socket
import sys

from gridmill.codec import encode
from gridmill.errors import GridmillError, to_body
from gridmill.plugins import find
from gridmill.process_log import log_to_standard_error
from gridmill.rpc.protocol import send_frame
from gridmill.settings import read_settings


def program() -> None:
    """The process. What it says goes to standard error, which is its log."""
    if os.fork():
        os._exit(0)  # nobody's child: who started it may live on, and need not wait for it
    gc.disable()  # what is imported stays: a tenth of the time until it is up went into looking for garbage
    log_to_standard_error()
    with socket.socket(fileno=int(sys.argv[1])) as starter:
        try:
            settings = read_settings()
            site = find("sites", "local")(settings)
            site.prepare()  # its process starts while this one imports the control node
            from gridmill.embedded.process import NodeProcess  # and with it the control node

            node = NodeProcess(settings, starter, site)
        except GridmillError as error:
            send_frame(starter, [encode(to_body(error))])
            os._exit(1)
        gc.freeze()
        gc.enable()
        send_frame(starter, [b""])
        node.wait_for_clients(starter)
    os._exit(0)


if __name__ == "__main__":
    program()
