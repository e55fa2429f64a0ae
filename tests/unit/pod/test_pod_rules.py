"""The pod's pure rules: when it ends by itself, what a command's environment is, what memory it measures."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.states import Cause
from gridmill.errors import DataError, InputError, StorageError
from gridmill.jobs.main import failed_outcome
from gridmill.pod import cleanup, processes, zygote
from gridmill.pod.agent import is_given_up, should_end
from gridmill.pod.folders import mark_ended
from gridmill.pod.launch import thread_environment
from gridmill.pod.limits import PodLimits
from gridmill.pod.memory_use import MemoryUse
from gridmill.pod.program import command_environment
from gridmill.sites.processes import _why_ended


def ends(idle, lonely, keep=300.0, taken=True, lease=None):
    return should_end(
        idle=idle,
        lonely=lonely,
        keep_seconds=keep,
        orphan_seconds=3600.0,
        all_acknowledged=taken,
        lease_seconds=lease,
    )


def test_a_pod_ends_when_unused_and_alone_for_its_keep():
    assert not ends(idle=299, lonely=500)
    assert not ends(idle=500, lonely=299)
    assert ends(idle=300, lonely=300)


def test_a_control_node_has_a_moment_to_come_back():
    assert not ends(idle=100, lonely=5, keep=0)
    assert ends(idle=100, lonely=10, keep=0)


def test_a_line_that_is_cut_for_a_minute_costs_no_pod():
    assert not ends(idle=1000, lonely=65, keep=0, lease=900.0)
    assert ends(idle=1000, lonely=120, keep=0, lease=900.0)
    assert ends(idle=1000, lonely=30, keep=0, lease=30.0)


def test_results_that_nobody_took_are_kept_as_long_as_an_orphan_may_live():
    assert not ends(idle=3000, lonely=3000, taken=False)
    assert ends(idle=3600, lonely=3600, taken=False)


def test_a_pod_ends_with_its_jobs_when_its_lease_is_over():
    assert not is_given_up(lonely=99.0, lease_seconds=100.0)
    assert is_given_up(lonely=100.0, lease_seconds=100.0)
    assert not is_given_up(lonely=1e9, lease_seconds=None)


def artifact(uri):
    return Artifact(
        id="p/a@1",
        name="p/a",
        number=1,
        output=Output(kind=ArtifactKind.FILES, uri=uri),
        fingerprint="",
    )


def an_order(job):
    return AttemptOrder(
        attempt_id="p-1.j.1",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=job,
        given=Amounts(cpus=2.5),
        root="/root-of-storage",
        output_uri="files/p/j/p-1.j.1",
        inputs=(Input(name="my-input", artifact=artifact("files/x")),),
        gpu_indices=(1, 3),
    )


def environment(**spec):
    order = an_order(Job(name="j", command=CommandSpec(run="true", **spec)))
    base = {"PATH": "/bin", "LC_ALL": "C", "SECRET_TOKEN": "s", "PIP_INDEX_URL": "i", "HOME": "/h"}
    return command_environment(order, base=base, work=Path("/w"), pod_folder=Path("/pods/r-1.0"))


def test_a_command_sees_what_it_needs_and_no_credentials():
    found = environment(env={"MINE": "1", "OMP_NUM_THREADS": "7"})
    assert "SECRET_TOKEN" not in found
    assert "PIP_INDEX_URL" not in found
    assert (found["HOME"], found["LC_ALL"], found["MINE"]) == ("/h", "C", "1")
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("7", "2")
    assert found["GOMP_SPINCOUNT"] == "30000"
    assert found["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert found["TMPDIR"] == "/w/tmp"


def test_how_threads_wait_is_the_machines_to_say():
    said = {"OMP_WAIT_POLICY": "ACTIVE"}
    assert thread_environment(2, said).items() >= said.items()
    assert "GOMP_SPINCOUNT" not in thread_environment(2, said)


def test_a_command_finds_its_inputs_and_output():
    found = environment()
    assert found["GRIDMILL_INPUT_MY_INPUT"] == "/w/inputs/my-input"
    assert found["GRIDMILL_OUTPUT"] == "/root-of-storage/files/p/j/p-1.j.1"
    assert (found["GRIDMILL_RUN"], found["GRIDMILL_JOB"], found["GRIDMILL_ATTEMPT"]) == (
        "p-1",
        "j",
        "p-1.j.1",
    )


def test_an_input_without_files_is_an_empty_folder_of_the_attempt():
    """Never the storage root, and never unset: `rm -rf "$GRIDMILL_INPUT_A"/*` must find nothing."""
    job = Job(name="j", needs=("a", "never-made"), command=CommandSpec(run="true"))
    order = replace(an_order(job), inputs=(Input(name="a", artifact=artifact("")),))
    found = command_environment(order, base={}, work=Path("/w"), pod_folder=Path("/pods/r-1.0"))
    assert found["GRIDMILL_INPUT_A"] == "/w/no-files/a"
    assert found["GRIDMILL_INPUT_NEVER_MADE"] == "/w/no-files/never-made"


def test_a_string_runs_in_a_shell_and_a_list_as_it_is():
    assert CommandSpec(run="a\nb").argv == ("/bin/sh", "-e", "-c", "a\nb")
    assert CommandSpec(run="a", shell="bash -eo pipefail").argv == ("bash", "-eo", "pipefail", "-c", "a")
    assert CommandSpec(run=("a", "b")).argv == ("a", "b")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (CommandSpec(run=("a",), shell="bash"), "a list is executed as it is"),
        (CommandSpec(run="a", shell="python -c"), "is not a POSIX shell"),
        (CommandSpec(run="a", shell="bash 'e"), "No closing quotation"),
        (CommandSpec(run="a", shell=""), "is not a POSIX shell"),
    ],
)
def test_a_shell_that_cannot_run_the_command_is_refused(spec, told):
    with pytest.raises(InputError, match=told):
        spec.check()


def test_pip_is_told_its_settings_where_an_environment_is_built():
    assert environment(environment="requirements.txt")["PIP_INDEX_URL"] == "i"


def test_what_a_job_raised_has_a_cause(capfd):
    full = OSError(28, "No space left on device")
    assert failed_outcome(DataError("bad", place="a.csv:3")).cause == Cause.INPUT
    assert failed_outcome(DataError("bad", place="a.csv:3")).message == "a.csv:3: bad"
    assert failed_outcome(StorageError("gone")).cause == Cause.STORAGE
    assert failed_outcome(MemoryError()).cause == Cause.MEMORY
    assert failed_outcome(full).cause == Cause.STORAGE
    assert failed_outcome(ValueError("Generic: No space left on device (os error 28)")).cause == Cause.STORAGE
    defect = failed_outcome(ZeroDivisionError("division by zero"))
    assert (defect.cause, defect.message) == (Cause.INTERNAL, "ZeroDivisionError: division by zero")
    assert "Traceback" not in defect.message
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_process_is_known_by_its_start_time():
    own = processes.stat(os.getpid())
    assert own is not None
    assert own.parent == os.getppid()
    assert processes.is_alive(os.getpid(), own.started)
    assert not processes.is_alive(os.getpid(), own.started + 1)


def test_memory_of_a_process_that_is_gone_is_nothing():
    assert MemoryUse().bytes_of([os.getpid()]) > 2**20
    assert MemoryUse().bytes_of([2**22 + 1]) == 0


def test_cpus_are_shared_out_in_turn():
    limits = PodLimits(None, "salt")
    limits._cpus = [0, 1, 2, 3]
    first, second = (limits.affinity(Amounts(cpus=2), None) for _ in range(2))
    assert sorted(first + second) == [0, 1, 2, 3]
    assert limits.affinity(Amounts(cpus=4), None) == ()


def test_a_package_that_cannot_be_imported_is_left_to_the_job(tmp_path, monkeypatch):
    (tmp_path / "built_for_another.py").write_text("raise ValueError('numpy.dtype size changed')")
    (tmp_path / "sound.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(zygote, "keep", lambda: None)  # what this process has is not to stay
    zygote.bring(["built_for_another", "sound"])
    assert "sound" in sys.modules
    assert "built_for_another" not in sys.modules


def test_a_pod_that_was_cut_short_says_why(tmp_path):
    (tmp_path / "pid").write_text("1 1")
    assert cleanup._why_it_died(tmp_path) == "was killed, or its machine ran out of memory"
    os.utime(tmp_path / "pid", (1.0, 1.0))
    assert "switched off or restarted" in cleanup._why_it_died(tmp_path)
    mark_ended(tmp_path, cleanup._why_it_died(tmp_path))
    assert _why_ended(tmp_path) == "it ended because its machine was switched off or restarted"
    mark_ended(tmp_path)
    assert _why_ended(tmp_path) == "it has ended"
    (tmp_path / "ended").unlink()
    os.mkfifo(tmp_path / "ended")  # a farm's job may put one there
    assert _why_ended(tmp_path) == "it has ended"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux shares CPUs by affinity")
def test_a_running_process_gets_other_cpus() -> None:
    limits = PodLimits(None, "salt")
    read, write = os.pipe()
    with subprocess.Popen(["cat"], stdin=read, stdout=subprocess.DEVNULL) as process:
        limits.spread((process.pid,), Amounts(cpus=0.5), None)
        assert len(os.sched_getaffinity(process.pid)) == 1
        limits.spread((process.pid,), Amounts(cpus=1024.0), None)
        assert os.sched_getaffinity(process.pid) == os.sched_getaffinity(0)
        os.close(read)
        os.close(write)
