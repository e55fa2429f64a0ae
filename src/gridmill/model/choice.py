"""Where a job could go, and what is expected of it there: the time it runs, waits, and its data travels."""

from gridmill.model.amounts import about, show_bytes
from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Travel:
    """What a job has carried to a site in another place, and back. Of what it reads `reused_bytes` are there
    and `there_bytes` travel; `back_bytes` is what it makes. None is not known, and `unknown` says of what."""

    there_bytes: int | None = None
    there_seconds: float | None = None
    reused_bytes: int = 0
    back_bytes: int | None = None
    back_seconds: float | None = None
    there_bytes_per_second: float | None = None
    back_bytes_per_second: float | None = None
    unknown: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Both ways. What it makes is left out where nobody knows how much that is."""
        if self.there_seconds is None:
            return None
        return self.there_seconds + (self.back_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A resource that a job may use. `travel`: None where nothing is carried. None seconds were not measured
    yet. `before`: so many deployments wait for the room of its site. `problem` is why it cannot run there,
    `away` why not now."""

    resource: str
    site: str
    label: str
    run_seconds: float | None = None
    wait_seconds: float | None = 0.0
    before: int = 0
    travel: Travel | None = None
    problem: str = ""
    away: str = ""

    @property
    def quickest_seconds(self) -> float | None:
        """Until what it makes is here, if it did not have to wait."""
        travel = 0.0 if self.travel is None else self.travel.seconds
        return None if self.run_seconds is None or travel is None else self.run_seconds + travel

    @property
    def seconds(self) -> float | None:
        """Until what it makes is here."""
        quickest, wait = self.quickest_seconds, self.wait_seconds
        return None if quickest is None or wait is None else quickest + wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The resource that was chosen among `alternatives`, and why, as a sentence."""

    resource: str
    alternatives: tuple[Alternative, ...]
    why: str

    @property
    def chosen(self) -> Alternative:
        """What is expected of it there."""
        return next(one for one in self.alternatives if one.resource == self.resource)


def told(one: Alternative) -> str:
    """`gpu-farm 6 min + 3 min transfer`."""
    if one.problem or one.away:
        return f"{one.label} {'cannot run it' if one.problem else one.away}"
    words = [about(one.run_seconds) if one.run_seconds is not None else "not measured yet"]
    if one.travel is not None:
        known = one.travel.seconds
        words.append("transfer not known yet" if known is None else f"{about(known)} transfer")
    behind = f" behind {one.before}" if one.before else ""
    if one.wait_seconds is None:
        words.append(f"a wait{behind} that is not known")
    elif one.wait_seconds >= 1:
        words.append(f"{about(one.wait_seconds)} wait{behind}")
    return f"{one.label} {' + '.join(words)}"


def travel_lines(travel: Travel, site: str) -> tuple[str, ...]:
    """What is carried, how long it takes and at what rate, as sentences; and what is not known of it."""
    lines: list[str] = []
    if travel.there_bytes is not None:
        there = f" ({show_bytes(travel.reused_bytes)} are there)" if travel.reused_bytes else ""
        size = show_bytes(travel.there_bytes) if travel.there_bytes else "nothing"
        lines.append(f"{size} to {site}{there}{_taking(travel, there=True) if travel.there_bytes else ''}")
    if travel.back_bytes is not None:
        back = f"about {show_bytes(travel.back_bytes)}" if travel.back_bytes else "nothing"
        lines.append(f"{back} back{_taking(travel, there=False) if travel.back_bytes else ''}")
    carried = (f"carries {', '.join(lines)}",) if lines else ()
    return (*carried, *(f"not known: {one}" for one in travel.unknown))


def _taking(travel: Travel, *, there: bool) -> str:
    seconds = travel.there_seconds if there else travel.back_seconds
    rate = travel.there_bytes_per_second if there else travel.back_bytes_per_second
    if seconds is None:
        return ""
    return f" in {about(seconds)}" + (f" at {show_bytes(rate)}/s" if rate else "")
