"""A job in a container on a machine of the simulated EC2: its image comes from a private registry that only
the login of a secret opens."""

import base64
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.declarations import read_pipeline
from gridmill.domain.states import RunState
from gridmill.testing.cloud.namespace_machines import why_no_machines
from tests.e2e.test_rented_ec2 import Account, aws
from tests.kit.containers import (
    PASSWORD,
    USER,
    configuration,
    make_image,
    registry,
    remove_image,
    why_no_registry,
)

__all__ = ["aws"]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines() or "there are machines"),
]
PIPELINE = """
pipeline: p
resources:
  burst: {type: command, site: aws, cpus: 1, memory: 512MiB, keep: 5m, settings: {instance_type: t3.micro}}
jobs:
  # the machine has no settings for the registry of the test until the test has written them
  first:
    resource: burst
    command: "echo begun; until [ -e /etc/containers/ready ]; do sleep 0.1; done; seq 3 > $GRIDMILL_OUTPUT/in"
  second:
    resource: burst
    needs: [first]
    memory: 128MiB
    command:
      container: IMAGE
      registry_login: {secret: login}
      env: {TOKEN: {secret: token}}
      run: |
        id; tac $GRIDMILL_INPUT_FIRST/in > $GRIDMILL_OUTPUT/out
        echo "the token is $TOKEN"
        touch $GRIDMILL_INPUT_FIRST/no 2>&1 || echo read-only
        ls /opt /var/lib/gridmill 2>&1 || echo apart
"""
STORAGE = '[storage]\ndriver = "vfs"\nrunroot = "/run/containers"\ngraphroot = "/var/lib/containers"\n'
LOGIN = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
TOKEN = "q7-container-value"


@pytest.fixture
def image(aws: Account) -> Iterator[str]:
    """An image in a private registry that the machines reach. This machine does not keep it."""
    if why_no_registry():
        pytest.skip(why_no_registry())
    conf = configuration(aws.folder)
    made = make_image(conf, f"localhost/gridmill-test:{os.urandom(6).hex()}")
    with registry(aws.folder, aws.host.address) as address:
        name = f"{address}/team/job:1"
        words = ["podman", "push", "--tls-verify=false", "--creds", f"{USER}:{PASSWORD}", made, name]
        subprocess.run(words, env={**os.environ, **conf}, capture_output=True, check=True)
        remove_image(conf, made)
        yield name


def permit_registry(aws: Account, machine: str, address: str) -> None:
    """Write the settings of podman to a machine, as an image of machines would have them."""
    limits = Path(aws.folder, "containers.conf").read_text()
    insecure = f'[[registry]]\nlocation = "{address}"\ninsecure = true\n'
    # the disk of the machine is itself an overlay, so that podman cannot use overlays on it
    files = {"containers.conf": limits, "registries.conf": insecure, "storage.conf": STORAGE, "ready": ""}
    lines = (f"printf %s {shlex.quote(text)} > /etc/containers/{name}" for name, text in files.items())
    script = "; ".join(("set -e", "mkdir -p /etc/containers", *lines))
    inside(aws, machine, script)


def test_a_rented_machine_runs_a_job_in_a_container_of_a_private_registry(aws: Account, image: str) -> None:
    aws.node.grid.add_secret("login", f"{USER}:{PASSWORD}")
    aws.node.grid.add_secret("token", TOKEN)
    project = aws.folder / "project"
    project.mkdir()
    (project / "pipeline.yaml").write_text(PIPELINE.replace("IMAGE", image))
    run = aws.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id

    def log(job: str) -> str:
        return "".join(entry.text for entry in aws.node.grid.logs(run, job=job))

    aws.wait(lambda: "begun" in log("first"), "the first job runs")
    [machine] = aws.ec2.running()
    permit_registry(aws, machine.id, image.partition("/")[0])
    view = aws.ended(run)
    second = next(one for one in view.jobs if one.job.job.name == "second")
    assert view.run.state is RunState.SUCCEEDED, (second.job.message, log("second"))
    assert f"container: {image} is sha256:" in log("second")
    assert "the token is ***" in log("second")
    assert "read-only" in log("second")
    assert "apart" in log("second"), "the container sees no other files of the machine"
    output = aws.settings.root / second.artifacts[0].output.uri / "out"
    assert output.read_text().split() == ["3", "2", "1"]
    shown = [str(one.output.details) for one in second.artifacts]
    assert any(f"'container': '{image}@sha256:" in one for one in shown), shown
    assert inside(aws, machine.id, "podman ps --all --quiet") == "", "the container is removed"
    assert inside(aws, machine.id, f"grep -rlF {shlex.quote(LOGIN)} /dev/shm /var/lib/gridmill || true") == ""
    forms = (TOKEN.encode(), PASSWORD.encode(), LOGIN.encode())
    for path in aws.settings.home.rglob("*"):
        assert not path.is_file() or not any(form in path.read_bytes() for form in forms), path


def inside(aws: Account, machine: str, command: str) -> str:
    """What a command prints on a machine, without SSH."""
    words = aws.host.command(machine, "sh", "-c", command)
    return subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout
