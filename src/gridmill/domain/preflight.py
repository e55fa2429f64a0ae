"""Records of the preflight, which checks a pipeline against its data before it runs: question and answer."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`jobs` of one pipeline, each after those that it needs; relative source paths start at `folder`.

    `versions` are tables and models that stand as they are, by the names that jobs give them, `earlier` those
    of sinks and datasets that will run again; both lie below the storage root `root`. `unchanged` jobs do not
    run: they are not checked. `late` are sinks whose files a command may write before they are loaded, each
    with it.
    """

    folder: str
    jobs: tuple[Job, ...]
    root: str = ""
    versions: Mapping[str, Artifact] = field(default_factory=dict)
    earlier: Mapping[str, Artifact] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()
    late: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong with a job, at the field `path` of it (`dataset.sql`). `certain`: a run would fail with
    it; else it may, as only a part of the data was looked at."""

    job: str
    path: str
    message: str
    hint: str = ""
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """A job that was not checked against data, and why."""

    job: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The answer. `error` is as `errors.to_body` writes it. `inferred` are sentences on what a job reads
    out of its data that nobody has declared, by job."""

    findings: tuple[Finding, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()
    inferred: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
