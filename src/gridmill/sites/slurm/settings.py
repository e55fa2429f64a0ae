"""The settings of a Slurm site: the options of its batch jobs, and how its pods connect to the control
node."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace

from gridmill.domain.amounts import parse_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site, check_settings
from gridmill.errors import InputError

KNOWN: Mapping[str, str] = {
    "partition": "the partition to use (default: the default partition of the cluster)",
    "account": "the account that pays",
    "qos": "the quality of service",
    "time_limit": "the time limit of a deployment: 90m, 2h, 1-12:00:00 (default: the limit of the partition)",
    "gres": "the name of a GPU in the cluster: gpu (default) or gpu:TYPE",
    "extra": "further options of sbatch, as on its command line",
    "setup": "a shell command run before each pod, for example module load python",
    "environment": "names of environment variables that pods get from the control node, separated by commas",
    "folder": "a folder that all nodes see under the same path (default: beside the storage root)",
    "python": "the Python with Gridmill on the compute nodes (default: the path of the Python that runs "
    "here)",
    "link": "how pods reach the control node: spool (files in the folder) or tls",
    "ssh": "with an address: further options of ssh, as on its command line",
    "control": "for tls: HOST or HOST:PORT of this machine where compute nodes reach it (default: its name)",
}
_WORD = re.compile(r"[A-Za-z0-9_.,:@+=/-]+")
_PATH = re.compile(r"/[A-Za-z0-9_.,@+=/-]*")
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """The parsed settings of a Slurm site. If a setting is an empty text, or if `time_limit_seconds` is 0,
    Slurm's default applies."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit_seconds: float = 0.0
    gres: str = "gpu"
    extra: tuple[str, ...] = ()
    setup: str = ""
    environment: tuple[str, ...] = ()
    folder: str = ""
    python: str = ""
    link: str = "spool"
    ssh: tuple[str, ...] = ()
    host: str = ""
    port: int = 0


def settings_of(site: Site) -> SlurmSettings:
    """Parses the settings. Raises InputError if a setting is invalid."""
    check_settings(site, KNOWN)
    settings = site.settings
    for name in ("partition", "account", "qos", "gres", "control"):
        _check(site, name, _WORD, "a plain word")
    for name in ("folder", "python"):
        _check(site, name, _PATH, "an absolute path without spaces or quotes")
    host, _, port = settings.get("control", "").partition(":")
    if port and not port.isdigit():
        raise _wrong(site, "control", "is neither HOST nor HOST:PORT")
    link = settings.get("link", "spool")
    if link not in ("spool", "tls"):
        raise _wrong(site, "link", "is neither spool nor tls")
    return SlurmSettings(
        partition=settings.get("partition", ""),
        account=settings.get("account", ""),
        qos=settings.get("qos", ""),
        time_limit_seconds=_time_limit(site, settings.get("time_limit", "")),
        gres=settings.get("gres", "gpu"),
        extra=_options(site),
        setup=settings.get("setup", ""),
        environment=tuple(
            name.strip() for name in settings.get("environment", "").split(",") if name.strip()
        ),
        folder=settings.get("folder", "").rstrip("/"),
        python=settings.get("python", ""),
        link=link,
        ssh=tuple(_words(site, "ssh")),
        host=host,
        port=int(port or 0),
    )


OF_RESOURCES = ("partition", "account", "qos", "time_limit", "gres", "extra", "setup", "environment")
"""The settings of a site that a resource may override."""


def resource_settings(site: Site, settings: Mapping[str, str]) -> SlurmSettings:
    """Returns the settings of the site. If the resource has a setting with the same name, the setting of the
    resource replaces it. If a setting of the resource is empty, it removes the setting of the site."""
    return settings_of(replace(site, settings={**site.settings, **settings}))


def check_resource(resource: Resource, site: Site) -> None:
    """Raises InputError if a setting of the resource is invalid, or if only the site can have this
    setting."""
    for name in resource.settings:
        if name in KNOWN and name not in OF_RESOURCES:
            raise InputError(
                f"setting {name!r} is possible only for the whole site",
                hint=f"A resource can have: {', '.join(OF_RESOURCES)}.",
                place=f"resource {resource.name}: settings.{name}",
            )
    try:
        resource_settings(site, resource.settings)
    except InputError as error:
        place = error.place.replace(f"site {site.name}", f"resource {resource.name}", 1)
        raise InputError(error.message, hint=error.hint, place=place) from error


def _check(site: Site, name: str, form: re.Pattern[str], what: str) -> None:
    if site.settings.get(name) and not form.fullmatch(site.settings[name]):
        raise _wrong(site, name, f"is not {what}")


def _wrong(site: Site, name: str, problem: str) -> InputError:
    return InputError(
        f"{site.settings.get(name, '')!r} {problem}",
        hint=f"The setting is {KNOWN[name]}.",
        place=f"site {site.name}: settings.{name}",
    )


def _words(site: Site, name: str) -> list[str]:
    try:
        return shlex.split(site.settings.get(name, ""))
    except ValueError as error:
        raise _wrong(site, name, f"cannot be read: {error}") from error


def _options(site: Site) -> tuple[str, ...]:
    """Returns the text `--exclude=n7 --reservation=x` as separate options, one for each line of the
    script."""
    words = _words(site, "extra")
    if any(not word.startswith("-") or "\n" in word for word in words):
        raise _wrong(site, "extra", "has words that are not options (write --name=value)")
    return tuple(words)


def _time_limit(site: Site, text: str) -> float:
    """Returns the time limit in seconds. A number without a unit is refused, because Slurm would read it as
    minutes and other settings as seconds."""
    if not text:
        return 0.0
    if text.isdigit():
        raise _wrong(site, "time_limit", "has no unit (write 90m or 2h)")
    match = _SLURM_TIME.fullmatch(text)
    seconds = _slurm_seconds(match) if match else _duration(site, text)
    if seconds < 60:
        raise _wrong(site, "time_limit", "is less than a minute")
    return seconds


def _duration(site: Site, text: str) -> float:
    try:
        return parse_seconds(text)
    except InputError as error:
        raise _wrong(site, "time_limit", "is not a time limit") from error


def _slurm_seconds(match: re.Match[str]) -> float:
    """MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]]."""
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    units = (3600, 60, 1) if days is not None or len(parts) == 3 else (60, 1)
    return float(86400 * int(days or 0) + sum(part * unit for part, unit in zip(parts, units, strict=False)))
