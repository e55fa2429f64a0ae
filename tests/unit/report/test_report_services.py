"""The part of the report about aliases that a comparison has moved or kept, and about services."""

from tests.kit.report_views import a_job, a_run
from tests.unit.report.test_report_page import words

from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import Event
from gridmill.domain.promotion import PROMOTION_EVENT, PromotionState
from gridmill.domain.service import Service, ServiceState, ServiceView
from gridmill.report.jobs import timeline_of
from gridmill.report.render import render

BOTH = "w/m@2 has rmse 0.4, w/m@1 has 0.5 on the same 500 rows"


def promotion(alias: str, state: PromotionState) -> Event:
    body = {"what": "alias", "id": alias, "state": state.value, "message": f"{state}: {BOTH}"}
    return Event(time=1.0, type=PROMOTION_EVENT, run_id="p-2", job="check", body=body)


def test_the_report_shows_the_newest_result_of_each_alias_and_the_command_that_accepts_a_version() -> None:
    waiting = promotion("w/m@champion", PromotionState.WAITING)
    other = promotion("w/m@other", PromotionState.KEPT)
    told = words(render(a_run(a_job("check")), (waiting, other)))
    assert f"w/m@champion waits for approval: {BOTH}" in told
    assert "To accept the new version: gridmill promote model w/m@champion" in told
    assert f"w/m@other not moved: {BOTH}" in told
    assert "promote model w/m@other" not in told
    moved = promotion("w/m@champion", PromotionState.MOVED)
    told = words(render(a_run(a_job("check")), (waiting, moved)))
    assert f"w/m@champion moved: {BOTH}" in told
    assert "To accept" not in told


def test_the_report_shows_the_services_of_the_run_with_their_states() -> None:
    service = Service(
        name="rain", model="w/m@1", version="w/m@1", canary="w/m@2", canary_percent=10.0, replicas=2
    )
    view = ServiceView(
        service=service, state=ServiceState.FAILING, url="http://127.0.0.1:4000", ready=1, message="no memory"
    )
    told = words(render(a_run(a_job("check")), (), services=(view,)))
    assert "rain failing w/m@1, 10 % w/m@2 1 of 2 ready http://127.0.0.1:4000 no memory" in told
    assert "Aliases and services" not in words(render(a_run(a_job("check")), ()))


def test_a_job_that_starts_a_service_has_a_bar_in_the_timeline() -> None:
    job = a_job("rain")
    served = replace(job, attempts=(), job=replace(job.job, started=2.0, ended=6.0, message="rain at :4000"))
    assert timeline_of(a_run(replace(served, job=replace(served.job, started=None)))) == ("", 0)
    page, left_out = timeline_of(a_run(served))
    assert left_out == 0
    assert "rain at :4000" in page
