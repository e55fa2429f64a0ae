"""The contextual features of a service: the rules of single features and the policy, the view from which
replicas compute the features, and the reports about it."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from gridmill.domain.amounts import MIB
from gridmill.domain.artifact import Artifact, Output
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.naming import did_you_mean
from gridmill.errors import InputError

VIEWS_FILE = "views.json"
SENT_FOLDER, SENT_FILE = "sent", "sent.json"
"""The names of the folder with the files of a view that are sent to another site, and of the file with their
description, in the folder of the view at home."""
VIEW_COPIES = "views"
"""The name of the folder with copies of views, in the folder of the process of a service."""
DECLARATION = "declaration"
"""The detail of a version of a dataset that has its declaration, for services that compute its features."""
CHECK_SECONDS = 5.0
"""The interval in seconds at which the control node sends the newest versions of the tables to a service. It
also sends unchanged versions, so that the service knows that its view is fresh."""
REACH_BACK_SECONDS = 86_400.0
"""How far in the past the as-of time of a request may be, unless the settings of the service say
otherwise."""


class OnTrouble(StrEnum):
    """What a service does with a request that it cannot answer completely: it refuses the request, or it
    answers with statuses that show what is missing."""

    REFUSE = "refuse"
    SERVE = "serve"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRule:
    """The rule of one feature. `max_age_seconds` is the largest age of the newest row of its key; an older
    value is `stale`. `default` replaces a missing value, unless it is None."""

    max_age_seconds: float | None = None
    default: float | str | bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlinePolicy:
    """What a service does if its view is not as it should be.

    `stale_after_seconds` is the age after which the whole view is stale (default: never). `on_stale` decides
    about requests to a stale view, `on_broken` about requests to a view that is missing or damaged, and
    `on_unknown_key` about rows whose key has no row in the view and whose features have no default.
    """

    stale_after_seconds: float | None = None
    on_stale: OnTrouble = OnTrouble.SERVE
    on_broken: OnTrouble = OnTrouble.REFUSE
    on_unknown_key: OnTrouble = OnTrouble.SERVE


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSettings:
    """The settings of the contextual features of a service.

    `sent` are features that requests send although they are computed in the dataset. `rules` are the rules of
    single features. A request may have an as-of time up to `reach_back_seconds` in the past (None: any time;
    the view then keeps all rows).
    """

    sent: tuple[str, ...] = ()
    rules: Mapping[str, FeatureRule] = field(default_factory=dict)
    policy: OnlinePolicy = OnlinePolicy()
    reach_back_seconds: float | None = REACH_BACK_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureStage:
    """A version of a model whose predictions are features of another version. `version` is its id, and
    `definition` the definition of its own features. `columns` are the columns of its predictions
    (`prediction`, `probability_yes`), by the names of the features."""

    version: str
    columns: Mapping[str, str]
    definition: "FeatureDefinition"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDefinition:
    """The stored definition of the contextual features of one version of a model. `folder` and `view` are the
    URIs of the folders of the definition and of its view.

    `tables` are the tables behind the view: the names in the declaration of the dataset, each with the name
    of the artifact (`pipeline/job`). `request` are the columns that requests send, with their SQL types,
    including those that only the `stages` read. The stages predict features of this version.
    """

    folder: str
    view: str
    tables: Mapping[str, str]
    request: Mapping[str, str]
    stages: tuple[FeatureStage, ...] = ()

    def all_definitions(self) -> "tuple[FeatureDefinition, ...]":
        """Return this definition and those of all its stages."""
        return (self, *(part for one in self.stages for part in one.definition.all_definitions()))

    def all_stages(self) -> tuple[FeatureStage, ...]:
        """Return the stages of this definition and their stages."""
        return tuple(part for one in self.stages for part in (*one.definition.all_stages(), one))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A version of a table behind a view. `artifact` is the id of the version."""

    artifact: str
    output: Output


