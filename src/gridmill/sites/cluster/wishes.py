"""What resources at a farm may be."""

from gridmill.errors import InputError
from gridmill.model.job import JobKind
from gridmill.model.resource import Resource
from gridmill.model.site import Site
from gridmill.model.staging import Staging
from gridmill.sites.cluster.carriers import bucket_of


def check_resource(resource: Resource, site: Site) -> None:
    """Raises InputError for what cannot run at a farm: a sink is loaded where its root is, and what goes by
    a bucket needs one."""
    if resource.type == JobKind.SINK:
        raise InputError(
            f"a sink is loaded at home, not at the farm {site.name}",
            hint="Leave `site` out of the resource: what other jobs read there is carried to them.",
            place=f"resource {resource.name}: site",
        )
    if resource.staging not in (None, Staging.DIRECT):
        bucket_of(site, resource.staging)
