"""What a zygote imports, and when."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.domain.states import AttemptState, Cause
from gridmill.jobs.main import write_outcome
from gridmill.plugins import MODEL_PREIMPORTS
from gridmill.pod.folders import own_outcome
from gridmill.pod.launch import Launch, Pipes, enter, fork

_SAYS = "print(*({'torch', 'sklearn'} & set(sys.modules)))"
_PANDAS = "print('pandas' in sys.modules)"


@pytest.mark.parametrize(("model", "brought"), [("custom", ""), ("linear", "sklearn")])
def test_a_training_pod_imports_what_its_model_needs_alone(model: str, brought: str) -> None:
    imports = MODEL_PREIMPORTS.get(model, ())
    preloads = "import sys; from gridmill.pod.zygote import bring, preload; preload('training')"
    code = f"{preloads}; bring({imports}); {_SAYS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == brought.split()


@pytest.mark.parametrize("kind", ["sink", "dataset", "training", "prediction"])
def test_no_pod_imports_pandas(kind: str) -> None:
    code = f"import sys; from gridmill.pod.zygote import preload; preload({kind!r}); {_PANDAS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_what_cannot_be_imported_is_left_to_the_job() -> None:
    code = "from gridmill.pod.zygote import bring; bring(['no.such', 'json'])"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_attempt_whose_control_group_was_deleted_is_lost_and_names_the_group(tmp_path: Path) -> None:
    procs = str(tmp_path / "deleted" / "cgroup.procs")
    launch = Launch(attempt_id="p-1.a.1", folder=str(tmp_path), environment={}, joins=(procs,))
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    pid = fork(lambda parent: enter(launch, Pipes(out=log, err=log, events=log), parent, write_outcome))
    os.close(log)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    outcome = own_outcome(tmp_path)
    assert outcome is not None
    assert (outcome.state, outcome.cause) == (AttemptState.LOST, Cause.LOST)
    assert outcome.message.endswith(f"deleted its control group {tmp_path}/deleted")
    assert (tmp_path / "log").read_text() == ""
