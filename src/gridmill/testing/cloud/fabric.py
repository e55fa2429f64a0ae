"""The network of simulated machines: a process in a network namespace of its own, which has their switch and
their metadata service.

The process reads commands from its standard input, one JSON object in each line. At the end of the input,
which comes however its parent ends, it deletes the folder of the machines and ends. With it, the kernel
removes the switch and all cables.
"""

import base64
import json
import shutil
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from gridmill.testing.cloud.machine_host import MetadataKind
from gridmill.testing.cloud.metadata_service import Metadata, handler

MODULE = "gridmill.testing.cloud.fabric"
SWITCH = "switch"
METADATA_ADDRESS = "169.254.169.254"
"""The address of the metadata service. It exists only inside the namespaces of the simulation."""


class Machines:
    """The metadata of the machines by their private address."""

    def __init__(self) -> None:
        self._by_address: dict[str, Metadata] = {}

    def find(self, address: str) -> Metadata | None:
        """Returns the metadata of the machine with an address."""
        return self._by_address.get(address)

    def obey(self, command: dict[str, Any]) -> None:
        """Adds a machine (with `items`), changes an item of one (with `path`), or removes one."""
        address = command["address"]
        if "items" in command:
            self._by_address[address] = Metadata(
                items=command["items"],
                user_data=base64.b64decode(command["user_data"]),
                tokens_required=command["tokens_required"],
                kind=MetadataKind(command["kind"]),
            )
        elif "path" in command:
            if address in self._by_address:
                self._by_address[address].items[command["path"]] = command["text"]
        else:
            self._by_address.pop(address, None)


def main(folder: str, network: str) -> None:
    """Serves the machines of a network until the end of the standard input."""
    lines = (
        "link set lo up",
        f"link add {SWITCH} type bridge forward_delay 0",
        f"addr add {METADATA_ADDRESS}/32 dev {SWITCH}",
        f"link set {SWITCH} up",
        f"route add {network} dev {SWITCH} src {METADATA_ADDRESS}",
    )
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    machines = Machines()
    server = ThreadingHTTPServer((METADATA_ADDRESS, 80), handler(machines.find))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        machines.obey(json.loads(line))
        print("done", flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
