"""The reaper finds the results that machines exported to a bucket, and deletes them on request."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.testing.cloud.test_simulated_provider import World

from gridmill.bootstrap.reap import Reaper
from gridmill.domain.reaping import ReapOrder, ReapReport, ReapResult
from gridmill.errors import UnavailableError
from gridmill.sites.farm.reaped_results import ResultObjects

pytest.importorskip("obstore")
from gridmill.transfer.bucket import BucketClient

ORDER = ReapOrder(kind="simulated", bucket="file:///b")
ID = "0123456789abcdef" * 2


def put(folder: Path, owner: str, lease: str) -> list[Path]:
    """Two objects of a result of a lease."""
    made = folder / "home" / "site" / "results" / owner / lease / ID
    paths = [made / "00", made / "checkpoint-0" / "index"]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return paths


def reap(world: World, folder: Path, order: ReapOrder) -> ReapReport:
    results = ResultObjects(BucketClient(f"file://{folder}"))
    pause = world.clock.advance
    return Reaper(cloud=world.cloud, order=order, clock=world.clock, pause=pause, results=results).reap()


def found(report: ReapReport) -> dict[tuple[str, str], str]:
    return {(one.owner, one.lease): one.result for one in report.items if one.kind == "results"}


def test_results_are_shown_and_kept_because_a_control_node_may_take_them(tmp_path: Path) -> None:
    paths = put(tmp_path, "grid-1", "lease-3")
    (tmp_path / "other").write_text("not of Gridmill")
    report = reap(World(), tmp_path, replace(ORDER, end=True))
    assert found(report) == {("grid-1", "lease-3"): ReapResult.KEPT}
    assert all(path.exists() for path in paths)


def test_with_results_those_of_one_grid_are_deleted(tmp_path: Path) -> None:
    mine, others = put(tmp_path, "grid-1", "lease-3"), put(tmp_path, "grid-2", "lease-3")
    order = replace(ORDER, owner="grid-1", with_results=True)
    assert found(reap(World(), tmp_path, order)) == {("grid-1", "lease-3"): ReapResult.FOUND}
    assert found(reap(World(), tmp_path, replace(order, end=True))) == {
        ("grid-1", "lease-3"): ReapResult.ENDED
    }
    assert not any(path.exists() for path in mine)
    assert all(path.exists() for path in others)


def test_results_of_a_lease_whose_machine_runs_are_kept(tmp_path: Path) -> None:
    world = World()
    machine = world.launch("t1", owner="grid-1")
    put(tmp_path, "grid-1", machine.lease)
    order = replace(ORDER, with_results=True)
    assert found(reap(world, tmp_path, order)) == {("grid-1", machine.lease): ReapResult.KEPT}
    reap(world, tmp_path, replace(order, end=True))
    report = reap(world, tmp_path, order)
    assert found(report) == {("grid-1", machine.lease): ReapResult.FOUND}, "its machine has ended"


def test_young_results_are_kept(tmp_path: Path) -> None:
    put(tmp_path, "grid-1", "lease-3")
    order = replace(ORDER, with_results=True, older_than_seconds=1e12)
    assert found(reap(World(), tmp_path, order)) == {("grid-1", "lease-3"): ReapResult.KEPT}


class Silent(ResultObjects):
    """A bucket whose server does not answer."""

    def leftovers(self):
        raise UnavailableError("the bucket's server does not answer")


def test_a_bucket_that_does_not_answer_is_reported_and_the_machines_end(tmp_path: Path) -> None:
    world = World()
    world.launch("t1", owner="grid-1")
    order, pause = replace(ORDER, end=True), world.clock.advance
    bucket = Silent(BucketClient(f"file://{tmp_path}"))
    report = Reaper(cloud=world.cloud, order=order, clock=world.clock, pause=pause, results=bucket).reap()
    [shown] = [one for one in report.items if one.kind == "results"]
    assert (shown.result, shown.problem) == (ReapResult.REMAINS, "the bucket's server does not answer")
    assert world.account.machines_alive() == ()
