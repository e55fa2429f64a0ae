"""The ledger's memory is what the store holds, or is about to hold with one commit, or is read again."""

from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import pytest

from gridmill.control.ledger import REMEMBERED, Ledger
from gridmill.domain.artifact import Artifact, ArtifactKind, Latest, Output
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.provenance import Provenance
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import JobState, RunState
from gridmill.errors import StaleVersionError, StorageError
from gridmill.ports.store import Delete, Noun, Put
from gridmill.stores.memory import make
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.memory_logs import MemoryLogs


def latest(run: str, name: str = "p/j") -> Latest:
    return Latest(name=name, artifact=f"{name}@1", run=run, order=1)


def provenance(artifact: str) -> Provenance:
    return Provenance(name="p/j", fingerprint="f", format=1, code="", created=0.0, artifact=artifact)


def commit(ledger: Ledger, *nouns: Noun) -> None:
    transaction = ledger.begin(1.0)
    transaction.put(*nouns)
    ledger.commit(transaction)


def ledger_of() -> Ledger:
    ledger = Ledger(make(), MemoryLogs())
    ledger.load()
    return ledger


def test_what_was_written_is_changed_without_a_look_at_the_store():
    ledger = ledger_of()
    for number in range(3):
        assert ledger.look_up(Latest, "p/j") == (latest(f"p-{number - 1}") if number else None)
        commit(ledger, latest(f"p-{number}"))
    record = ledger.store.get(Latest, "p/j")
    assert record is not None
    assert (record.noun, record.version) == (latest("p-2"), 3)


def test_what_another_wrote_is_found_out_by_the_commit_and_read_again():
    ledger = ledger_of()
    commit(ledger, latest("p-1"))
    ledger.store.commit([Put(noun=latest("p-2"), expected=1)])
    assert ledger.look_up(Latest, "p/j") == latest("p-1")
    with pytest.raises(StaleVersionError):
        commit(ledger, latest("p-3"))
    assert ledger.doubtful
    ledger.load()
    assert ledger.look_up(Latest, "p/j") == latest("p-2")
    commit(ledger, latest("p-3"))


def test_what_cleaning_deletes_beside_the_ledger_is_read_from_the_store():
    ledger = ledger_of()
    commit(ledger, provenance(""))
    assert ledger.look_up(Provenance, provenance("").id) == provenance("")
    commit(ledger, provenance("p/j@1"))
    ledger.store.commit([Delete(noun=Provenance, key=provenance("").id, expected=2)])
    assert ledger.look_up(Provenance, provenance("").id) is None


def test_only_so_many_are_remembered():
    ledger = ledger_of()
    commit(ledger, *(latest("p-1", name=f"p/j{number}") for number in range(REMEMBERED + 10)))
    ledger.store.commit([Put(noun=latest("p-2", name="p/j0"), expected=1)])
    assert ledger.look_up(Latest, "p/j0") == latest("p-2", name="p/j0")


def run_of(state: RunState = RunState.ACTIVE) -> Run:
    return Run(id="p-1", pipeline="p", order=1, state=state, created=0.0)


def job_of(state: JobState) -> JobRun:
    return JobRun(
        id="p-1/j",
        run_id="p-1",
        pipeline="p",
        job=Job(name="j", command=CommandSpec(run="true")),
        order=0,
        state=state,
        resource="r",
    )


def artifact(number: int) -> Artifact:
    output = Output(kind=ArtifactKind.FILES, uri="")
    return Artifact(id=f"p/j@{number}", name="p/j", number=number, output=output, fingerprint="f")


def stage(ledger: Ledger, *nouns: Noun, then: Callable[[], None] = lambda: None) -> None:
    transaction = ledger.begin(1.0)
    transaction.put(*nouns)
    transaction.then(then)
    ledger.stage(transaction)


def test_what_steps_stage_is_decided_on_at_once_and_written_together():
    ledger, done = ledger_of(), list[str]()
    commits: list[int] = []
    ledger.listeners.append(lambda: commits.append(len(done)))
    stage(ledger, run_of(), job_of(JobState.WAITING), then=lambda: done.append("first"))
    stage(ledger, job_of(JobState.RUNNING), then=lambda: done.append("second"))
    assert ledger.snapshot.job_runs["p-1/j"].state == JobState.RUNNING
    assert (done, ledger.store.get(Run, "p-1")) == ([], None)
    ledger.flush()
    record = ledger.store.get(JobRun, "p-1/j")
    assert record is not None
    assert (record.noun, record.version) == (job_of(JobState.RUNNING), 1)
    assert (commits, done) == ([0], ["first", "second"])
    commit(ledger, job_of(JobState.SUCCEEDED))


def test_what_cannot_be_written_is_taken_back_and_nothing_is_done():
    script = FaultScript(Fault.NONE, Fault.FAIL_BEFORE)
    ledger, done = Ledger(FaultyStore(make(), script), MemoryLogs()), list[str]()
    ledger.load()
    commit(ledger, run_of(), job_of(JobState.RUNNING))
    stage(ledger, job_of(JobState.SUCCEEDED), latest("p-1"), then=lambda: done.append("told"))
    stage(ledger, run_of(RunState.SUCCEEDED))
    assert not ledger.snapshot.runs
    with pytest.raises(StorageError):
        ledger.flush()
    assert ledger.doubtful
    assert done == []
    assert ledger.snapshot.runs == {"p-1": run_of()}
    assert ledger.snapshot.job_runs == {"p-1/j": job_of(JobState.RUNNING)}
    ledger.load()
    assert ledger.snapshot.runs == {"p-1": run_of()}
    commit(ledger, run_of(RunState.SUCCEEDED))


def test_a_step_that_fails_keeps_nothing_of_its_own_and_all_of_those_before_it():
    ledger = ledger_of()
    with suppress(ZeroDivisionError), ledger.staging():
        stage(ledger, run_of())
        ledger.begin(1.0).put(job_of(JobState.WAITING))
        _ = 1 / 0
    assert ledger.store.get(Run, "p-1") is not None
    assert ledger.store.get(JobRun, "p-1/j") is None


def test_who_stages_reads_it_and_others_read_what_is_on_disk():
    ledger, seen = ledger_of(), list[object]()
    stage(ledger, artifact(1))
    assert ledger.read(Artifact, "p/j@1") == artifact(1)
    assert ledger.store.get(Artifact, "p/j@1") is None

    def look() -> None:
        seen.extend((ledger.read(Artifact, "p/j@1"), ledger.read_all(Artifact)))

    other = Thread(target=look)
    other.start()
    other.join()
    assert seen == [None, ()]
    assert ledger.read_all(Artifact, parent="p/other") == ()
    assert ledger.store.get(Artifact, "p/j@1") is None
    assert ledger.read_all(Artifact, parent="p/j") == (artifact(1),)
    assert ledger.store.get(Artifact, "p/j@1") is not None
