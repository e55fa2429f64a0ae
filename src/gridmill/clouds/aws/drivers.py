"""The NVIDIA drivers that fit the types of EC2 machines, as a table and pure functions.

An image carries a driver of one family: Tesla (for computing), GRID (for graphics; it needs a licence of
NVIDIA, which AWS provides on these machines) or Gaming. Sources: "NVIDIA drivers for your Amazon EC2
instance" in the EC2 user guide; the tables "supported EC2 instances" in the release notes of the AWS Deep
Learning AMIs. The family of a type is the part of its name before the dot, compared as a whole: G4ad has AMD
GPUs, and G5g has Arm processors, so that neither is a kind of G4dn or G5.
"""

import re
from collections.abc import Mapping
from enum import StrEnum

from gridmill.domain.frozen import dataclass
from gridmill.errors import RefusedError


class DriverFamily(StrEnum):
    """The families of NVIDIA drivers."""

    TESLA = "Tesla"
    GRID = "GRID"
    GAMING = "Gaming"


class KernelModule(StrEnum):
    """The kinds of kernel modules of an NVIDIA driver. The open module needs a GPU of the generation Turing
    or newer, and the newest GPUs need the open module ("Open GPU kernel modules" in NVIDIA's README)."""

    OPEN = "open"
    PROPRIETARY = "proprietary"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver of an image. `version` is the major version: of Tesla and Gaming drivers the branch, such as
    550, and of GRID drivers the version of the vGPU software, such as 17; None if it is unknown."""

    family: DriverFamily
    version: int | None = None
    module: KernelModule = KernelModule.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The drivers that fit a family of types. `newest_grid` is the last version of GRID that supports it
    (None: all versions). `needs_open` and `needs_proprietary` state the kind of kernel module that it
    needs."""

    drivers: frozenset[DriverFamily]
    newest_grid: int | None = None
    needs_open: bool = False
    needs_proprietary: bool = False
    architecture: str = "x86_64"


_TESLA = frozenset({DriverFamily.TESLA})
_GRID = frozenset({DriverFamily.GRID})
_TESLA_GRID = frozenset({DriverFamily.TESLA, DriverFamily.GRID})
_ALL = frozenset(DriverFamily)

FITS: Mapping[str, Fit] = {
    "g7e": Fit(drivers=_ALL, needs_open=True),
    # a fraction of a GPU works only with the drivers for virtual GPUs
    "g6f": Fit(drivers=_GRID),
    "gr6f": Fit(drivers=_GRID),
    "g6e": Fit(drivers=_ALL),
    "g6": Fit(drivers=_ALL),
    "gr6": Fit(drivers=_TESLA_GRID),
    "g5": Fit(drivers=_ALL),
    "g5g": Fit(drivers=_TESLA, architecture="arm64"),
    "g4dn": Fit(drivers=_ALL),
    "g3": Fit(drivers=_TESLA_GRID, newest_grid=16, needs_proprietary=True),
    "g3s": Fit(drivers=_TESLA_GRID, newest_grid=16, needs_proprietary=True),
    "p2": Fit(drivers=_TESLA, needs_proprietary=True),
    "p3": Fit(drivers=_TESLA, needs_proprietary=True),
    "p3dn": Fit(drivers=_TESLA, needs_proprietary=True),
    "p4d": Fit(drivers=_TESLA),
    "p4de": Fit(drivers=_TESLA),
    "p5": Fit(drivers=_TESLA),
    "p5e": Fit(drivers=_TESLA),
    "p5en": Fit(drivers=_TESLA),
    "p6-b200": Fit(drivers=_TESLA, needs_open=True),
    "p6-b300": Fit(drivers=_TESLA, needs_open=True),
    "p6e-gb200": Fit(drivers=_TESLA, needs_open=True, architecture="arm64"),
}
"""The drivers for each family of types with NVIDIA GPUs."""

OTHER_GPUS: Mapping[str, str] = {"g4ad": "AMD"}
"""Families of types whose names are similar to those of NVIDIA machines, and the maker of their GPUs."""

LEAST_GRID_IMDSV2, LEAST_GAMING_IMDSV2 = 14, 495
"""The first versions that work with version 2 of the instance metadata service, which Gridmill requires."""
PROVIDERS_DNS = frozenset({"g3", "g3s"})
"""The families on which GRID gets its licence through the name server of AWS. The network of the machine must
use this name server (`enableDnsSupport` of the VPC)."""

_FAMILY = re.compile(r"([a-z0-9-]+)\.[a-z0-9-]+")


def family_of(instance_type: str) -> str:
    """Return the family of a type, such as `g4dn` for `g4dn.xlarge`, or an empty text for a text that is no
    type."""
    match = _FAMILY.fullmatch(instance_type)
    return match[1] if match is not None else ""


