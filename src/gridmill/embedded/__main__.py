"""`python -m gridmill.embedded FD` runs the control node that the first command of a home starts.

This control node ends when the last command ends. FD is the descriptor of a socket to the process that
starts the control node. An empty message means that the control node is running, and any other message is an
error.
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
    """Runs the control node in this process. The messages of the control node are written to standard error,
    which is its log."""
    if os.fork():
        os._exit(0)  # a daemon: the process that started it may live longer, and need not wait for it
    gc.disable()  # imported modules are never garbage; without collections the start is 10 % faster
    log_to_standard_error()
    with socket.socket(fileno=int(sys.argv[1])) as starter:
        try:
            settings = read_settings()
            site = find("sites", "local")(settings)
            # first, so that the other process starts while this process imports the control node
            site.prepare()
            # imported here, because it loads the control node, while the other process starts
            from gridmill.embedded.process import NodeProcess

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
