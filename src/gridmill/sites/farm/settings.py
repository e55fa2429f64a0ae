"""The settings of a cluster site and of resources at a farm, checked before the farm is called."""

from gridmill.domain.amounts import parse_bytes, parse_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.route import Staging
from gridmill.domain.site import Site, check_settings
from gridmill.errors import InputError
from gridmill.sites.farm import buckets
from gridmill.sites.farm.buckets import bucket_of
from gridmill.sites.farm.join import read_controller

SETTINGS = {
    "lease": "after how long without a word of this source the farm ends its pods by itself (1h)",
    "checkpoints": "how often newer checkpoints of what runs there come home, at the most (30s)",
    "rate": "the most that is carried there in a second, as 20MiB (default: as much as can be)",
} | buckets.SETTINGS
_LEASE, _CHECKPOINTS = "1h", "30s"
_LEAST_LEASE_SECONDS = 10.0
"""With a shorter lease a moment without messages would end running pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The settings, read, but those of buckets. `rate` is in bytes a second; None is no limit."""

    lease_seconds: float
    checkpoints_seconds: float
    rate: float | None


def read(site: Site) -> Said:
    """Raises InputError, at the setting."""
    check_settings(site, SETTINGS)
    return Said(
        lease_seconds=_seconds(site, "lease", _LEASE, _LEAST_LEASE_SECONDS),
        checkpoints_seconds=_seconds(site, "checkpoints", _CHECKPOINTS, 1.0),
        rate=_rate(site),
    )


def check_site(site: Site) -> None:
    """Raises InputError for an address or a setting that cannot be."""
    if site.address:
        read_controller(site.address)
    read(site)
    buckets.check(site)


def _rate(site: Site) -> float | None:
    said = site.settings.get("rate")
    try:
        rate = float(parse_bytes(said)) if said else None
    except InputError as error:
        raise _at(site, "rate", error) from error
    if rate == 0.0:
        hint = f"`gridmill configure site {site.name} --set rate=` takes the limit away."
        raise _at(site, "rate", InputError("at 0 nothing is ever carried", hint=hint))
    return rate


def _seconds(site: Site, name: str, usual: str, least: float) -> float:
    said = site.settings.get(name, usual)
    try:
        seconds = parse_seconds(said)
    except InputError as error:
        raise _at(site, name, error) from error
    if seconds < least:
        hint = f"Where nothing is said it is {usual}."
        raise _at(site, name, InputError(f"{said!r} is too short: {least:g}s is the least", hint=hint))
    return seconds


def _at(site: Site, name: str, error: InputError) -> InputError:
    return InputError(error.message, hint=error.hint, place=f"site {site.name}: settings.{name}")


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
