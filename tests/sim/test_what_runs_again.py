"""Which jobs a run restores and which it executes, and the reason that each of them gives."""

from dataclasses import replace

import pytest
from test_races import command, finish, job_of, service, simulation

from gridmill.control.steps.provenance import find_provenance
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.command import CommandSpec
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.provenance import CodeFile, CodeList, Provenance
from gridmill.domain.run import JobRun, Run
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source, SqlSource
from gridmill.domain.states import JobState
from gridmill.domain.version_manifest import FileProblem, FileProblemKind
from gridmill.ports.storage import FileStat
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import NoStorage, Simulation

SALES = Job(name="sales", sink=SinkSpec(source=Source(path="data/*.csv")), memory_bytes=2**30)
ROWS = Job(name="rows", dataset=DatasetSpec(sql="select 1", tables=("sales",), time="t"), memory_bytes=2**30)


class Disk(NoStorage):
    """Source files and code with the contents that a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.data = {"data/1.csv": "a"}
        self.code = {"src/a.py": "1", "src/b.py": "1", "pipeline.yaml": "1"}
        self.touched = 0

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        self.touched += 1
        return tuple(
            FileStat(path=f"/p/{name}", name=name, size_bytes=1, mtime_ns=self.touched, content=text)
            for name, text in sorted(self.data.items())
        )

    def code_files(self, bundle: str) -> tuple[CodeFile, ...]:
        return tuple(CodeFile(name=name, digest=text) for name, text in sorted(self.code.items()))


class Table:
    """What sinks make: another version of the table whenever the rows are others."""

    def __init__(self, disk: Disk) -> None:
        self.disk, self.states = disk, [{}]

    def __call__(self, order) -> Behaviour:
        if order.job.sink is None:
            return Behaviour(seconds=1.0)
        state = {**self.states[-1], **self.disk.data}  # rows of files that are gone stay
        if state != self.states[-1]:
            self.states.append(state)
        version = len(self.states) - 1
        made = Output(kind=ArtifactKind.SINK, uri=order.table_uri, table_version=version, rows=len(state))
        return Behaviour(seconds=1.0, outputs=(made,))


@pytest.fixture
def grid() -> Simulation:
    disk = Disk()
    made = simulation(Table(disk))
    made.storage = made.node.control.storage = made.node.control.code.storage = disk
    return made


def pipeline(*jobs: Job, **settings) -> Pipeline:
    return Pipeline(name="p", jobs=jobs, folder="/p", **{"bundle": "1", **settings})


def look_again(grid: Simulation) -> None:
    """Code that a test edits keeps the hash of its bundle here."""
    grid.node.control.code.files.clear()
    grid.node.control.code.read.clear()


def run(grid: Simulation, *jobs: Job, **settings) -> Run:
    force = settings.pop("force", False)
    look_again(grid)
    return finish(grid, grid.submit(pipeline(*jobs, **settings), force=force))


def reason(grid: Simulation, done: Run, name: str) -> str:
    return job_of(grid, done, name).reason


def states(grid: Simulation, done: Run) -> dict[str, str]:
    found = {job.job.job.name: job.job.state for job in service(grid).run(done.id).jobs}
    return {name: "restored" if state == JobState.UNCHANGED else str(state) for name, state in found.items()}


def planned(grid: Simulation, *jobs: Job) -> dict[str, str]:
    look_again(grid)
    made = service(grid).plan_run(pipeline(*jobs))
    return {one.job: ("restored: " if one.unchanged else "") + one.reason for one in made.jobs}


FIRST = "first run"


def test_a_first_run_and_one_that_changes_nothing(grid: Simulation) -> None:
    jobs = (SALES, ROWS, command("clean", needs=("sales",)))
    assert set(planned(grid, *jobs).values()) == {FIRST}
    first = run(grid, *jobs)
    assert {reason(grid, first, job.name) for job in jobs} == {FIRST}
    assert set(planned(grid, *jobs).values()) == {
        f"restored: nothing changed since p/{j.name}@1" for j in jobs
    }
    again = run(grid, *jobs)
    assert states(grid, again) == dict.fromkeys(("sales", "rows", "clean"), "restored")
    assert reason(grid, again, "clean") == "nothing changed since p/clean@1"


@pytest.mark.parametrize(
    ("cache", "scheduled", "executes"),
    [
        (None, False, 1),
        (None, True, 3),
        (True, True, 1),
        (False, False, 3),
        (False, True, 3),
        (True, False, 1),
    ],
)
def test_cache_decides_whether_commands_execute_again(grid, cache, scheduled, executes) -> None:
    job = command("report", cache=cache)
    if scheduled:
        grid.apply(pipeline(job, schedule=ScheduleSpec(every_seconds=60.0)))
        until = grid.clock.monotonic() + 150.0
        while grid.clock.monotonic() < until:
            grid.advance()
    else:
        for _ in range(3):
            run(grid, job)
    assert len(grid.world.executions) == executes
    if executes == 3:
        (*_, last) = (record.noun for record in grid.store.list(JobRun))
        assert last.reason == (
            "`cache: false`" if cache is False else "scheduled run: commands execute unless `cache: true`"
        )


def test_other_jobs_of_a_scheduled_run_are_restored(grid: Simulation) -> None:
    grid.apply(pipeline(SALES, ROWS, command("report"), schedule=ScheduleSpec(every_seconds=60.0)))
    until = grid.clock.monotonic() + 150.0
    while grid.clock.monotonic() < until:
        grid.advance()
    counted = [e.order.job.name for e in grid.world.executions]
    assert {name: counted.count(name) for name in counted} == {"sales": 1, "rows": 1, "report": 3}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.code.update({"src/a.py": "2"}), "file src/a.py changed"),
        (lambda d: d.code.update({"src/c.py": "1"}), "file src/c.py is new"),
        (lambda d: d.code.pop("src/b.py"), "file src/b.py was deleted"),
        (
            lambda d: d.code.update({"src/a.py": "2", "src/b.py": "2"}),
            "2 files changed: src/a.py, src/b.py",
        ),
    ],
)
def test_a_change_of_code_is_named(grid: Simulation, change, said: str) -> None:
    run(grid, command("clean"))
    change(grid.storage)
    assert planned(grid, command("clean")) == {"clean": f"{said} (compared with p/clean@1)"}
    done = run(grid, command("clean"))
    assert states(grid, done) == {"clean": "succeeded"}
    assert reason(grid, done, "clean") == f"{said} (compared with p/clean@1)"


def test_a_change_of_the_declaration_of_a_parameter_and_of_an_input_are_named(grid: Simulation) -> None:
    def jobs(text: str, x: int = 1) -> tuple[Job, ...]:
        spec = CommandSpec(run=f"{text} {x}")
        return SALES, replace(command("clean", needs=("sales",), parameters={"x": x}), command=spec)

    run(grid, *jobs("a"))
    assert reason(grid, run(grid, *jobs("b")), "clean") == (
        "`clean` changed: command.run a 1 -> b 1 (compared with p/clean@1)"
    )
    assert reason(grid, run(grid, *jobs("b", 2)), "clean") == (
        "parameter `x` changed from 1 to 2 (compared with p/clean@2)"
    )
    grid.storage.data |= {"data/2.csv": "b", "data/3.csv": "c", "data/4.csv": "d"}
    done = run(grid, *jobs("b", 2))
    assert reason(grid, done, "clean") == "input `sales` has 3 new files (compared with p/clean@3)"
    assert reason(grid, done, "sales").startswith(
        "3 source files are new: data/2.csv, data/3.csv, data/4.csv"
    )
    grid.storage.data["data/4.csv"] = "e"
    assert planned(grid, *jobs("b", 2))["clean"] == "`sales` executes before it"
    done = run(grid, *jobs("c", 3))
    assert reason(grid, done, "clean") == (
        "parameter `x` changed from 2 to 3; `clean` changed: command.run b 2 -> c 3; "
        "input `sales` has 1 changed file (compared with p/clean@4)"
    )


def test_any_earlier_version_is_restored_and_is_the_latest_then(grid: Simulation) -> None:
    for code in "123":
        grid.storage.code["src/a.py"] = code
        run(grid, command("clean"))
    grid.storage.code["src/a.py"] = "1"
    assert planned(grid, command("clean")) == {"clean": "restored: nothing changed since p/clean@1"}
    done = run(grid, command("clean"))
    assert job_of(grid, done, "clean").artifacts == ("p/clean@1",)
    assert service(grid).artifact("p/clean").id == "p/clean@1"
    user = Pipeline(name="q", jobs=(replace(command("use"), needs=("p/clean",)),))
    read = finish(grid, grid.submit(user, force=False))
    assert job_of(grid, read, "use").external == ("p/clean@1",)
    grid.storage.code["src/a.py"] = "4"
    assert planned(grid, command("clean"))["clean"].endswith("(compared with p/clean@1)")


def test_a_version_that_was_removed_or_lost_files_is_not_restored(grid: Simulation) -> None:
    for code in "12":
        grid.storage.code["src/a.py"] = code
        run(grid, command("clean"))
    service(grid).remove_artifact("p/clean@1")
    grid.storage.code["src/a.py"] = "1"
    assert planned(grid, command("clean"))["clean"] == "file src/a.py changed (compared with p/clean@2)"
    made = run(grid, ROWS.__class__(**{**_fields(ROWS), "dataset": DatasetSpec(sql="select 2", time="t")}))
    grid.storage.wrong["p/rows@1"] = (FileProblem(path="x", kind=FileProblemKind.MISSING),)
    again = run(grid, job_of(grid, made, "rows").job)
    assert states(grid, again) == {"rows": "succeeded"}
    assert "p/rows@1" in reason(grid, again, "rows")


def _fields(job: Job) -> dict:
    return {name: getattr(job, name) for name in ("name", "memory_bytes")}


def test_a_job_that_is_forced_says_so(grid: Simulation) -> None:
    run(grid, command("clean"))
    assert reason(grid, run(grid, command("clean"), force=True), "clean") == "`--force`"


def test_a_source_that_only_the_load_can_read_says_so(grid: Simulation) -> None:
    live = replace(SALES, sink=SinkSpec(source=Source(sql=SqlSource(url="sqlite:///x.db", table="t"))))
    run(grid, live)
    done = run(grid, live)
    why = reason(grid, done, "sales")
    assert why.removesuffix(" (compared with p/sales@1)") == (
        "the job reads its source in every run, because only the job can find new data"
    )
    assert job_of(grid, done, "sales").state == JobState.UNCHANGED


def test_a_touched_source_and_one_with_its_content_back_make_no_new_version(grid: Simulation) -> None:
    run(grid, SALES, ROWS)
    assert states(grid, run(grid, SALES, ROWS)) == {"sales": "restored", "rows": "restored"}
    grid.storage.data["data/1.csv"] = "b"
    assert states(grid, run(grid, SALES, ROWS)) == {"sales": "succeeded", "rows": "succeeded"}
    grid.storage.data["data/1.csv"] = "a"
    done = run(grid, SALES, ROWS)
    assert states(grid, done) == {"sales": "restored", "rows": "restored"}
    assert job_of(grid, done, "sales").artifacts == ("p/sales@1",)
    assert {service(grid).artifact(f"p/{name}").id for name in ("sales", "rows")} == {"p/sales@1", "p/rows@1"}


def test_a_table_does_not_go_back_where_that_would_lose_rows_of_a_file_that_is_gone(grid: Simulation) -> None:
    run(grid, SALES, ROWS)
    grid.storage.data["data/2.csv"] = "x"
    run(grid, SALES, ROWS)
    del grid.storage.data["data/2.csv"]
    for _ in range(2):
        done = run(grid, SALES, ROWS)
        assert job_of(grid, done, "sales").artifacts == ("p/sales@2",), "its rows stay"
        assert states(grid, done)["rows"] == "restored"
    assert len(service(grid).artifacts(name="p/sales").items) == 2
    assert len([e for e in grid.world.executions if e.order.job.name == "sales"]) == 3


def test_a_load_that_finds_nothing_new_under_another_declaration_is_a_version_of_its_own(grid) -> None:
    run(grid, SALES)
    other = replace(SALES, sink=replace(SALES.sink, metrics={"rows": "count(*)"}))
    assert job_of(grid, run(grid, other), "sales").artifacts == ("p/sales@2",)
    executed_otherwise = replace(other, sink=replace(other.sink, parts=2), retries=3, rows=7)
    assert states(grid, run(grid, executed_otherwise)) == {"sales": "restored"}


def test_only_some_jobs_have_the_fingerprints_of_all(grid: Simulation) -> None:
    grid.storage.code["data/1.csv"] = "a"
    whole = pipeline(SALES, command("clean"))
    finish(grid, grid.submit(whole, force=False))
    grid.storage.code["data/1.csv"] = "b"  # what a sink loads is no code, though the sink is not asked for
    look_again(grid)
    view = service(grid).start_run(whole, only=("clean",))
    grid.run_until(lambda: service(grid).run(view.run.id).run.ended is not None)
    assert [job.job.state for job in service(grid).run(view.run.id).jobs] == [JobState.UNCHANGED]


def test_what_versions_are_made_from_is_deleted_with_them(grid: Simulation) -> None:
    run(grid, command("clean"))
    grid.storage.code["src/a.py"] = "2"
    run(grid, command("clean"))
    first, second = (record.noun for record in grid.store.list(Provenance))
    service(grid).remove_artifact("p/clean@1")
    grid.clock.advance(90 * 86_400.0)
    service(grid).clean(days=30)
    assert grid.store.get(type(first), first.id) is None
    assert grid.store.get(type(second), second.id) is not None
    assert [record.noun.hash for record in grid.store.list(CodeList)] == [second.code]


def test_of_thousands_of_files_only_folders_are_kept_and_new_ones_are_counted(grid: Simulation) -> None:
    grid.storage.data = {f"data/{number}.csv": "a" for number in range(2100)}
    grid.storage.code |= {f"src/{number}.py": "1" for number in range(2100)}
    run(grid, SALES, ROWS, command("clean"))
    grid.storage.data |= {f"data/new{number}.csv": "b" for number in range(3)}
    grid.storage.code["src/7.py"] = "2"
    done = run(grid, SALES, ROWS, command("clean"))
    assert reason(grid, done, "rows") == "input `sales` has 3 new files (compared with p/rows@1)"
    assert reason(grid, done, "sales") == "source files in data/ changed (compared with p/sales@1)"
    assert reason(grid, done, "clean") == "files in src/ changed (compared with p/clean@1)"
    assert len(find_provenance_of(grid, "p/sales@2").source) == 1


def find_provenance_of(grid: Simulation, reference: str):
    artifact = service(grid).artifact(reference)
    return find_provenance(grid.node.control.catalog, artifact.name, artifact.fingerprint)
