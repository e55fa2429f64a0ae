"""The local site: pods are processes on the machine of the control node."""

from gridmill.domain.site import Site, check_settings
from gridmill.errors import InputError
from gridmill.ports.site import SitePort
from gridmill.settings import Settings
from gridmill.sites.processes import Confiner, ProcessSite


def make(settings: Settings, user: int | None = None, confiner: Confiner | None = None) -> SitePort:
    """The local site of that home; its pods are that Unix user's, started by the confiner, or ours."""
    return ProcessSite(settings, user=user, confiner=confiner)


def check_site(site: Site) -> None:
    """Raises InputError: it has neither an address nor settings."""
    check_settings(site, {})
    if site.address:
        raise InputError("a local site has no address", place=f"site {site.name}: address")