def misfit(driver: Driver, instance_type: str, architecture: str = "x86_64") -> str:
    """Return the reason why an image with this driver and architecture does not work on machines of this
    type, or an empty text if it works or the type is not known."""
    family = family_of(instance_type)
    if family in OTHER_GPUS:
        return f"{instance_type} has {OTHER_GPUS[family]} GPUs, for which NVIDIA's drivers do not work"
    fit = FITS.get(family)
    if fit is None:
        return ""
    if architecture != fit.architecture:
        return f"{instance_type} needs an image for {fit.architecture}, and the image is for {architecture}"
    if driver.family not in fit.drivers:
        fitting = " or ".join(sorted(fit.drivers))
        return f"{instance_type} needs a driver of the family {fitting}, and the image has {driver.family}"
    return _wrong_version(driver, instance_type, fit) or _wrong_module(driver, instance_type, fit)


def _wrong_version(driver: Driver, instance_type: str, fit: Fit) -> str:
    if driver.version is None:
        return ""
    is_grid, is_gaming = driver.family is DriverFamily.GRID, driver.family is DriverFamily.GAMING
    if is_grid and fit.newest_grid is not None and driver.version > fit.newest_grid:
        return (
            f"GRID {driver.version} does not support {instance_type}; the last version is {fit.newest_grid}"
        )
    if is_grid and driver.version < LEAST_GRID_IMDSV2:
        return f"GRID {driver.version} does not work with IMDSv2; use version {LEAST_GRID_IMDSV2} or newer"
    if is_gaming and driver.version < LEAST_GAMING_IMDSV2:
        return (
            f"the Gaming driver {driver.version} does not work with IMDSv2; use version "
            f"{LEAST_GAMING_IMDSV2} or newer"
        )
    return ""


def _wrong_module(driver: Driver, instance_type: str, fit: Fit) -> str:
    if fit.needs_proprietary and driver.module is KernelModule.OPEN:
        return f"the open kernel module of the image's driver does not support the GPUs of {instance_type}"
    if fit.needs_open and driver.module is KernelModule.PROPRIETARY:
        return f"{instance_type} needs the open kernel module, and the image has the proprietary one"
    return ""


def needs_providers_dns(driver: Driver, instance_type: str) -> bool:
    """Return whether the driver gets its licence through the name server of AWS, so that the network of the
    machine must use this name server."""
    return driver.family is DriverFamily.GRID and family_of(instance_type) in PROVIDERS_DNS


_NAMES: tuple[tuple[re.Pattern[str], DriverFamily, KernelModule], ...] = (
    (re.compile(r"\bgaming\b", re.I), DriverFamily.GAMING, KernelModule.UNKNOWN),
    (
        re.compile(r"\b(grid|vgpu|quadro|rtx virtual workstation)\b", re.I),
        DriverFamily.GRID,
        KernelModule.UNKNOWN,
    ),
    (re.compile(r"oss nvidia", re.I), DriverFamily.TESLA, KernelModule.OPEN),
    (re.compile(r"proprietary nvidia", re.I), DriverFamily.TESLA, KernelModule.PROPRIETARY),
    (re.compile(r"deep learning|\btesla\b|\bcuda\b", re.I), DriverFamily.TESLA, KernelModule.UNKNOWN),
)
"""What the name of an image states about its driver. The first row that matches counts."""
_VERSION = re.compile(r"(?:grid|vgpu|gaming|tesla|driver)[ _-]*(?:driver[ _-]*)?v?(\d{2,3})\b", re.I)


def driver_of(name: str, tag: str = "") -> Driver | None:
    """Return the driver of an image according to the image's name, such as `Deep Learning Base OSS Nvidia
    Driver GPU AMI (Ubuntu 22.04) 20260101`, or None if the name states no driver. `tag` is the value of the
    tag `gridmill-driver` of an image, such as `GRID 17`, which counts more than the name."""
    text = tag or name
    for pattern, family, module in _NAMES:
        if pattern.search(text):
            version = _VERSION.search(text)
            return Driver(family=family, version=int(version[1]) if version else None, module=module)
    return None


def check_driver(name: str, tag: str, instance_type: str, architecture: str) -> Driver | None:
    """Return the driver of an image, or None if it is unknown. Raises RefusedError if the driver does not
    work on machines of the type."""
    driver = driver_of(name, tag)
    if driver is None:
        return None
    reason = misfit(driver, instance_type, architecture)
    if reason:
        raise RefusedError(
            reason,
            hint="Choose another image or another instance type. If the name of the image states a wrong "
            "driver, set its tag gridmill-driver, for example to `Tesla 550`.",
            place=f"image {name}",
        )
    return driver
