"""What `doctor` looks at where farms are used: whether each answers, its version, the clocks, what it has."""

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gridmill.errors import GridmillError
from gridmill.model.amounts import show_bytes, show_count
from gridmill.model.farm import FarmLook
from gridmill.settings import Settings

if TYPE_CHECKING:
    from gridmill.sites.cluster.credentials import Keeping

Check = tuple[str, bool, str]
_DAY_SECONDS = 86_400.0
_APART_SECONDS = 60.0
_SOON_SECONDS = 30 * _DAY_SECONDS


def look_at_clusters(settings: Settings) -> Iterator[Check]:
    """One line for each farm that this home joined."""
    folder = settings.home / "clusters"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        if not name.startswith("."):
            yield f"farm {name}", *_looked(settings.home, name)


def _looked(home: Path, name: str) -> tuple[bool, str]:
    if find_spec("cryptography") is None:
        return False, "cryptography is missing: pip install 'gridmill[tls]'"
    from gridmill.sites.cluster import credentials

    kept = credentials.keeping(home, name)
    try:
        renew = f"`gridmill farm rotate` there, then `gridmill add cluster {name}` with the line that it says"
        amiss = look_at_dates(kept.certificate, time.time(), renew)
        return (False, amiss) if amiss else _asked(kept)
    except GridmillError as error:
        return False, ". ".join(filter(None, (error.message, error.hint)))
    except OSError as error:
        return False, f"{kept.folder} cannot be read: {error.strerror}. Join the farm anew: it says a line"


def look_at_dates(certificate: Path, now: float, renew: str) -> str:
    """Why a certificate does not hold now; empty: it does. Raises InputError."""
    from gridmill.sites.cluster import signing

    try:
        begins, ends = signing.holds(certificate.read_bytes())
    except OSError as error:
        return f"{certificate} cannot be read: {error.strerror}"
    if now < begins:
        return f"its certificate holds from {_day(begins)} on, and here it is {_day(now)}: set the clock"
    if now > ends - _SOON_SECONDS:
        return f"its certificate holds until {_day(ends)} (here it is {_day(now)}): {renew}"
    return ""


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def _asked(kept: "Keeping") -> tuple[bool, str]:
    from gridmill.sites.cluster.farm import member

    farm = member(kept)
    try:
        look: FarmLook = farm.look()
        apart_seconds = farm.clock() - time.time()
    finally:
        farm.close()
    said = _said(look)
    if abs(apart_seconds) > _APART_SECONDS:
        later = "ahead" if apart_seconds > 0 else "behind"
        return False, f"{said}; its clock is {abs(apart_seconds):.0f} s {later}: set one of them"
    return True, "; ".join((said, *look.warnings))  # what was lost is told; the farm is well


def _said(look: FarmLook) -> str:
    gpus = sum(node.capacity.gpus for node in look.nodes)
    staged = f"{show_bytes(look.staged_bytes)} of {show_bytes(look.quota_bytes)} carried there"
    nodes = f"{show_count(len(look.nodes), 'node')}, {show_count(gpus, 'GPU')}"
    return f"up, version {look.version}, {nodes}, {staged}"
