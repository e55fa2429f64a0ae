"""The use cases of sites."""

from typing import Protocol

from gridmill.model.node import NodeView
from gridmill.model.site import Site
from gridmill.model.view import FarmView


class Sites(Protocol):
    """What a face can ask about sites."""

    def sites(self) -> tuple[Site, ...]:
        """All sites and their nodes, by name."""
        ...

    def nodes(self) -> tuple[NodeView, ...]:
        """Provider nodes of all sites: claimed, running, and as seen now. Takes a second or so."""
        ...

    def farms(self) -> tuple[FarmView, ...]:
        """Farms, by name, as they were some seconds ago at most."""
        ...

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """Open the site, look at its nodes, and keep it; as it is now. Adding the same again is fine.

        Raises ConflictError when another one has that name, unless `replace`; InputError for settings that
        its kind does not have, UnavailableError when it does not answer.
        """
        ...

    def remove_site(self, name: str) -> None:
        """Forget it. Raises ConflictError while a resource or a deployment is there."""
        ...
