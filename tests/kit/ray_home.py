"""A home with the Ray site `lab`, whose cluster is this machine, for tests of services."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually
from tests.kit.farms import open_folder
from tests.kit.ray import ENVIRONMENT, ray_cluster, remove_homes_on_nodes


class RayHome:
    """The home of a test with the Ray site `lab`, and the resource `servers` for services."""

    def __init__(self, place: Place, address: str) -> None:
        self.place = place
        self.gridmill("add", "site", "lab", "--kind", "ray", "--address", address)

    def gridmill(self, *words: str, code: int = 0) -> str:
        """Run a command that ends with this code, and return what it printed."""
        done = self.place.gridmill(*words, **ENVIRONMENT)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def configure(self, *words: str, memory: str = "1GiB") -> str:
        """Make the resource, of which each pod has one CPU."""
        fixed = ("--type", "service", "--site", "lab", "--cpus", "1", "--memory", memory)
        return self.gridmill("configure", "resource", "servers", *fixed, *words)

    def shown(self, name: str = "rain") -> Any:
        """The view of a service."""
        done = self.place.gridmill("show", "service", name, "--json", **ENVIRONMENT)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def wait(self, state: str, version: str, name: str = "rain") -> Any:
        """The view of a service as soon as it has this state with this version."""

        def is_there() -> bool:
            view = self.shown(name)
            return (view["state"], view["service"]["version"]) == (state, version)

        assert eventually(is_there, PATIENCE_SECONDS), self.shown(name)
        return self.shown(name)


@contextmanager
def ray_home(place: Place, *, cpus: int = 2, nodes: int = 1) -> Iterator[RayHome]:
    """A home with a Ray cluster of this number of nodes. At the end, nothing of both is left."""
    with open_folder() as folder, ray_cluster(folder / "ray", cpus=cpus, nodes=nodes) as address:
        try:
            yield RayHome(place, address)
        finally:
            place.gridmill("down", "--all", **ENVIRONMENT)
            remove_homes_on_nodes(place.home)
