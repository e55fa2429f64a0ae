"""The process in the container of a batch service: however early the service ends it, its files go."""

import os
import signal
import subprocess
import sys
from pathlib import Path

WAITS = """
import sys, time
from gridmill.bootstrap import batch_attempt

def open_exchange(*_):
    print("opening", flush=True)
    time.sleep(60)

batch_attempt.open_exchange = open_exchange
raise SystemExit(batch_attempt.main(["file:///bucket", "a-1"]))
"""


def test_a_container_that_ends_before_its_attempt_is_read_leaves_no_files(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "opening\n"
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 1
    assert list(tmp_path.iterdir()) == []
