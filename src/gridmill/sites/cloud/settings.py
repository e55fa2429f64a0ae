"""The settings of a cloud site."""

import re
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum

from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.rental_terms import RENTAL_SETTINGS, rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.route import Staging
from gridmill.domain.setting_texts import PROGRAM, SettingTexts
from gridmill.domain.site import Site, check_settings
from gridmill.errors import InputError, NotFoundError
from gridmill.plugins import find
from gridmill.sites.cloud import bucket_settings

SETTINGS = {
    "provider": "the provider of the machines, such as aws",
    "max_machines": "the largest number of machines at the same time (default: 8)",
    "python": "the Python of an image that contains Gridmill (default: /opt/gridmill/bin/python)",
    "base_python": "the Python on the machine with which Gridmill is installed (default: python3)",
    "extras": "the extras with which Gridmill is installed (default: data,learning,objects,tls)",
    "packages": "the source of the packages that Gridmill needs: index, home or auto (default: auto)",
    "boot_timeout": "the time after which a machine without an SSH server is replaced (default: 10m)",
    "least_driver": "the least version of the NVIDIA driver on machines with GPUs (default: 525)",
    "ssh_from": "the networks from which SSH is reachable, separated by commas (default: 0.0.0.0/0)",
}
"""The settings of every cloud site, besides the settings of its provider and the conditions for renting."""
_EXTRAS = re.compile(r"[a-z0-9,]*")
_DRIVER = re.compile(r"\d+(\.\d+)*")
_SOURCES = re.compile("index|home|auto")
_PATH = re.compile(r"/[^\x00-\x1f\x7f]+")


class PackageSource(StrEnum):
    """Where a machine gets the packages that Gridmill needs: from the package index of the machine, as wheels
    of the packages of the control node (`home`), or from home only if the installation from the index
    fails."""

    INDEX = "index"
    HOME = "home"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """The parsed settings of a cloud site, see `SETTINGS`."""

    provider: str
    max_machines: int
    python: str
    base_python: str
    extras: str
    packages: PackageSource
    boot_timeout_seconds: float
    least_driver: str
    allowed_addresses: tuple[str, ...]


def read(site: Site) -> CloudSettings:
    """Parses the settings of the site. Raises InputError if a setting is invalid."""
    provider = site.settings.get("provider", "")
    texts = SettingTexts(texts=site.settings, owner=f"site {site.name}")
    try:
        find("clouds", provider)
    except NotFoundError as error:
        raise texts.wrong("provider", f"{provider!r} is not a known provider", error.hint) from error
    _check_names(site, provider)
    bucket_settings.check_buckets(site)
    rental_terms(Resource(name=site.name, type=JobKind.TRAINING, site=site.name), site)
    return CloudSettings(
        provider=provider,
        max_machines=texts.number("max_machines", "8", 1, 1000),
        python=texts.one("python", _PATH, "/opt/gridmill/bin/python"),
        base_python=texts.one("base_python", PROGRAM, "python3"),
        extras=texts.one("extras", _EXTRAS, "data,learning,objects,tls"),
        packages=PackageSource(texts.one("packages", _SOURCES, PackageSource.AUTO)),
        boot_timeout_seconds=texts.seconds("boot_timeout", "10m"),
        least_driver=texts.one("least_driver", _DRIVER, "525"),
        allowed_addresses=texts.networks("ssh_from", "0.0.0.0/0"),
    )


def _check_names(site: Site, provider: str) -> None:
    """Raises InputError for a setting that neither cloud sites, nor their machines, nor the provider, nor the
    conditions for renting have. The settings of a provider that does not name them are not checked."""
    with suppress(NotFoundError):
        own: Mapping[str, str] = find("cloud_settings", provider)()
        of_machines: Mapping[str, str] = find("machines", "settings")()
        known = {**SETTINGS, **RENTAL_SETTINGS, **bucket_settings.SETTINGS, **of_machines, **own}
        check_settings(site, known)


def check_resource(resource: Resource, site: Site) -> None:
    """Raises InputError if a setting of a resource is invalid, or if a resource cannot be used on rented
    machines. A sink is always loaded in the home."""
    if resource.type == JobKind.SINK:
        raise InputError(
            f"a sink is loaded at home, not on a machine of {site.name}",
            hint="Remove `site` from the resource. Jobs on rented machines get the table by a transfer.",
            place=f"resource {resource.name}: site",
        )
    rental_terms(resource, site)
    staging = resource.staging or Staging.DIRECT
    if staging is not Staging.DIRECT and not site.settings.get(staging):
        raise InputError(
            f"site {site.name} has no bucket for `staging: {staging}`",
            hint=f"Set one: `gridmill configure site {site.name} --{staging} s3://BUCKET/PREFIX`.",
            place=f"resource {resource.name}: staging",
        )


def check_site(site: Site) -> None:
    """Raises InputError if a setting of the site is invalid."""
    read(site)
