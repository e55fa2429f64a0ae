"""Versions and their names, on the real control node over a simulated world."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from test_races import command, finish, service, simulation

from gridmill.control.removable import (
    GarbageSnapshot,
    UnusedRecords,
    deletable_versions,
    delete_records,
    lineage,
)
from gridmill.control.usecases.service import Service
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind, Output
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import Measurement
from gridmill.domain.retention import RUNS_KEPT, Retention
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source, SqlSource
from gridmill.domain.states import JobState, RunState
from gridmill.domain.usage import ReclaimableItem
from gridmill.errors import ConflictError, InputError, NotFoundError, StaleVersionError
from gridmill.ports.store import Put
from gridmill.scheduler.history import PER_JOB
from gridmill.storage.disk_usage import LocalHomeFolders
from gridmill.storage.root import StorageRoot
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation
from gridmill.testing.store_samples import a_job_run, a_run


def model(number: int, rmse: float, name: str = "w/m", **changes) -> Artifact:
    output = Output(
        kind=ArtifactKind.MODEL,
        uri=f"models/{name}/{number}",
        metrics={"validation_rmse": rmse, "validation_auc": rmse},
        details={"best_by": "rmse"},
    )
    made = Artifact(id=f"{name}@{number}", name=name, number=number, output=output, fingerprint=str(number))
    return replace(made, **changes)


def alias(name: str, number: int | None = None, metric: str = "", of: str = "w/m") -> Alias:
    return Alias(id=f"{of}@{name}", name=of, alias=name, number=number, metric=metric)


@pytest.fixture
def grid() -> Simulation:
    made = simulation()
    versions = [model(1, 3.0), model(2, 1.0), model(3, 2.0), model(1, 1.0, "w/data")]
    versions[3] = replace(versions[3], output=replace(versions[3].output, kind=ArtifactKind.DATASET))
    made.store.commit([Put(noun=one, expected=0) for one in versions])
    return made


@pytest.fixture
def cases(grid: Simulation) -> Service:
    return service(grid)


def test_a_version_is_found_by_number_by_latest_by_best_and_by_its_alias(cases: Service) -> None:
    cases.set_alias(alias("prod", 1))
    named = {"w/m": 3, "w/m@latest": 3, "w/m@best": 2, "w/m@prod": 1, "w/m@2": 2}
    assert {name: cases.artifact(name).number for name in named} == named


def test_a_jobs_name_alone_is_enough_where_one_pipeline_has_it(grid: Simulation, cases: Service) -> None:
    cases.set_alias(alias("prod", 1))
    named = {"m": 3, "m@latest": 3, "m@best": 2, "m@prod": 1, "m@2": 2}
    assert {name: cases.artifact(name).number for name in named} == named
    grid.store.commit([Put(noun=model(1, 3.0, name="v/m"), expected=0)])
    with pytest.raises(NotFoundError, match="several pipelines have a job 'm'") as caught:
        cases.artifact("m@2")
    assert caught.value.hint == "Use one of these names: v/m, w/m."


def test_best_goes_by_the_metric_that_was_set(cases: Service) -> None:
    cases.set_alias(alias("best", metric="validation_auc"))
    assert cases.artifact("w/m@best").number == 1
    cases.set_alias(alias("best", metric="min:validation_auc"))
    assert cases.artifact("w/m@best").number == 2


def test_best_goes_by_a_metric_that_there_is(cases: Service) -> None:
    with pytest.raises(InputError, match="no version of 'w/m' was measured by 'validation_acu'") as caught:
        cases.set_alias(alias("best", metric="max:validation_acu"))
    assert caught.value.hint == "Did you mean `validation_auc`?"
    assert cases.aliases().items == ()


def test_an_alias_moves_only_from_where_it_is_expected(cases: Service) -> None:
    cases.set_alias(alias("prod", 1), expected=0)
    cases.set_alias(alias("prod", 2), expected=1)
    for expected in (0, 1):
        with pytest.raises(StaleVersionError, match="names version 2"):
            cases.set_alias(alias("prod", 3), expected=expected)
    assert cases.artifact("w/m@prod").number == 2


@pytest.mark.parametrize("wrong", [alias("latest", 1), alias("3", 1), alias("Prod", 1), alias("prod")])
def test_what_cannot_be_an_alias_is_refused(cases: Service, wrong: Alias) -> None:
    with pytest.raises(InputError):
        cases.set_alias(wrong)


def test_an_alias_needs_a_version_that_is_there(cases: Service) -> None:
    with pytest.raises(NotFoundError, match="w/m@7"):
        cases.set_alias(alias("prod", 7))
    cases.remove_artifact("w/m@1")
    with pytest.raises(NotFoundError, match="removed"):
        cases.set_alias(alias("prod", 1))


def test_what_an_alias_stands_for_is_not_removed_until_it_moves(cases: Service) -> None:
    cases.set_alias(alias("prod", 1))
    with pytest.raises(ConflictError, match="prod"):
        cases.remove_artifact("w/m@1")
    cases.remove_alias("w/m@prod")
    cases.remove_alias("w/m@prod")
    cases.remove_artifact("w/m@1")
    assert [one.number for one in cases.artifacts(name="w/m").items] == [3, 2]
    with pytest.raises(NotFoundError, match="prod"):
        cases.artifact("w/m@prod")


def test_latest_is_the_newest_that_was_not_removed(cases: Service) -> None:
    cases.remove_artifact("w/m@3")
    assert cases.artifact("w/m").number == 2


def test_a_pipeline_reads_what_an_alias_stood_for_when_its_job_became_ready(
    grid: Simulation, cases: Service
) -> None:
    cases.set_alias(alias("prod", 1))
    reads = PredictionSpec(dataset="w/data", models=("w/m@prod", "w/m@2"))
    use = Pipeline(name="use", jobs=(Job(name="p", prediction=reads), command("c")))
    run = grid.submit(use, force=False)
    assert finish(grid, run).state == "succeeded"
    assert grid.store.get(JobRun, f"{run.id}/p").noun.external == ("w/data@1", "w/m@1", "w/m@2")
    cases.set_alias(alias("prod", 3))
    again = grid.submit(use, force=False)
    finish(grid, again)
    moved = grid.store.get(JobRun, f"{again.id}/p").noun
    assert (moved.state, moved.external) == ("succeeded", ("w/data@1", "w/m@3", "w/m@2"))


def test_a_version_knows_its_names_and_its_lineage(grid: Simulation, cases: Service) -> None:
    made = [
        model(4, 0.5, made_from=("w/data@1",)),
        model(1, 1.0, "w/end", made_from=("w/m@4", "w/gone@1")),
    ]
    grid.store.commit([Put(noun=one, expected=0) for one in made])
    cases.set_alias(alias("prod", 4))
    view = cases.version("w/m@prod")
    assert view.names == ("latest", "best", "prod")
    assert [one.id for one in view.lineage] == ["w/data@1"]
    assert view.used_by == ("w/end@1",)
    assert [one.id for one in cases.version("w/end").lineage] == ["w/m@4", "w/data@1"]


def test_what_others_were_made_from_is_removed_by_force_only(grid: Simulation, cases: Service) -> None:
    made = model(1, 1.0, "w/end", made_from=("w/m@2",))
    grid.store.commit([Put(noun=made, expected=0)])
    cases.set_alias(alias("prod", 2))
    plan = cases.remove_artifact("w/m@2", dry_run=True)
    assert (plan.versions, plan.aliases, plan.used_by) == (("w/m@2",), ("w/m@prod",), ("w/end@1",))
    with pytest.raises(ConflictError, match="prod"):
        cases.remove_artifact("w/m@2")
    cases.remove_alias("w/m@prod")
    with pytest.raises(ConflictError, match="w/end@1 was made from"):
        cases.remove_artifact("w/m@2")
    cases.set_alias(alias("prod", 2))
    assert cases.remove_artifact("w/m@2", force=True) == plan
    assert cases.aliases().items == ()
    assert [one.id for one in cases.version("w/end").lineage if one.removed] == ["w/m@2"]
    assert "models/w/m/2" in grid.storage.removed


def test_a_name_alone_removes_all_its_versions_and_may_be_repeated(grid: Simulation, cases: Service) -> None:
    cases.set_alias(alias("best", metric="validation_auc"))
    cases.remove_artifact("w/m", force=True)
    assert cases.artifacts(name="w/m").items == ()
    cases.remove_artifact("w/m")
    gone = [f"models/w/m/{number}" for number in (1, 2, 3)]
    gone += [f"manifests/w/m/{number}.json" for number in (1, 2, 3)]
    assert sorted(grid.storage.removed) == sorted(2 * gone)
    with pytest.raises(NotFoundError):
        cases.remove_artifact("w/never")


def test_not_even_force_removes_what_a_run_may_use(grid: Simulation, cases: Service) -> None:
    reads = PredictionSpec(dataset="w/data", models=("w/m@2",))
    run = grid.submit(Pipeline(name="use", jobs=(Job(name="p", prediction=reads),)), force=False)
    for reference in ("w/m@2", "w/m@1", "w/data"):
        with pytest.raises(ConflictError, match="may be using"):
            cases.remove_artifact(reference, force=True)
    assert cases.remove_artifact("w/m@2", dry_run=True).running == ("use-1",)
    finish(grid, run)
    cases.remove_artifact("w/m@1", force=True)


def test_a_sinks_table_is_removed_as_a_whole(grid: Simulation, cases: Service) -> None:
    output = Output(kind=ArtifactKind.SINK, uri="sinks/w/t/table", size_bytes=7)
    grid.store.commit([Put(noun=model(n, 1.0, "w/t", output=output), expected=0) for n in (1, 2)])
    with pytest.raises(ConflictError, match="share"):
        cases.remove_artifact("w/t@1")
    assert cases.remove_artifact("w/t").size_bytes == 7
    assert set(grid.storage.removed) == {"sinks/w/t", *(f"manifests/w/t/{n}.json" for n in (1, 2))}


def test_cleaning_takes_what_nobody_needs_and_leaves_the_rest(tmp_path: Path) -> None:
    grid = simulation(lambda order: Behaviour(seconds=1.0), memory=32 * 2**30)
    grid.node.control.home_folders = LocalHomeFolders(tmp_path, tmp_path / "root")
    job = replace(command("a", cache=False), retain=Retention(versions=2))
    runs = [grid.submit(Pipeline(name="p", jobs=(job,)), force=False)]
    finish(grid, runs[0])
    for _ in range(3):
        runs.append(grid.submit(Pipeline(name="p", jobs=(job,)), force=False))
        finish(grid, runs[-1])
    folders = [tmp_path / "root" / one.output.uri for one in service(grid).artifacts(name="p/a").items]
    for folder in (*folders, tmp_path / "root/files/p/a/other-1.a.1", tmp_path / "pods/x-1.0"):
        folder.mkdir(parents=True)
    (tmp_path / "pods/x-1.0/ended").touch()
    os.utime(tmp_path / "pods/x-1.0", (0, 0))
    told = service(grid).clean(dry_run=True)
    assert all(folder.exists() for folder in folders)
    assert [one.name for one in told if one.kind == "version"] == ["p/a@2", "p/a@1"]
    assert {one.kind for one in service(grid).clean()} == {"version", "pod"}
    assert not (tmp_path / "pods/x-1.0").exists()
    grid.clock.advance(200 * 86_400)
    assert {one.kind for one in service(grid).clean()} == {"events", "log", "output"}
    assert [folder.exists() for folder in folders] == [True, True, False, False]
    assert (tmp_path / "root/files/p/a/other-1.a.1").exists(), "another home's"
    assert not grid.store.events(run_id="p-1")
    assert [one.kind for one in service(grid).clean()] == ["events"], "the newest event stays: numbers go on"
    again = grid.submit(Pipeline(name="p", jobs=(job,)), force=False)
    assert finish(grid, again).state == "succeeded"


def test_a_version_knows_the_code_it_was_made_with_and_only_that() -> None:
    grid = simulation()
    run = replace(a_run(), id="p-1", pipeline="p", bundle="b" * 64, state=RunState.SUCCEEDED)
    load = Job(name="load", sink=SinkSpec(source=Source(path="x.csv")))
    jobs = [replace(a_job_run("p-1", job.name), pipeline="p", job=job) for job in (load, command("work"))]
    made = [replace(model(1, 1.0, f"p/{name}"), run_id="p-1") for name in ("load", "work")]
    grid.store.commit([Put(noun=noun, expected=0) for noun in (run, *jobs, *made)])
    assert service(grid).version("p/load").bundle == "", "its pipeline's commands have code, it has none"
    assert service(grid).version("p/work").bundle == "b" * 64


def test_cleaning_retires_old_versions_of_a_sink_and_leaves_its_table(tmp_path: Path) -> None:
    grid = simulation()
    grid.node.control.home_folders = LocalHomeFolders(tmp_path, tmp_path / "root")
    job = replace(
        a_job_run("p-1", "t"), pipeline="p", job=replace(command("t"), retain=Retention(versions=1))
    )
    job = replace(job, state=JobState.SUCCEEDED)
    table = Output(kind=ArtifactKind.SINK, uri="sinks/p/t/table", size_bytes=7)
    versions = [
        replace(model(number, 1.0, "p/t"), run_id="p-1", output=replace(table, table_version=number))
        for number in (1, 2, 3)
    ]
    user = model(1, 1.0, "p/d", made_from=("p/t@2",))
    run = replace(a_run(), id="p-1", pipeline="p", state=RunState.SUCCEEDED)
    grid.store.commit([Put(noun=noun, expected=0) for noun in (run, job, *versions, user)])
    grid.node.control.ledger.doubtful = True
    grid.tick()
    told = service(grid).clean()
    assert [(one.name, one.size_bytes) for one in told if one.kind == "version"] == [("p/t@1", 0)]
    assert [one.number for one in service(grid).artifacts(name="p/t").items] == [3, 2], "p/d was made from 2"
    assert grid.storage.removed == ["manifests/p/t/1.json"]
    with pytest.raises(ConflictError, match="cannot be removed alone"):
        service(grid).remove_artifact("p/t@2")


def test_cleaning_takes_the_rest_of_a_removal_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: Path) -> None:
        raise KeyboardInterrupt

    grid = simulation()
    grid.node.control.home_folders = LocalHomeFolders(tmp_path, tmp_path / "root")
    for folder in ("sinks/w/t/table", "models/w/m/1"):
        (tmp_path / "root" / folder).mkdir(parents=True)
        (tmp_path / "root" / folder / "x").touch()
    monkeypatch.setattr("gridmill.storage.root.rmtree", die)
    for uri in ("sinks/w/t", "models/w/m/1"):
        with pytest.raises(KeyboardInterrupt):
            StorageRoot(tmp_path / "root", bundles=tmp_path).remove(uri)
    assert len([path for path in tmp_path.rglob("x") if path.is_file()]) == 2
    assert {one.kind for one in service(grid).clean()} == {"output"}
    assert not list(tmp_path.rglob("x"))


def test_records_of_old_runs_go_but_not_those_that_a_version_tells_of(tmp_path: Path) -> None:
    grid = simulation(lambda order: Behaviour(seconds=1.0), memory=32 * 2**30)
    making, failing = command("a", cache=False), command("b", cache=False)
    grid.store.commit([Put(noun=model(1, 1.0, "q/m", run_id="q-1", made_from=("q/d@1",)), expected=0)])
    data = model(1, 1.0, "q/d", run_id="q-2", removed=True)
    grid.store.commit([Put(noun=data, expected=0)])
    runs = {name: [] for name in ("p", "q")}
    for name, job in (("p", making), ("q", failing)):
        for _ in range(RUNS_KEPT + 4):
            runs[name].append(grid.submit(Pipeline(name=name, jobs=(job,)), force=False))
            finish(grid, runs[name][-1])
    made = {one.run_id: one.id for one in service(grid).artifacts().items if one.name in ("p/a", "q/b")}
    for run_id in ("p-2", "p-3", "q-1", "q-2", "q-3", "q-4"):
        service(grid).remove_artifact(made[run_id])
    assert not _named(service(grid).clean(), "run")
    grid.clock.advance(100 * 86_400)
    waiting = grid.submit(Pipeline(name="p", jobs=(making,)), force=False)
    told = _named(service(grid).clean(dry_run=True), "run")
    assert told == ["p-2", "p-3", "q-3", "q-4"]
    assert _named(service(grid).clean(days=101.0, dry_run=True), "run") == []
    cleaned = service(grid).clean()
    assert _named(cleaned, "run") == told
    assert set(_named(cleaned, "record")) == {made[run_id] for run_id in told}
    assert not {"run", "record"} & {one.kind for one in service(grid).clean()}
    left = {record.noun.id for record in grid.store.list(Run)}
    assert left == {run.id for run in (waiting, *runs["p"], *runs["q"])} - {*told}
    for kind in (JobRun, Attempt):
        assert {record.noun.run_id for record in grid.store.list(kind)} <= left
    for run_id in left:
        assert service(grid).run(run_id).run.id == run_id
    for run_id in told:
        with pytest.raises(NotFoundError):
            service(grid).version(made[run_id])
    assert service(grid).artifact(made["q-1"]).removed, "its run is there and tells of it"
    assert len(grid.store.list(Measurement)) >= len(runs["p"]) + len(runs["q"]), (
        "sizes use the newest measurements"
    )
    assert service(grid).version("q/m").lineage == (data,)
    assert finish(grid, waiting).state == "succeeded"
    grid.node.control.ledger.load()
    assert grid.submit(Pipeline(name="p", jobs=(making,)), force=False).id not in left | {*told}


def test_records_of_removed_versions_stay_while_anything_may_ask_for_them() -> None:
    day = 86_400.0
    old = [model(number, 1.0, created=0.0, removed=True) for number in (1, 2, 3, 4)]
    young = model(5, 1.0, created=50 * day, removed=True)
    last = model(6, 1.0, created=0.0, removed=True)
    user = model(1, 1.0, "w/user", created=60 * day, made_from=("w/m@2",))
    records = GarbageSnapshot(artifacts=(user, last, young, *reversed(old)), runs=())
    needed = lineage(records.artifacts)
    assert needed == {"w/user@1", "w/m@2"}
    lying = frozenset({old[2].output.uri})
    assert deletable_versions(records, needed, 40 * day, lying) == {"w/m@1", "w/m@4"}


def test_a_removed_version_that_a_run_found_unchanged_stays_as_long_as_that_run() -> None:
    grid = simulation()
    removed, newest = model(1, 1.0, removed=True), model(2, 1.0)
    run = replace(a_run(), id="w-2", pipeline="w", state=RunState.SUCCEEDED, ended=1.0)
    job = replace(a_job_run("w-2", "m"), pipeline="w", state=JobState.UNCHANGED, artifacts=(removed.id,))
    grid.store.commit([Put(noun=noun, expected=0) for noun in (removed, newest, run, job)])
    grid.clock.advance(100 * 86_400)
    assert not _named(service(grid).clean(), "record")
    assert service(grid).run("w-2").jobs[0].artifacts == (removed,)


def test_a_run_that_is_resumed_meanwhile_is_not_forgotten_nor_what_it_tells_of() -> None:
    grid = simulation(lambda order: Behaviour(seconds=1.0))
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)), force=False)
    finish(grid, run)
    record = grid.store.get(Run, run.id)
    assert record is not None
    grid.store.commit([Put(noun=replace(record.noun, message="resumed"), expected=record.version)])
    removed = model(1, 1.0, removed=True)
    grid.store.commit([Put(noun=removed, expected=0)])
    version = grid.store.get(Artifact, removed.id)
    delete_records(grid.store, UnusedRecords(runs=(record,), versions=(version,)))
    assert grid.store.get(Artifact, removed.id) is not None
    assert grid.store.get(Run, run.id) is not None
    assert grid.store.list(JobRun, parent=run.id)
    assert grid.store.list(Attempt, parent=run.id)


def test_what_attempts_used_is_kept_as_far_as_sizes_are_learned_from_it() -> None:
    grid = simulation(lambda order: Behaviour(seconds=1.0))
    for _ in range(PER_JOB + 3):
        finish(grid, grid.submit(Pipeline(name="p", jobs=(command("a"), command("b")))))
    assert not _named(service(grid).clean(), "measurement")
    grid.clock.advance(100 * 86_400)
    finish(grid, grid.submit(Pipeline(name="p", jobs=(command("a"),))))
    told = _named(service(grid).clean(), "measurement")
    kept = [record.noun for record in grid.store.list(Measurement)]
    assert Counter(one.job for one in kept) == {"p/a": PER_JOB, "p/b": PER_JOB}
    assert set(told) == {f"p-{n}.a.1" for n in range(1, 5)} | {f"p-{n}.b.1" for n in range(1, 4)}
    assert not _named(service(grid).clean(), "measurement")


def _named(found: tuple[ReclaimableItem, ...], kind: str) -> list[str]:
    return [one.name for one in found if one.kind == kind]


def test_models_side_by_side_are_the_last_few_or_those_that_are_named(
    grid: Simulation, cases: Service
) -> None:
    more = [model(number, float(number)) for number in range(4, 8)]
    grid.store.commit([Put(noun=one, expected=0) for one in more])
    cases.set_alias(alias("prod", 1))
    assert [one.id for one in cases.compare("w/m").models] == [f"w/m@{number}" for number in range(3, 8)]
    found = cases.compare("w/m", ("prod", "best", "latest"))
    assert [one.names for one in found.models] == [("prod",), ("best",), ("latest",)]
    assert found.metrics[0].best == ("w/m@2",)
    grid.store.commit([Put(noun=model(1, 1.0, "w/other"), expected=0)])
    assert [one.id for one in cases.compare("w/m", ("w/other",)).models] == ["w/m@7", "w/other@1"]


def test_a_comparison_marks_what_best_means_for_the_model(cases: Service) -> None:
    cases.set_alias(alias("best", metric="max:validation_rmse"))
    assert cases.compare("w/m").metrics[0].best == ("w/m@1",)


def test_a_removed_version_is_compared_only_where_it_is_named(cases: Service) -> None:
    cases.remove_artifact("w/m@2")
    assert [one.id for one in cases.compare("w/m").models] == ["w/m@1", "w/m@3"]
    assert [one.removed for one in cases.compare("w/m", ("1", "2")).models] == [False, True]


def test_what_cannot_be_compared_is_refused(grid: Simulation, cases: Service) -> None:
    grid.store.commit([Put(noun=model(1, 1.0, "w/alone"), expected=0)])
    with pytest.raises(InputError, match="there is only w/alone@1 to compare"):
        cases.compare("w/alone")
    with pytest.raises(NotFoundError, match="no version 'w/m@9'"):
        cases.compare("w/m", ("1", "9"))
    with pytest.raises(NotFoundError, match="there is no 'w/none'"):
        cases.compare("w/none")


def test_a_database_without_rows_is_read_to_no_place(grid: Simulation, cases: Service) -> None:
    source = Source(sql=SqlSource(url="sqlite:///shop.db", table="sales", cursor="id"))
    cases.apply(Pipeline(name="s", jobs=(Job(name="rows", sink=SinkSpec(source=source)),)))
    empty = {"files": 1, "sources": {"sales": {"files": 1, "rows": 0}}}
    made = model(1, 1.0, "s/rows", output=Output(kind=ArtifactKind.SINK, uri="t", rows=0, details=empty))
    grid.store.commit([Put(noun=made, expected=0)])
    [task] = cases.load_tasks(name="s/rows").items
    assert (task.source, task.rows, task.position) == ("sales", 0, "")
