"""One machine is one node: who joins claims it, and the node goes on to after its `join` was killed."""

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.errors import InputError
from gridmill.sites.ray import machine_lock as claims
from gridmill.sites.ray.machine_lock import claim_machine, runs, try_claim

RAY = "import time; print('up', flush=True); time.sleep(600)"
JOIN = f"""
import subprocess, sys
from pathlib import Path
from gridmill.sites.ray import machine_lock as claim
claim._NAME = chr(0) + sys.argv[1]
made = claim.claim_machine(Path(sys.argv[2]))
ray = [sys.executable, "-c", {RAY!r}, "ray.scripts"]
noted = claim.noting(Path(sys.argv[2]), ray)
node = subprocess.Popen(noted, pass_fds=[made.fileno()], start_new_session=True, stdout=subprocess.PIPE)
node.stdout.readline()
print("joined", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """Tests beside this one are on the same host."""
    monkeypatch.setattr(claims, "_NAME", f"\0gridmill-test-{secrets.token_hex(8)}")
    return claims._NAME


def test_who_has_claimed_it_has_it_alone(tmp_path: Path) -> None:
    with claim_machine(tmp_path), pytest.raises(InputError, match="already a node of a grid"):
        claim_machine(tmp_path / "other")
    claim_machine(tmp_path).close()


def test_a_node_keeps_what_it_inherited(tmp_path: Path) -> None:
    with claim_machine(tmp_path) as claim:
        node = subprocess.Popen(["sleep", "600"], pass_fds=[claim.fileno()])
    try:
        assert try_claim() is None
    finally:
        node.kill()
        node.wait()
    claim_machine(tmp_path).close()


def test_a_node_whose_join_was_killed_is_ended_by_the_next(tmp_path: Path, name: str) -> None:
    words = [sys.executable, "-c", JOIN, name[1:], str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as join:
        assert join.stdout is not None
        assert join.stdout.readline() == b"joined\n"
        with pytest.raises(InputError, match="already a node of a grid"):
            claim_machine(tmp_path)
        assert runs(tmp_path), "it is its own as long as that lives"
        join.kill()
        join.wait()
    assert runs(tmp_path)
    claim_machine(tmp_path).close()
    assert runs(tmp_path) is None


def test_a_process_that_is_another_by_now_is_let_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        (tmp_path / "pid").write_text(f"{other.pid} 1\n")
        assert runs(tmp_path) is None
        claim_machine(tmp_path).close()
        assert other.poll() is None
        other.kill()
