"""The critical path: found in any graph, and only it makes a run longer."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.cli.format import critical_line
from gridmill.domain.amounts import Amounts
from gridmill.domain.graph import critical_path
from gridmill.domain.resource import Sizing
from gridmill.domain.run import JobRun
from gridmill.domain.states import JobState
from gridmill.domain.views import JobView, RunView
from gridmill.report.render import render
from gridmill.testing.store_samples import a_job_run, a_run


def job(name: str, seconds: float | None, needs: tuple[str, ...] = ()) -> JobRun:
    sizing = Sizing(amounts=Amounts(), expected_seconds=seconds)
    return replace(a_job_run("p-1", name), needs=needs, sizing=sizing)


@st.composite
def graphs(draw: st.DrawFn) -> list[JobRun]:
    jobs: list[JobRun] = []
    for number in range(draw(st.integers(1, 8))):
        before = [known.id for known in jobs]
        needs = draw(st.lists(st.sampled_from(before), unique=True, max_size=3)) if before else []
        jobs.append(job(f"j{number}", float(draw(st.integers(0, 9))), tuple(needs)))
    return draw(st.permutations(jobs))


@given(graphs())
def test_the_path_is_as_long_as_the_run_and_nothing_on_it_may_take_longer(jobs):
    found = critical_path(jobs, 0.0)
    by_id = {known.id: known for known in jobs}
    assert sum(found.seconds[key] for key in found.path) == found.total_seconds
    assert all(need in by_id[key].needs for need, key in zip(found.path, found.path[1:], strict=False))
    assert not by_id[found.path[0]].needs
    assert all(found.slack[key] == 0 for key in found.path)


@given(graphs(), st.data())
def test_a_job_may_take_as_much_longer_as_its_slack_and_no_more(jobs, data):
    found = critical_path(jobs, 0.0)
    chosen = data.draw(st.sampled_from(jobs))

    def total(more: float) -> float:
        longer = job(chosen.job.name, found.seconds[chosen.id] + more, chosen.needs)
        return critical_path([longer if known is chosen else known for known in jobs], 0.0).total_seconds

    assert total(found.slack[chosen.id]) == pytest.approx(found.total_seconds)
    assert total(found.slack[chosen.id] + 1.0) == pytest.approx(found.total_seconds + 1.0)


def test_times_are_those_measured_so_far_and_else_expected():
    done = replace(job("a", 99.0), state=JobState.SUCCEEDED, started=10.0, ended=15.0)
    running = replace(job("b", 4.0), state=JobState.RUNNING, started=15.0)
    stands = replace(job("c", 50.0), state=JobState.UNCHANGED)
    unknown = job("d", None, (done.id, running.id, stands.id))
    found = critical_path([done, running, stands, unknown], 25.0)
    assert [key.rpartition("/")[2] for key in found.path] == ["b", "d"]
    assert found.seconds == {done.id: 5.0, running.id: 10.0, stands.id: 0.0, unknown.id: 0.0}
    assert (found.total_seconds, found.known, found.slack[done.id]) == (10.0, False, 5.0)


def test_status_names_it_where_there_are_branches():
    load, train, plot = job("load", 3.0), job("train", 40.0, ("p-1/load",)), job("plot", 2.0, ("p-1/load",))
    line = critical_line(view_of(load, train, plot), 0.0)
    assert line == "critical path: load 3.0 s, train 40.0 s; slack: plot 38.0 s"
    assert critical_line(view_of(load, train), 0.0) == "", "one after the other: nothing to tell"


def test_the_report_tells_it_where_there_are_branches():
    load, train, plot = job("load", 3.0), job("train", 40.0, ("p-1/load",)), job("plot", 2.0, ("p-1/load",))
    told = render(replace(view_of(load, train, plot), critical=critical_path([load, train, plot], 0.0)), ())
    assert re.sub("<[^>]*>", "", told).count("load 3.0 s → train 40.0 s (43.0 s of the") == 1
    assert "Slack: plot 38.0 s" in told
    assert told.count(" critical") == 2, "its boxes stand out"
    plain = render(replace(view_of(load, train), critical=critical_path([load, train], 0.0)), ())
    assert "Critical path" not in plain


def view_of(*jobs: JobRun) -> RunView:
    return RunView(run=a_run(), jobs=tuple(JobView(job=known) for known in jobs))
