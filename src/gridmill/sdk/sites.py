"""The verbs of sites."""

from collections.abc import Mapping
from dataclasses import replace

from gridmill.errors import ConflictError
from gridmill.model.node import NodeView
from gridmill.model.site import LOCAL, Site
from gridmill.model.view import FarmView
from gridmill.sdk.connected import Connected
from gridmill.sdk.lookup import Noun, find_noun


class SiteVerbs(Connected):
    """The verbs of sites."""

    def add_site(self, site: Site) -> Site:
        """Open a site, look at its nodes and keep it; as it is now. Adding the same again is fine.

        Raises ConflictError when another one has that name, InputError, UnavailableError.
        """
        return self.grid.add_site(site)

    def configure_site(
        self, name: str, *, address: str | None = None, settings: Mapping[str, str] | None = None
    ) -> Site:
        """Change what a site was added with; an empty value takes a setting away. Its pods go on."""
        known: Site = find_noun(self.grid, Noun.SITE, name)
        if name == LOCAL:
            raise ConflictError(
                "the site `local` is the control node's own machine",
                hint="GRIDMILL_CPUS and GRIDMILL_MEMORY say how much of it is given.",
            )
        merged = {**known.settings, **(settings or {})}
        left = {key: value for key, value in merged.items() if value}
        return self.grid.add_site(
            replace(known, address=address or known.address, settings=left), replace=True
        )

    def list_sites(self) -> tuple[Site, ...]:
        """Sites and their nodes, by name."""
        return self.grid.sites()

    def list_nodes(self) -> tuple[NodeView, ...]:
        """Provider nodes of all sites: claimed, running, and as seen now. Takes a second or so."""
        return self.grid.nodes()

    def list_farms(self) -> tuple[FarmView, ...]:
        """Farms, as they were some seconds ago: GPUs, line, disk, version; and how quick the way there is."""
        return self.grid.farms()

    def remove_site(self, name: str) -> None:
        """Forget a site where nothing is up."""
        self.grid.remove_site(name)
