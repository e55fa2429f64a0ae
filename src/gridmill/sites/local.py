"""The local site: pods are processes on the machine of the control node."""

from gridmill.domain.site import Site, check_settings
from gridmill.errors import InputError
from gridmill.ports.site import SitePort
from gridmill.settings import Settings
from gridmill.sites.processes import Confiner, ProcessSite


def make(settings: Settings, user: int | None = None, confiner: Confiner | None = None) -> SitePort:
    """The local site of that home. Its pods run as that Unix user through the confiner, or as this user."""
    return ProcessSite(settings, user=user, confiner=confiner)


def check_site(site: Site) -> None:
    """Raises InputError for an address or a setting, because a local site has neither."""
    check_settings(site, {})
    if site.address:
        raise InputError("a local site has no address", place=f"site {site.name}: address")
