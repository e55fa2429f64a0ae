"""What a resource asks of its site beside amounts, checked before anything waits for it."""

from gridmill.errors import InputError
from gridmill.model.resource import Resource
from gridmill.model.site import Site, SiteKind
from gridmill.registry import WISHES, find


def check_wishes(resource: Resource, site: Site) -> None:
    """Raises InputError, at the setting."""
    if resource.staging is not None and site.kind != SiteKind.CLUSTER:
        raise InputError(
            f"nothing is carried to a {site.kind} site: its jobs see the storage root",
            hint="Leave `staging` out, or name a site of kind cluster.",
            place=f"resource {resource.name}: staging",
        )
    if site.kind in WISHES:
        find("wishes", site.kind)(resource, site)
    elif resource.settings:
        raise InputError(
            f"a {site.kind} site takes no settings of a resource",
            hint=f"Sites of these kinds do: {', '.join(sorted(WISHES))}.",
            place=f"resource {resource.name}: settings",
        )
