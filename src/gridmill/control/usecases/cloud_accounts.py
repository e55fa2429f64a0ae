"""This module has the use cases of accounts at the providers of rented machines."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gridmill.control.usecases.base import UseCases
from gridmill.domain.machine import Offer
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import CredentialsError, InputError, NotFoundError
from gridmill.ports.cloud import AccountCheck, CloudPort, RentingSite
from gridmill.ports.site import SitePort


class CloudAccountUseCases(UseCases):
    """The use cases of accounts (ports.grid.CloudAccounts). The providers are asked without the node's
    lock."""

    def check_account(self, site: Site) -> AccountCheck:
        """See CloudAccounts."""
        _check_kind(site)
        cloud = self._control.open_cloud(site)
        try:
            return cloud.check_account("")
        except CredentialsError as error:
            if error.hint == CredentialsError.default_hint:  # nothing is rented yet that could continue
                error.hint = _WRONG_KEY
            raise
        finally:
            cloud.close()

    def offers(self, *, site: str = "", region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """See CloudAccounts."""
        found: list[Offer] = []
        for one in self._cloud_sites(site):
            with account_of(self._control.sites, self._control.open_cloud, one) as cloud:
                found += cloud.offers(region, instance_type)
        # two sites may have the same account
        return tuple(dict.fromkeys(found))

    def _cloud_sites(self, name: str) -> list[Site]:
        with self._node.lock:
            sites = dict(self._ledger.snapshot.sites)
        clouds = [one for one in sites.values() if one.kind is SiteKind.CLOUD]
        if not name:
            return clouds
        if name not in sites:
            names = ", ".join(sorted(one.name for one in clouds)) or "none"
            raise NotFoundError(f"there is no site {name!r}", hint=f"Cloud providers are: {names}.")
        _check_kind(sites[name])
        return [sites[name]]


@contextmanager
def account_of(
    sites: Mapping[str, SitePort], open_cloud: Callable[[Site], CloudPort], site: Site
) -> Iterator[CloudPort]:
    """Return the account of a cloud site that is open in `sites`, or open the account of another one."""
    port = sites.get(site.name)
    if isinstance(port, RentingSite):
        yield port.cloud()
        return
    cloud = open_cloud(site)
    try:
        yield cloud
    finally:
        cloud.close()


_WRONG_KEY = (
    "Compare the id of the key, the secret and the profile with those of the account. "
    "`gridmill add secret NAME` replaces the value of a secret."
)


def _check_kind(site: Site) -> None:
    if site.kind is not SiteKind.CLOUD:
        raise InputError(
            f"site {site.name!r} has the kind {site.kind}, and not cloud",
            hint="`gridmill list cloudproviders` shows the cloud providers.",
            place=f"site {site.name}: kind",
        )
