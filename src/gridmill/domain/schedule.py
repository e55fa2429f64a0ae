"""This module has schedules: the times at which a stored pipeline runs by itself, and the state of each
schedule."""

from enum import StrEnum

from gridmill.domain.amounts import show_period
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError


class CatchUp(StrEnum):
    """The handling of runs that were due while the control node was not running."""

    LATEST = "latest"
    """One run is started, for the newest due time."""
    ALL = "all"
    """A run is started for each due time, and the run for the oldest due time is started first."""
    NONE = "none"


class Overlap(StrEnum):
    """The handling of a run that is due while another run of the pipeline is active."""

    QUEUE = "queue"
    """The run starts after the other run has ended. If several runs were due meanwhile, `catch_up` decides
    which of them start."""
    SKIP = "skip"
    ALLOW = "allow"
    """The runs overlap, but jobs that make the same version run one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous:
    """A schedule that starts a run whenever there is new data, one block after the other. The value `true`
    instead of fields means that all fields have their defaults.

    A block is closed, and a run is started for it, as soon as there are `max_files` new files or `max_bytes`
    of new files, or as soon as the first of these files has waited for `max_wait` (default: immediately).
    `check` is the interval between two checks of the sources. At most `in_flight` runs are active: a run
    loads its block while the previous runs still process their blocks. If processing is slower than loading,
    new data waits in the source, and the next block becomes larger.
    """

    max_files: int | None = None
    max_bytes: int | None = None
    max_wait_seconds: float = 0.0
    check_seconds: float = 5.0
    in_flight: int = 2

    def check(self) -> None:
        """Raise InputError if the limits do not allow any block."""
        if self.in_flight < 1:
            raise InputError("`in_flight` must be 1 or more", place="continuous.in_flight")
        if self.max_files is not None and self.max_files < 1:
            raise InputError("`max_files` must be 1 or more", place="continuous.max_files")
        if self.check_seconds < 0.1:
            raise InputError("`check` must be 0.1s or more", place="continuous.check")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftTrigger:
    """A rule that starts a run when the requests of a service begin to drift.

    `service` is the name of the service. A drift begins when the first feature or the prediction of the
    served version drifts, and ends when none drifts any more. A run starts when the drift begins, and again
    after each `pause` while the drift continues, because labels often arrive later than requests. If a run
    fails, this drift starts no further run. A run waits until other runs of the pipeline have ended.
    """

    service: str
    pause_seconds: float = 86_400.0

    def check(self) -> None:
        """Raise InputError for an empty name, or for a pause that is shorter than a second."""
        if not self.service:
            raise InputError("`service` is empty", place="drift.service")
        if self.pause_seconds < 1:
            raise InputError("`pause` must be 1s or more", place="drift.pause")

    @property
    def text(self) -> str:
        """The rule as text, such as `drift of service rain (pause 1d)`."""
        return f"drift of service {self.service} (pause {show_period(self.pause_seconds)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """The declaration of the times at which a pipeline or one of its jobs runs: at intervals (`every`), at
    the times of a `cron` expression, whenever there is new data (`continuous`), or when the requests of a
    service begin to drift (`drift`). `drift` can be set alone, or beside `every` or `cron`.

    `every` is counted from the time when the schedule was first applied, and a run is also due at that time.
    `1mo` and `1y` are calendar months and years in the time zone `zone` (`Europe/Amsterdam`); a day is
    always 24 hours. `cron` has five fields (minute, hour, day, month, weekday), and its times are in the
    time zone `zone`. If the cron expression names hours, a time that daylight saving skips is due right
    after the clock change, and a repeated time is due once. Schedules start runs only while `gridmill up` is
    running.
    """

    every_seconds: float | None = None
    every_months: int | None = None
    cron: str | None = None
    continuous: Continuous | None = None
    drift: DriftTrigger | None = None
    zone: str = "UTC"
    catch_up: CatchUp = CatchUp.LATEST
    overlap: Overlap = Overlap.QUEUE

    def check(self) -> None:
        """Raise InputError if an interval in seconds is shorter than a second, or if an interval in months
        is shorter than a month."""
        if self.drift is not None and self.continuous is not None:
            raise InputError(
                "a continuous schedule cannot have `drift`",
                hint="Give a job of the pipeline a schedule of its own.",
                place="schedule.drift",
            )
        if self.every_seconds is not None and self.every_seconds < 1:
            raise InputError("`every` must be 1s or more", place="schedule.every")
        if self.every_months is not None and self.every_months < 1:
            raise InputError("`every` must be 1mo or more", place="schedule.every")

    @property
    def text(self) -> str:
        """The schedule as text, such as `every 900 s`, `every 1mo UTC`, `cron 0 6 * * * UTC`, `continuous` or
        `every 900 s; drift of service rain (pause 1d)`."""
        times = self._times_text
        return "; ".join(filter(None, (times, self.drift.text if self.drift is not None else "")))

    @property
    def _times_text(self) -> str:
        if self.cron is not None:
            return f"cron {self.cron} {self.zone}"
        if self.every_months is not None:
            return f"every {show_period(None, self.every_months)} {self.zone}"
        if self.every_seconds is not None:
            return f"every {self.every_seconds:g} s"
        return "continuous" if self.continuous is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of an applied pipeline or of one of its jobs. The schedule of a pipeline has the name of
    the pipeline, and the schedule of a job has the name `PIPELINE/JOB`.

    Due times are counted from `since`; all due times up to `done` have been processed. `since` and `done`
    are Unix times in seconds. `runs` is the number of runs that the schedule started, and `skipped` is the
    number of due times that it skipped. `unchanged` is the number of due times at which there was no new
    data, so that no run started. `last_run` is the id of the newest run that the schedule started. `message`
    is the last action of the schedule, or the reason why it cannot start a run now.

    `drift_seen` names the last drift that started a run, and `drift_run` is the last run that it started;
    empty if the run could not begin. `drift_checked` is the last time at which a drift started a run, or at
    which there was no new data for it (Unix seconds).
    """

    name: str
    spec: ScheduleSpec
    since: float
    done: float | None = None
    paused: bool = False
    last_run: str = ""
    runs: int = 0
    unchanged: int = 0
    skipped: int = 0
    message: str = ""
    drift_seen: str = ""
    drift_run: str = ""
    drift_checked: float | None = None

    @property
    def pipeline(self) -> str:
        """The pipeline that the schedule runs, or the pipeline to which the scheduled job belongs."""
        return self.name.partition("/")[0]

    @property
    def only(self) -> tuple[str, ...]:
        """The job that the schedule runs, with the jobs that it needs; empty if the schedule runs all jobs
        of the pipeline."""
        job = self.name.partition("/")[2]
        return (job,) if job else ()
