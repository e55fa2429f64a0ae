"""This module parses the conditions under which machines may be rented for a resource.

The conditions are settings of the resource. A setting that the resource does not have comes from its site.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import TypeVar

from gridmill.domain.amounts import GIB, parse_bytes, parse_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.lease import HOUR_SECONDS, MICROS, RentalTerms
from gridmill.domain.naming import suggestion
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site
from gridmill.errors import InputError

RENTAL_SETTINGS: Mapping[str, str] = {
    "instance_type": "a type of machine of the provider (default: any type with the needed amounts)",
    "gpu_memory": "the least memory of each GPU, for example 24GB",
    "region": "a region, or the beginning of the names of regions, for example us-",
    "spot": "true: rent spot machines, which the provider may end at any time",
    "max_price": "the highest price per hour, for example 1.50",
    "max_cost": "the highest cost of one rental, for example 10",
    "budget": "the highest cost of all rentals of the resource in one month, for example 200",
    "currency": "the currency of the prices (default: USD)",
    "max_hours": "the longest time for which one machine may be rented, in hours or as 90m (default: 24)",
    "dead_man": "the time without contact after which a machine ends itself, unless a job runs whose result "
    "a bucket takes (default: 15m)",
    "keep_on_failure": "the time for which a machine is kept after a failure (default: 0)",
    "accept_no_self_end": "true: permit machines that cannot end themselves",
    "image": "an image of the provider (default: the provider's image for the type of machine)",
    "disk": "the size of the machine's disk, for example 200GB (default: 64GiB)",
}
"""The settings of a resource at a cloud site, with their descriptions. A cloud site may have the same
settings, which then apply to all of its resources."""

LEAST_DEAD_MAN_SECONDS = 60.0
"""The shortest dead-man time. A machine that waits less could end itself while its control node restarts."""
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*")
_REGION = re.compile(r"[a-z0-9-]+")
_CURRENCY = re.compile(r"[A-Z]{3}")
_T = TypeVar("_T")
_D = TypeVar("_D")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """The text of a setting, and the place to name in errors."""

    name: str
    text: str
    place: str

    def wrong(self, problem: str, hint: str) -> InputError:
        return InputError(f"{self.text!r} {problem}", hint=hint, place=self.place)


EXPORT = "export"
"""The setting of a site with the bucket to which its machines export results."""
AFTER_CAP_SECONDS = 3600.0
"""The signed URLs for the results of a machine are valid for this time after its longest time."""
LONGEST_SIGNATURE_SECONDS = 7 * 86_400.0
"""The longest time for which a signed URL is valid at S3 (Signature Version 4, `X-Amz-Expires`)."""


def rental_terms(resource: Resource, site: Site) -> RentalTerms:
    """Return the conditions under which machines may be rented for the resource at its cloud site. Raises
    InputError, with the place of the setting, if a setting is unknown or has an invalid value."""
    _check_names(resource)
    settings = _merged(resource, site)
    terms = RentalTerms(
        instance_type=_parsed(settings, "instance_type", _word, ""),
        gpu_memory_bytes=_parsed(settings, "gpu_memory", _size, None),
        region=_parsed(settings, "region", _region, ""),
        spot=_parsed(settings, "spot", _truth, False),
        max_price_micros=_parsed(settings, "max_price", _money, None),
        max_cost_micros=_parsed(settings, "max_cost", _money, None),
        budget_micros=_parsed(settings, "budget", _money, None),
        currency=_parsed(settings, "currency", _currency, "USD"),
        max_seconds=_parsed(settings, "max_hours", _hours, 24 * HOUR_SECONDS),
        dead_man_seconds=_parsed(settings, "dead_man", _dead_man, 900.0),
        keep_on_failure_seconds=_parsed(settings, "keep_on_failure", _duration, 0.0),
        accept_no_self_end=_parsed(settings, "accept_no_self_end", _truth, False),
        image=_parsed(settings, "image", _word, ""),
        disk_bytes=_parsed(settings, "disk", _size, None),
        serves=resource.type is JobKind.SERVICE,
    )
    if terms.keep_on_failure_seconds > terms.max_seconds:
        raise settings["keep_on_failure"].wrong(
            "is longer than the longest rental", "Set a shorter time, or increase max_hours."
        )
    if EXPORT in site.settings and terms.max_seconds + AFTER_CAP_SECONDS > LONGEST_SIGNATURE_SECONDS:
        raise settings["max_hours"].wrong(
            "is too long for signed URLs of the bucket for results, which are valid for at most 7 days",
            "Set at most 167 hours, or remove the setting `export` of the site.",
        )
    return terms


def _check_names(resource: Resource) -> None:
    for name in resource.settings:
        if name not in RENTAL_SETTINGS:
            names = ", ".join(RENTAL_SETTINGS)
            raise InputError(
                f"a resource at a cloud site has no setting {name!r}",
                hint=f"{suggestion(name, RENTAL_SETTINGS)} Settings are {names}.".lstrip(),
                place=f"resource {resource.name}: settings.{name}",
            )


def _merged(resource: Resource, site: Site) -> dict[str, _Setting]:
    """Return the settings that are not empty. An empty setting of the resource removes the setting of the
    site."""
    merged: dict[str, _Setting] = {}
    for owner, settings in (
        (f"site {site.name}", site.settings),
        (f"resource {resource.name}", resource.settings),
    ):
        for name, text in settings.items():
            if name in RENTAL_SETTINGS:
                merged[name] = _Setting(name=name, text=text.strip(), place=f"{owner}: settings.{name}")
    return {name: setting for name, setting in merged.items() if setting.text}


def _parsed(
    settings: Mapping[str, _Setting], name: str, parse: Callable[[_Setting], _T], default: _D
) -> _T | _D:
    setting = settings.get(name)
    if setting is None:
        return default
    try:
        return parse(setting)
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=setting.place) from error


def _word(setting: _Setting) -> str:
    if not _WORD.fullmatch(setting.text):
        raise setting.wrong("is not a plain word", "Write the name as the provider shows it.")
    return setting.text


def _region(setting: _Setting) -> str:
    if not _REGION.fullmatch(setting.text):
        raise setting.wrong("is not the beginning of a region's name", "Write for example us- or eu-west-1.")
    return setting.text


def _currency(setting: _Setting) -> str:
    if not _CURRENCY.fullmatch(setting.text):
        raise setting.wrong("is not the code of a currency", "Write three capital letters, for example USD.")
    return setting.text


def _truth(setting: _Setting) -> bool:
    value = _TRUTH.get(setting.text.lower())
    if value is None:
        raise setting.wrong("is neither true nor false", "Write true or false.")
    return value


def _money(setting: _Setting) -> int:
    return parse_micros(setting.text)


def parse_micros(text: str) -> int:
    """Parse an amount of money, such as `1.50`, and return it in micro-units of its currency. The smallest
    unit is a millionth. Raises InputError."""
    try:
        micros = Decimal(text) * MICROS
    except InvalidOperation:
        raise InputError(f"{text!r} is not an amount of money", hint="Write for example 1.50.") from None
    if not micros.is_finite() or micros < 0 or micros != micros.to_integral_value() or micros >= 10**15:
        raise InputError(
            f"{text!r} is not an amount of money",
            hint="Write a number from 0 on with at most six decimals, for example 1.50.",
        )
    return int(micros)


def _hours(setting: _Setting) -> float:
    text = setting.text
    seconds = parse_seconds(f"{text}h" if text.replace(".", "", 1).isdecimal() else text)
    if seconds < LEAST_DEAD_MAN_SECONDS:
        raise setting.wrong("is less than a minute", "Write hours or a duration, for example 4 or 90m.")
    return seconds


def _duration(setting: _Setting) -> float:
    return parse_seconds(setting.text)


def _dead_man(setting: _Setting) -> float:
    seconds = parse_seconds(setting.text)
    if seconds < LEAST_DEAD_MAN_SECONDS:
        raise setting.wrong(
            "is too short: the machine would end itself while its control node restarts",
            "Write at least 1m, for example 15m.",
        )
    return seconds


def _size(setting: _Setting) -> int:
    size = parse_bytes(setting.text)
    if size < GIB // 2:
        raise setting.wrong("is too small", "Write a unit, for example 24GB.")
    return size
