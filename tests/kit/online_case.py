"""A view of the tables of a dataset job, for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gridmill.domain.artifact import Artifact
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.service_features import FeatureRule, OnlinePolicy
from gridmill.errors import InputError
from gridmill.jobs.dataset.label_availability import with_label_clock
from gridmill.online.build import ViewLimits, build_view
from gridmill.online.features import OnlineFeatures
from gridmill.online.plan import OnlinePlan, plan_online
from gridmill.online.refresh import refresh_view
from gridmill.online.source_rows import SourceTable, open_sources, table_types
from gridmill.online.view import ViewState
from tests.kit.dataset_case import DatasetCase

KEEP_ALL = ViewLimits(reach_back_seconds=None)


@dataclass
class OnlineCase:
    """`tables` holds the rows; a view of them is in the folder `view`."""

    tables: DatasetCase
    spec: DatasetSpec
    limits: ViewLimits = KEEP_ALL
    now: float = 1_600_000_000.0
    sequence: int | None = None
    plans: list[OnlinePlan] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.tables.folder / "view"

    def sources(self) -> dict[str, SourceTable]:
        root = self.tables.folder / "root"
        return {
            name: SourceTable(name=name, root=root, output=output, units={})
            for name, output in self.tables.tables.items()
            if name in self.spec.references()
        }

    def clocked(self) -> DatasetSpec:
        inputs = {
            name: Artifact(id=f"p/{name}@1", name=f"p/{name}", number=1, output=output, fingerprint="")
            for name, output in self.tables.tables.items()
        }
        return with_label_clock(self.spec, inputs)

    def make_plan(self, sent: Sequence[str] = (), features: Sequence[str] | None = None) -> OnlinePlan:
        with open_sources(self.tables.folder) as engine:
            types = table_types(engine, self.sources())
        return plan_online(self.clocked(), types, sent=sent, features=features, sequence=self.sequence)

    def plan(self) -> OnlinePlan:
        """The plan in which requests send what cannot be computed by key."""
        if not self.plans:
            try:
                self.plans.append(self.make_plan())
            except InputError as error:
                if not error.problems:
                    raise
                sent = [place.removeprefix("service.features.") for place, _, _ in error.problems]
                self.plans.append(self.make_plan(sent))
        return self.plans[0]

    def build(self) -> ViewState:
        return build_view(self.folder, self.plan(), self.sources(), now=self.now, limits=self.limits)

    def refresh(self) -> ViewState:
        return refresh_view(self.folder, self.plan(), self.sources(), now=self.now, limits=self.limits)

    def features(
        self, rules: Mapping[str, FeatureRule] | None = None, policy: OnlinePolicy | None = None
    ) -> OnlineFeatures:
        return OnlineFeatures(self.folder, self.plan(), rules=rules, policy=policy, clock=lambda: self.now)

    def request(self, row: Mapping[str, Any], computed: Mapping[str, Any]) -> dict[str, Any]:
        """What a client sends for a row of the basis: its columns, its time, and what the plan leaves to
        requests."""
        plan = self.plan()
        time = {plan.time: row[plan.time]} if plan.time is not None else {}
        names = [name for name in plan.request if name in row]
        return {**{name: computed[name] for name in plan.sent}, **{name: row[name] for name in names}, **time}
