"""Pods of all homes of a machine, and whether it can give them what they were promised."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridmill.codec import encode
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.pod_protocol import PodOrder
from gridmill.sites.machine_memory import MemoryWatch, PodClaim, overbooked_text, pod_claims


def claim(home: str, promised: int, used: int = 0) -> PodClaim:
    return PodClaim(home=home, promised_bytes=promised * GIB, used_bytes=used * GIB)


@pytest.mark.parametrize(
    ("claims", "free", "words"),
    [
        ([], 1, ()),
        ([claim("/a", 15)], 18, ()),
        ([claim("/a", 15), claim("/b", 15)], 18, ("30 GiB more", "18 GiB are free", "15 GiB (/b)")),
        ([claim("/a", 15, 14), claim("/b", 15, 14)], 18, ()),
        ([claim("/a", 15, 20)], 1, ()),
        ([claim("/a", 8)], 3, ("8 GiB more", "3 GiB are free", "GRIDMILL_MEMORY")),
    ],
    ids=["none", "alone", "two homes", "two that use it already", "over its promise", "other load"],
)
def test_promises_that_cannot_be_kept_are_told(claims, free, words):
    text = overbooked_text("/a", claims, free * GIB)
    assert bool(text) == bool(words)
    assert [word for word in words if word not in text] == []


def test_a_pod_of_any_home_is_found_with_what_it_was_promised(tmp_path: Path):
    folder = tmp_path / "home/pods/r-1.0"
    folder.mkdir(parents=True)
    order = PodOrder(
        pod_id="r-1.0",
        deployment_id="r-1",
        type="command",
        secret="s",
        home=str(tmp_path / "home"),
        link="unix:x",
        capacity=Amounts(memory_bytes=2**50),
        keep_seconds=1.0,
    )
    (folder / "order.json").write_bytes(encode(order))
    words = [sys.executable, "-c", "input()", "-m", "gridmill.pod", str(folder)]
    with subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE) as pod:
        mine = [one for one in pod_claims() if one.home == str(tmp_path / "home")]
        assert [one.promised_bytes for one in mine] == [2**50]
        watch = MemoryWatch(tmp_path / "another")
        now = time.monotonic()
        watch.look(now)
        assert str(tmp_path / "home") in watch.problem(now)
        assert watch.problem(now + 100.0) == ""
        pod.communicate()
    assert not [one for one in pod_claims() if one.home == str(tmp_path / "home")]
