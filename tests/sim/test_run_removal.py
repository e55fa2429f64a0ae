"""A run that is removed goes with its records, logs and files; what it made stays, as its number does."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_races import command, failing, finish, service, simulation

from gridmill.domain.backfill import Backfill, Chunk
from gridmill.domain.job_log import LogRecord
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.errors import ConflictError, NotFoundError
from gridmill.storage.disk_usage import LocalHomeFolders
from gridmill.testing.simulation import Simulation


def pipeline(**settings: object) -> Pipeline:
    return replace(Pipeline(name="w", jobs=(command("a", cache=False), command("b"))), **settings)


def ran(grid: Simulation) -> str:
    return finish(grid, service(grid).start_run(pipeline()).run).id


def test_records_and_logs_go_and_versions_stay() -> None:
    grid = simulation()
    first, second = ran(grid), ran(grid)
    grid.store.commit((), [Event(time=1.0, type="log", run_id=first, job="a", body={"text": "x"})])
    ran(grid)
    plan = service(grid).remove_run(first, dry_run=True)
    assert (plan.jobs, plan.attempts, plan.versions) == (2, 2, ("w/b@1", "w/a@1"))
    assert service(grid).run(first)
    assert service(grid).remove_run(first) == plan
    for kind in (JobRun, Attempt):
        assert not grid.store.list(kind, parent=first)
    assert not grid.store.events(run_id=first)
    assert [run.id for run in service(grid).runs().items] == ["w-3", second]
    with pytest.raises(NotFoundError, match="w-1"):
        service(grid).run(first)
    with pytest.raises(NotFoundError):
        service(grid).resume(first)
    with pytest.raises(NotFoundError):
        service(grid).remove_run(first)
    assert service(grid).version("w/a@1").artifact.run_id == first, "it can still be shown"


def test_the_number_of_the_newest_run_is_not_used_again() -> None:
    grid = simulation()
    first = ran(grid)
    service(grid).remove_run(first)
    grid.control_dies()
    assert ran(grid) == "w-2"
    assert grid.store.get(Run, "w-1") is None


def test_an_active_run_and_one_of_a_backfill_stay() -> None:
    grid = simulation()
    active = service(grid).start_run(pipeline()).run
    with pytest.raises(ConflictError, match="active"):
        service(grid).remove_run(active.id)
    finish(grid, active)
    backfill = Backfill(name="w", begins="2024-01-01", ends="2024-01-02")
    chunk = Chunk(pipeline=pipeline(), begins="2024-01-01", ends="2024-01-02")
    service(grid).start_backfill(backfill, (chunk,))
    assert grid.run_until(lambda: service(grid).backfill("w").chunks[0].run != "")
    run = service(grid).run(service(grid).backfill("w").chunks[0].run).run
    finish(grid, run)
    with pytest.raises(ConflictError, match="belongs to the backfill w"):
        service(grid).remove_run(run.id)


def test_files_of_its_attempts_and_its_report_go_and_nothing_else(tmp_path: Path) -> None:
    grid = simulation(failing)
    grid.node.control.home_folders = LocalHomeFolders(tmp_path, tmp_path / "root")
    first = ran(grid)
    ran(grid)
    own = [tmp_path / "root/files/w/a" / f"{first}.a.1", tmp_path / "reports" / f"{first}.html"]
    others = [
        tmp_path / "root/files/w/a/w-11.a.1",
        tmp_path / "root/files/w/a/w-2.a.1",
        tmp_path / "reports/w-2.html",
        tmp_path / "reports/w-11.html",
    ]
    for path in (*own, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if path.suffix != ".html" else path.write_text("1234")
    assert service(grid).remove_run(first, dry_run=True).size_bytes >= 4
    assert all(path.exists() for path in own)
    service(grid).remove_run(first)
    assert [path.exists() for path in (*own, *others)] == [False] * 2 + [True] * 4


def test_logs_go_with_their_runs_and_with_runs_that_have_no_record() -> None:
    grid = simulation()
    first, second = ran(grid), ran(grid)
    grid.logs.append(
        [
            LogRecord(run_id=one, job="a", attempt_id=one, number=1, time=1.0, stream="out", text="x\n")
            for one in (first, second, "lost-1")
        ]
    )
    assert service(grid).remove_run(first, dry_run=True).size_bytes > 0
    service(grid).remove_run(first)
    assert {*grid.logs.sizes()} == {second, "lost-1"}
    cleaned = [item for item in service(grid).clean(days=90) if item.kind == "log"]
    assert [(item.name, item.size_bytes) for item in cleaned] == [("lost-1", 2)]
    grid.clock.advance(91 * 86400)
    assert second in {item.name for item in service(grid).clean(days=90, dry_run=True) if item.kind == "log"}
    service(grid).clean(days=90)
    assert not grid.logs.sizes()
