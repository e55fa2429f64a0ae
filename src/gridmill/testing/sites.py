"""Resources, sites and deployments of a grid in memory: every site has one node, nothing is brought up."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from gridmill.errors import ConflictError, NotFoundError
from gridmill.model.amounts import GIB, Amounts
from gridmill.model.deployment import Deployment
from gridmill.model.node import NodeView
from gridmill.model.resource import Resource, Sizing
from gridmill.model.site import Node, Site, SiteKind
from gridmill.model.view import FarmView

T = TypeVar("T")
HERE = Node(name="here", capacity=Amounts(cpus=2, memory_bytes=8 * GIB))
with_changes = replace  # where an argument is called replace


def found(table: Mapping[str, T], key: str, what: str) -> T:
    """The entry. Raises NotFoundError."""
    if key not in table:
        raise NotFoundError(f"there is no {what} {key!r}")
    return table[key]


class FakeSites:
    """Implements what `gridmill.ports.grid` asks of resources and sites for a class that has these tables."""

    calls: list[str]
    _resources: dict[str, Resource]
    _sites: dict[str, Site]
    _deployments: dict[str, Deployment]

    def configure_resource(self, resource: Resource) -> tuple[Resource, Sizing]:
        """See Grid."""
        self.calls.append(f"configure {resource.name}")
        self._resources[resource.name] = resource
        amounts = Amounts(
            cpus=resource.cpus or 1.0, memory_bytes=resource.memory_bytes or GIB, gpus=resource.gpus
        )
        return resource, Sizing(amounts=amounts, workers=resource.workers or 1, why=("as asked",))

    def resources(self) -> tuple[Resource, ...]:
        """See Grid."""
        return tuple(self._resources[name] for name in sorted(self._resources))

    def remove_resource(self, name: str) -> None:
        """See Grid."""
        found(self._resources, name, "resource")
        self.calls.append(f"remove resource {name}")
        del self._resources[name]

    def sites(self) -> tuple[Site, ...]:
        """See Grid."""
        local = Site(name="local", kind=SiteKind.LOCAL, nodes=(HERE,))
        return (local, *(self._sites[name] for name in sorted(self._sites)))

    def nodes(self) -> tuple[NodeView, ...]:
        """See Grid."""
        return tuple(NodeView(site=site.name, node=HERE, claimed=Amounts()) for site in self.sites())

    def farms(self) -> tuple[FarmView, ...]:
        """See Grid. None answers."""
        clusters = (site for site in self.sites() if site.kind == SiteKind.CLUSTER)
        return tuple(FarmView(site=site.name, problem="it does not answer") for site in clusters)

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """See Grid. Every site has one node."""
        known = self._sites.get(site.name)
        seen = with_changes(site, nodes=(HERE,))
        if known not in (None, seen) and not replace:
            raise ConflictError(f"there is a site {site.name!r} with other settings")
        self.calls.append(f"add site {site.name}")
        self._sites[site.name] = seen
        return seen

    def remove_site(self, name: str) -> None:
        """See Grid."""
        found(self._sites, name, "site")
        self.calls.append(f"remove site {name}")
        del self._sites[name]

    def deployments(self) -> tuple[Deployment, ...]:
        """See Grid."""
        return tuple(self._deployments.values())

    def release(self, deployment_id: str) -> None:
        """See Grid."""
        self.calls.append(f"release {deployment_id}")
        self._deployments.pop(deployment_id, None)
