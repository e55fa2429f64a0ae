"""The site of kind `simulated`: another machine that is simulated on this machine. The pods of this site are
real."""

from dataclasses import replace
from pathlib import Path

from gridmill.domain.site import Site, check_settings
from gridmill.errors import InputError
from gridmill.ports.site import PodListeners, SitePort
from gridmill.settings import Settings
from gridmill.sites.processes import ProcessSite

SETTINGS = {"home": "the folder of its pods, which is not the control node's"}


class RemoteProcessSite(ProcessSite):
    """A site whose pods have their own home and connect over TLS, in the same way as pods of other
    machines."""

    def __init__(self, settings: Settings, door: str) -> None:
        super().__init__(settings)
        self._door = door

    def link(self) -> str:
        """The control node's address."""
        return self._door


def make(settings: Settings, site: Site, doors: PodListeners) -> SitePort:
    """Makes the site. The storage root of the site is the storage root of the control node, as on a shared
    file system.

    Raises InputError if the setting `home` is missing, and UnavailableError.
    """
    check_settings(site, SETTINGS)
    home = site.settings.get("home")
    if home is None:
        raise InputError(
            f"site {site.name} has no home",
            hint="Add `--set home=FOLDER`: the folder for its pods.",
            place="settings.home",
        )
    return RemoteProcessSite(replace(settings, home=Path(home).absolute()), doors.tls("127.0.0.1"))