class ViewMode(StrEnum):
    """Where the rows of a view come from, and who reads them."""

    LOCAL = "local"
    """The view is made from the tables, for replicas that read its file."""
    SENT = "sent"
    """The view is made from the tables, and copied to files that are sent to replicas at another site."""
    RECEIVED = "received"
    """The view is made from files that another home has sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentFile:
    """One file of a sent view: its name in the folder of its series, its size and its SHA-256 hash (hex)."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentView:
    """The files from which another site makes the same view: a snapshot, and all changes after it, the oldest
    first. `series` is the id of the snapshot, and the name of the folder of the files. A change is in one
    file, and the changes of a series are numbered from 1.

    `held` are the ids of the versions that the view holds after the last change, by the names of the tables,
    and `synced_at` is the last time (Unix seconds, by the clock of the home) at which they were the newest.
    `problem` is the reason why the view cannot be sent; it then has no files.
    """

    series: str = ""
    snapshot: SentFile | None = None
    changes: tuple[SentFile, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    synced_at: float = 0.0
    problem: str = ""

    def files(self) -> tuple[SentFile, ...]:
        """Return all files."""
        return (self.snapshot, *self.changes) if self.snapshot is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOrder:
    """The desired content of one view. `definition` and `folder` are the absolute paths of the folders of a
    definition and of its view, and `root` is the storage root. `tables` are the newest versions of the tables
    by their names in the declaration.

    At another site, `received` is the view as the home sent it, and `files` the absolute path of the folder
    with its files; `received` is None until the home has a complete view. If the other site has the same
    storage root, `shared` is the absolute path of the folder of the view at home, from which the files and
    their description are read instead.
    """

    definition: str
    folder: str
    root: str
    tables: Mapping[str, TableVersion]
    reach_back_seconds: float | None = REACH_BACK_SECONDS
    mode: ViewMode = ViewMode.LOCAL
    received: SentView | None = None
    files: str = ""
    shared: str = ""

    def copied(self) -> "ViewOrder":
        """Return the order for a process at a site that has the same storage root as the home."""
        # a pod that cannot read `shared` reads `received`, and then shows this problem
        received = SentView(problem="the Gridmill of this pod is older and cannot read views of its home")
        return replace(
            self,
            folder=view_copy_folder(self.folder),
            mode=ViewMode.RECEIVED,
            received=received,
            shared=self.folder,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOrders:
    """The desired content of all views of a service. `checked_at` is the time (Unix seconds) at which these
    versions were the newest. For another site, `sent_at` is the time of the home at which this was sent."""

    views: tuple[ViewOrder, ...] = ()
    checked_at: float = 0.0
    sent_at: float | None = None

    def sent(self) -> "ViewOrders":
        """Return the orders for the process at home that makes the files for replicas at another site."""
        return replace(self, views=tuple(replace(one, mode=ViewMode.SENT) for one in self.views))

    def copied(self) -> "ViewOrders":
        """Return the orders for the process of replicas at a site that has the same storage root as the home.
        The time of the orders is the present time, so that the process learns how its clock differs."""
        return replace(self, views=tuple(one.copied() for one in self.views), sent_at=self.checked_at)


def view_copy_folder(view: str) -> str:
    """Return the folder of the copy of a view, relative to the folder of the process of a service. The copy
    is not in the storage root, because SQLite needs a disk of this machine."""
    return f"{VIEW_COPIES}/{view.rpartition('/')[2]}"


class ViewStatus(StrEnum):
    """The state of a view as its keeper observes it."""

    BUILDING = "building"
    """The view is built for the first time. Replicas start when it is complete."""
    FRESH = "fresh"
    """The view holds the newest versions of its tables."""
    BEHIND = "behind"
    """The view holds earlier versions, and newer versions are being applied."""
    FAILING = "failing"
    """The newest versions cannot be applied. The view serves what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewReport:
    """The observed state of one view. `folder` is the path of the view. If `is_complete` is false, the view
    cannot serve yet. `held` are the ids of the versions that the view holds, by the names of the tables; it
    is empty until the versions are known.

    `checked_at` is the last time (Unix seconds) at which these were the newest versions. `behind_since` is
    the time at which the oldest version that the view lacks became known; None if it lacks none.
    `spent_seconds` is the duration of the last change of the view. `problem` is the reason why the newest
    versions cannot be applied.
    """

    folder: str
    state: ViewStatus = ViewStatus.BUILDING
    is_complete: bool = False
    held: Mapping[str, str] = field(default_factory=dict)
    checked_at: float = 0.0
    behind_since: float | None = None
    spent_seconds: float = 0.0
    problem: str = ""


def check_features(settings: FeatureSettings) -> None:
    """Raise InputError for settings of features that a service cannot have."""
    seconds = {
        "stale_after": settings.policy.stale_after_seconds,
        "reach_back": settings.reach_back_seconds,
        **{f"rules.{name}.max_age": rule.max_age_seconds for name, rule in settings.rules.items()},
    }
    for name, value in seconds.items():
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{value:g} s is not a positive time", place=f"features.{name}")
    both = sorted(set(settings.sent) & settings.rules.keys())
    if both:
        raise InputError(
            f"{both[0]!r} is sent by requests, so it has neither an age nor a default",
            place=f"features.rules.{both[0]}",
        )


def check_sent_features(version: Artifact, settings: FeatureSettings) -> None:
    """Raise InputError for settings of features that name something although requests send all features of
    this version: rules, and unknown names in `sent`."""
    known = tuple(version.output.details.get("features") or ())
    for place, names in (("rules", settings.rules), ("sent", settings.sent)):
        for name in names:
            if known and name not in known and name != ALL_SENT:
                raise InputError(
                    f"{name!r} is not a feature of {version.id}{did_you_mean(name, known)}",
                    hint=f"{version.id} has the features {', '.join(known)}.",
                    place=f"features.{place}.{name}",
                )
    for name in settings.rules:
        raise InputError(
            f"no feature of {version.id} is computed by key, so {name!r} has no rule",
            hint="Requests send all features of this version. Leave out `rules`.",
            place=f"features.rules.{name}",
        )


def request_differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the differences between the columns that requests to two versions send. A column that is no
    longer needed is no difference, because it is ignored."""
    new = [name for name in after if name not in before]
    changed = [name for name in after if name in before and before[name] != after[name]]
    added = (f"requests must also send {', '.join(f'`{name}`' for name in new)}",) if new else ()
    return added + tuple(
        f"the type of the column `{name}` was {before[name]} and is {after[name]}" for name in changed
    )


ALL_SENT = "*"
"""As the only name in `sent`, it means that requests send all features, and nothing is computed by key."""
_KEEPER_BYTES, _READER_BYTES = 768 * MIB, 128 * MIB


def view_bytes(replicas: int) -> int:
    """Return the additional memory of a service whose features come from a view: the process that keeps the
    view, and the part of each replica (and of one more, during an update) that reads it."""
    return _KEEPER_BYTES + (replicas + 1) * _READER_BYTES


def may_need_view(spec: DatasetSpec, sequence: int | None) -> bool:
    """Return whether requests for a model of this dataset can differ from the rows of the dataset."""
    parts = (spec.windows, spec.lags, spec.joins, spec.asof_joins, spec.features, spec.encoders)
    return sequence is not None or any(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageQuestion:
    """A version whose predictions the dataset of another version joins row by row. `tables` are the names of
    the tables with its predictions in the declaration of that dataset. `version` is the version of the model,
    and `question` asks for the definition of its own features."""

    tables: tuple[str, ...]
    version: Artifact
    question: "FeatureQuestion"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureQuestion:
    """A request to define the contextual features of a version of a model for the service `service`.

    `dataset` is the version on which the model was trained, `spec` its declaration, and `inputs` are the
    versions of its tables. `columns` and `sequence` are what the model reads. Folders of the service that are
    not among the URIs in `kept` are deleted. `stages` are the versions that made the predictions in the
    dataset. A definition that `is_stage` is also stored if nothing is computed by key.
    """

    service: str
    root: str
    dataset: Artifact
    spec: DatasetSpec
    inputs: Mapping[str, Artifact]
    columns: tuple[str, ...]
    sequence: int | None = None
    settings: FeatureSettings = FeatureSettings()
    kept: tuple[str, ...] = ()
    stages: tuple[StageQuestion, ...] = ()
    is_stage: bool = False

    def table_names(self) -> dict[str, str]:
        """Return the names of the artifacts (`pipeline/job`) of the tables, by their names in the
        declaration."""
        return {name: one.name for name, one in self.inputs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureAnswer:
    """The stored definition, or None if requests send all features. `error` has the form of the result of
    `errors.to_body`; None if the features can be computed."""

    definition: FeatureDefinition | None = None
    error: Mapping[str, Any] | None = None


def features_folder(service: str) -> str:
    """Return the URI of the folder with the definitions and the views of a service."""
    return f"services/{service}/features"
