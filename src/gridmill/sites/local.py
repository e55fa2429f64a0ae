"""The site of kind `local`: its pods are processes on the machine of the control node."""

from gridmill.domain.site import Site, check_settings
from gridmill.errors import InputError
from gridmill.ports.site import SitePort
from gridmill.settings import Settings
from gridmill.sites.processes import Confiner, ProcessSite


def make(settings: Settings, user: int | None = None, confiner: Confiner | None = None) -> SitePort:
    """Makes the local site of the home in `settings`. If `user` is given, the pods run as that Unix user
    through the confiner. If no user is given, the pods run as the user of this process."""
    return ProcessSite(settings, user=user, confiner=confiner)


def check_site(site: Site) -> None:
    """Raises InputError if the site has an address or a setting, because a local site has neither."""
    check_settings(site, {})
    if site.address:
        raise InputError("a local site has no address", place=f"site {site.name}: address")
