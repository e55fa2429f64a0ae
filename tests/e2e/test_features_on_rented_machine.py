"""A service on a rented machine that computes windows by key: its view is sent from home through the tunnel,
and its answers equal those of a service at home."""

from typing import Any

import pytest

from gridmill.declarations import read_pipeline
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.service import ServiceState
from gridmill.domain.service_features import FeatureRule, FeatureSettings, ViewReport, ViewStatus
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.states import RunState
from tests.e2e.test_cloud_site import Rent, Rented, net, rent
from tests.e2e.test_features_at_a_farm import ROWS
from tests.e2e.test_services_with_features import PIPELINE, call, csv_rows
from tests.kit.host_cloud import why_not

__all__ = ["net", "rent"]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is everything"),
]
RULES = {"x_mean_2d": FeatureRule(max_age_seconds=86_400.0, default=-1.0)}


class Pair:
    """The service `near` at home, and the service `far` on a rented machine, with the same version."""

    def __init__(self, rented: Rented) -> None:
        self.rented, self.grid = rented, rented.node.grid
        self.project = rented.shared / "project"
        self.project.mkdir()
        self.run(csv_rows(112), "rows.csv")
        self.grid.configure_resource(
            Resource(
                name="servers",
                type=JobKind.SERVICE,
                site="burst",
                cpus=1.0,
                memory_bytes=1600 * 2**20,
                keep_seconds=0.0,
            )
        )
        settings = ServiceSettings(features=FeatureSettings(rules=RULES, reach_back_seconds=None))
        for name, resource in (("near", ""), ("far", "servers")):
            self.grid.start_service(name, model="w/m", resource=resource, settings=settings)
        for name in ("near", "far"):
            self.rented.wait(lambda name=name: self.runs(name), f"{name} runs")

    def run(self, rows: str, file: str, only: tuple[str, ...] = ()) -> None:
        """Load rows from a file."""
        (self.project / file).write_text(rows)
        pipeline = self.project / "pipeline.yaml"
        pipeline.write_text(PIPELINE.replace("rows.csv", file))
        begun = self.rented.node.grid.start_run(read_pipeline(pipeline), only=only)
        assert self.rented.ended(begun.run.id).run.state is RunState.SUCCEEDED

    def runs(self, name: str) -> bool:
        return self.rented.node.grid.service(name).state is ServiceState.RUNNING

    def answer(self, name: str) -> Any:
        """The predictions, the values and the statuses of some rows."""
        port = self.rented.node.grid.service(name).service.port
        status, answer = call(port, "/predict?features=values", {"rows": ROWS})
        assert status == 200, answer
        return {part: answer[part] for part in ("predictions", "features")}

    def hold(self, number: int) -> bool:
        """Whether both services have the version of the table, and then the same answers."""
        answers = [self.answer(name) for name in ("near", "far")]
        if any(one["features"]["view"] != {"rows": number} for one in answers):
            return False
        assert answers[0] == answers[1]
        return True

    def view(self) -> ViewReport:
        """The report about the view on the machine."""
        report = self.rented.node.grid.service("far").service.report
        assert report is not None
        return report.views[0]


def test_a_service_on_a_rented_machine_computes_the_features_of_the_service_at_home(rent: Rent) -> None:
    rented = rent(max_hours="2")
    pair = Pair(rented)
    first = pair.answer("far")
    (number,) = first["features"]["view"].values()
    assert {"stale", "defaulted"} <= first["features"].keys()
    rented.wait(lambda: pair.hold(number), "both have the first version")
    pair.run("id,day,x,y\n1,2024-05-01,5,7\n2,2024-04-25,3,1\n", "more.csv", ("rows",))
    rented.wait(lambda: pair.hold(number + 1), "both have the new rows")
    assert pair.answer("far") != first
    wanted = (ViewStatus.FRESH, {"rows": "w/rows@2"})
    rented.wait(lambda: (pair.view().state, pair.view().held) == wanted, "the report")

    # the control node ends and starts again: the machine has the correction of a file soon after it
    rented.leave()
    rented.open()
    pair.run("id,day,x,y\n1,2024-05-01,6,7\n", "more.csv", ("rows",))
    rented.wait(lambda: pair.hold(number + 2), "both have the correction")
    for name in ("near", "far"):
        rented.node.grid.stop_service(name)
