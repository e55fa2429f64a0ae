"""The site kind `simulated`: another machine, simulated on this one. Its pods are real."""

from dataclasses import replace
from pathlib import Path

from gridmill.domain.site import Site, check_settings
from gridmill.errors import InputError
from gridmill.ports.site import PodListeners, SitePort
from gridmill.settings import Settings
from gridmill.sites.processes import ProcessSite

SETTINGS = {"home": "the folder of its pods, which is not the control node's"}


class RemoteProcessSite(ProcessSite):
    """Pods with a home of their own that connect over TLS, as those of other machines do."""

    def __init__(self, settings: Settings, door: str) -> None:
        super().__init__(settings)
        self._door = door

    def link(self) -> str:
        """The control node's address."""
        return self._door


def make(settings: Settings, site: Site, doors: PodListeners) -> SitePort:
    """The site. Its storage root is that of the control node, as on a shared file system.

    Raises InputError without `home`, UnavailableError.
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
