"""A home and a farm on two hosts: home is host alpha, the farm is host beta."""

import re
from pathlib import Path

from gridmill.testing.hosts import Network
from tests.kit.machines import PROGRAM, Machines

FARM = "/root/farm"
STORAGE = "/root/grid/storage"
PORT = 8700


class Farmland(Machines):
    """A home and a farm that see no folder of each other, but the one for logs and declarations."""

    def __init__(self, net: Network, shared: Path, disk: str = "") -> None:
        """`disk`: the size of the one at home and of the one at the farm, where they are to be small."""
        super().__init__(net, shared, "far", {"GRIDMILL_ROOT": STORAGE})
        self.listens = self.beta.address
        """Where the farm does when it is started again, and `controller` how home gets there."""
        self.controller = f"{self.beta.address}:{PORT}"
        for host, folder in ((self.alpha, STORAGE), (self.beta, FARM)) if disk else ():
            host.run("mkdir", "-p", folder)
            host.run("mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", folder)
        self.farm_up()
        self.wait(lambda: "--join" in self.said("farm"), "the farm says its join line")
        self.control()
        found = re.search(r"--join (\S+)", self.said("farm"))
        assert found is not None
        self.add(found[1])

    def farm_up(self, *words: str, address: str = "") -> None:
        """Start the farm's controller."""
        listen = f"{address or self.listens}:{PORT}"
        settings = {"GRIDMILL_HOME": FARM, "GRIDMILL_ROOT": f"{FARM}/storage"}
        self.start(self.beta, "farm", *PROGRAM, "up", "--light", "--listen", listen, *words, **settings)

    def add(self, line: str) -> None:
        """Join it."""
        self.gridmill("add", "cluster", "far", "--controller", self.controller, "--join", line)

    def configure(self, *settings: str) -> None:
        """Change settings of the site."""
        words = (word for setting in settings for word in ("--set", setting))
        self.gridmill("configure", "site", "far", *words)

    def on_farm(self, *words: str) -> str:
        """A command's output there."""
        return self.beta.run(*words)

    def root_there(self) -> str:
        """The storage root of this tenant at the farm."""
        return self.on_farm("bash", "-c", f"ls -d {FARM}/farm/tenants/*/root").strip()
