"""Where a job could go, and what is expected of it there: the time it runs, waits, and its data travels."""

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
