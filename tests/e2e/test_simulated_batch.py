"""The simulated batch services as processes, and what is left of their jobs when such a process is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.e2e.conftest import eventually
from tests.kit.aws_batch import client, define, detail, submit
from tests.kit.gcp_batch import assertion

pytestmark = pytest.mark.e2e

IMAGES = json.dumps({"shell:1": ["/bin/sh", "-c"]})


@contextmanager
def started(service: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], SimpleNamespace]]:
    argv = [sys.executable, "-m", f"gridmill.testing.cloud.{service}", "--images", IMAGES, *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, SimpleNamespace(**json.loads(process.stdout.readline()))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def is_gone(pid: int) -> bool:
    """Returns whether a process has ended. A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_ends_with_the_process_of_its_simulation(tmp_path, number):
    folder = tmp_path / "temporary"
    folder.mkdir()
    pid_file = tmp_path / "pid"
    os.environ["TMPDIR"], before = str(folder), os.environ.get("TMPDIR", "/tmp")
    try:
        with started("aws_batch", "--faults", '{"queued_seconds": 0.1}') as (process, simulation):
            batch = client(simulation)
            define(batch, "exit 0")
            job_id = submit(batch, f"echo $$ > '{pid_file}'; exec sleep 1000")
            assert eventually(lambda: detail(batch, job_id)["status"] == "RUNNING")
            assert eventually(lambda: pid_file.exists() and pid_file.read_text().strip())
            pid = int(pid_file.read_text())
            assert not is_gone(pid)
            process.send_signal(number)
            process.wait()
            assert eventually(lambda: is_gone(pid))
    finally:
        os.environ["TMPDIR"] = before
    assert number == signal.SIGKILL or list(folder.iterdir()) == []


def test_a_simulated_google_cloud_batch_prints_a_key_file():
    with started("gcp_batch") as (_, simulation):
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": assertion(simulation.key_file),
        }
        answer = httpx.post(simulation.key_file["token_uri"], data=form, trust_env=False)
        assert answer.json()["token_type"] == "Bearer"
        assert simulation.key_file["token_uri"].startswith(simulation.endpoint_url)
        assert simulation.project == simulation.key_file["project_id"]
