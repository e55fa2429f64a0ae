"""Commands run in containers of podman: their files, limits, end and login at a private registry."""

import base64
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.domain.amounts import Amounts
from gridmill.jobs.containers import ContainerJob, check_runtime, container_argv
from tests.e2e.conftest import Place, eventually
from tests.e2e.test_survive import pod_pids
from tests.kit.containers import (
    PASSWORD,
    USER,
    configuration,
    containers,
    make_image,
    registry,
    remove_image,
    why_no_podman,
    why_no_registry,
)

pytestmark = pytest.mark.e2e
PIPELINE = """\
pipeline: demo
jobs:
  one: {command: "echo 1 > $GRIDMILL_OUTPUT/in"}
  two:
    needs: [one]
    memory: 128MiB
    cpus: 1
    command:
      container: IMAGE
      LOGIN
      env: {TOKEN: {secret: token}}
      run: |
        RUN
"""
VALUE = "q7-container-value"


@pytest.fixture
def conf(tmp_path: Path) -> dict[str, str]:
    if why_no_podman():
        pytest.skip(why_no_podman())
    return configuration(tmp_path)


@pytest.fixture
def image(conf: dict[str, str]) -> Iterator[str]:
    name = f"localhost/gridmill-test:{os.urandom(6).hex()}"
    yield make_image(conf, name)
    remove_image(conf, name)


def secret(place: Place, name: str, value: str) -> None:
    file = place.folder / "value"
    file.write_text(value + "\n")
    assert place.gridmill("add", "secret", name, "--file", file).returncode == 0
    file.unlink()


def pipeline(place: Place, image: str, run: str, login: str = "") -> Path:
    secret(place, "token", VALUE)
    text = PIPELINE.replace("IMAGE", image).replace("LOGIN", login).replace("RUN", run)
    return place.write(text)


def test_a_command_runs_in_a_container_as_the_same_user_and_leaves_nothing(place, conf, image) -> None:
    run = (
        "id; cat $GRIDMILL_INPUT_ONE/in > $GRIDMILL_OUTPUT/out; printf '%s' \"$TOKEN\" > $GRIDMILL_OUTPUT/t;"
        " touch $GRIDMILL_INPUT_ONE/no 2>&1 || echo read-only; ls /home /root 2>&1 || true;"
        " cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null || true"
    )
    file = pipeline(place, image, run)
    done = place.gridmill("run", file, **conf)
    assert done.returncode == 0, done.stdout + done.stderr
    log = place.gridmill("logs", "demo-1", "two").stdout
    assert f"uid={os.getuid()}" in log
    assert "read-only" in log
    assert f"container: {image} is sha256:" in log
    assert str(128 * 2**20) in log
    assert VALUE not in log
    shown = place.json("show", "job", "demo-1", "two")
    assert f"'container': '{image}@sha256:" in str(shown)
    assert containers(conf, image) == []


@pytest.mark.long
def test_a_stop_ends_the_container(place, conf, image) -> None:
    file = pipeline(place, image, "echo begun; sleep 600")
    running = place.start("run", file, **conf)
    assert eventually(lambda: containers(conf, image), 60)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert eventually(lambda: containers(conf, image) == [], 30)


@pytest.mark.long
def test_the_container_of_a_killed_pod_is_removed(place, conf, image) -> None:
    file = pipeline(place, image, "echo begun; sleep 600")
    running = place.start("run", file, **conf)
    assert eventually(lambda: containers(conf, image), 60)
    for pid in pod_pids(place):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: containers(conf, image) == [], 60)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert containers(conf, image) == []


@pytest.mark.long
def test_an_image_of_a_private_registry_needs_the_login_that_no_process_shows(place, conf, image) -> None:
    if why_no_registry():
        pytest.skip(why_no_registry())
    with registry(place.folder) as address:
        name = f"{address}/team/train:1"
        settings = place.folder / "registries.conf"
        settings.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
        conf = {**conf, "CONTAINERS_REGISTRIES_CONF": str(settings)}
        words = ["podman", "push", "--creds", f"{USER}:{PASSWORD}", image, name]
        subprocess.run(words, env={**os.environ, **conf}, capture_output=True, check=True)
        file = pipeline(place, name, "echo ran")
        done = place.gridmill("run", file, **conf)
        assert done.returncode != 0
        assert "could not be pulled" in done.stdout + done.stderr
        secret(place, "login", f"{USER}:{PASSWORD}")
        file = pipeline(place, name, "echo ran", "registry_login: {secret: login}")
        done = place.gridmill("run", file, **conf)
        assert done.returncode == 0, done.stdout + done.stderr
        remove_image(conf, name)
    forms = (PASSWORD.encode(), base64.b64encode(f"{USER}:{PASSWORD}".encode()))
    for path in place.home.rglob("*"):
        assert not path.is_file() or not any(form in path.read_bytes() for form in forms), path
    assert not list(Path("/dev/shm").glob("gridmill-*-login"))


def test_a_user_without_rights_and_without_a_name_runs_a_container(conf, image) -> None:
    """The Unix users of tenants have only a number."""
    user = 1_879_000_000 + os.getpid()
    with tempfile.TemporaryDirectory(prefix="gmu") as name:
        folder = Path(name)
        program, home = folder / "podman", folder / "home"
        words = f"setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs"
        program.write_text(f'#!/bin/sh\ncd / && exec {words} {shutil.which("podman")} "$@"\n')
        program.chmod(0o755)
        archive = folder / "image.tar"
        known = {**os.environ, **conf}
        subprocess.run(["podman", "save", "-q", "-o", archive, image], env=known, check=True)
        (folder / "containers.conf").write_text(Path(conf["CONTAINERS_CONF"]).read_text())
        for path in (home, home / "run"):
            path.mkdir()
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user, user)
        environment = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": str(home),
            "TMPDIR": str(home),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
        }
        runner = check_runtime(str(program), environment, (user, user))
        load = [program, *runner.options, "load", "-q", "-i", archive]
        subprocess.run(load, env=environment, check=True, capture_output=True)
        job = ContainerJob(
            attempt_id="a.1",
            folder=home,
            image=image,
            readable=(),
            writable=(home,),
            cwd=home,
            given=Amounts(cpus=1, memory_bytes=2**27),
        )
        words = container_argv(job, ("sh", "-c", "id; touch made"), environment, (user, user))
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "uid=0" in done.stdout, "root in the container …"
        assert (home / "made").stat().st_uid == user, "… is the user on the machine"


def test_a_machine_without_a_runtime_is_named(place) -> None:
    folder = place.folder / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    file = pipeline(place, "ubuntu", "echo ran")
    done = place.gridmill("run", file, PATH=str(folder))
    assert "has neither podman nor docker" in done.stdout + done.stderr


TRAINING = """\
pipeline: demo
jobs:
  rows: {sink: {source: rows.csv}}
  data:
    dataset:
      sql: select * from rows
      tables: [rows]
      time: at
      label: {column: y}
      split: {validation: 0.2, test: 0.2}
  model:
    memory: 256MiB
    training: {dataset: data, model: custom, script: train.py, container: IMAGE}
"""


@pytest.mark.long
def test_the_script_of_a_custom_training_runs_in_a_container(place, conf, image) -> None:
    file = place.write(TRAINING.replace("IMAGE", image))
    rows = "".join(f"2026-01-01 00:{number:02}:00,{number},{number % 7}\n" for number in range(60))
    (file.parent / "rows.csv").write_text(f"at,x,y\n{rows}")
    # `python3` of the image is its shell
    (file.parent / "train.py").write_text(
        "ls $GRIDMILL_ARRAYS; touch $GRIDMILL_ARRAYS/no || echo read-only\n"
        "echo text > $GRIDMILL_OUTPUT/weights; ls /usr/lib/python3 || echo apart\n"
    )
    done = place.gridmill("run", file, **conf)
    log = place.gridmill("logs", "demo-1", "model").stdout
    assert all(word in log for word in ("inputs.npy", "read-only", "apart")), done.stdout + done.stderr + log
    assert "wrote no model that can predict to $GRIDMILL_OUTPUT (weights)" in done.stdout + done.stderr
    assert containers(conf, image) == []
