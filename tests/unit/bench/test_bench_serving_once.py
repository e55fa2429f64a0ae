"""The servers that are measured once: their rows and ratios, and that a stopped server is still."""

import signal
import subprocess
from pathlib import Path

from bench import serving, serving_once
from tests.kit.services import wait_for


def state(process_id: int) -> str:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_server_that_is_not_measured_is_stopped_with_the_processes_that_it_started():
    command = ("sh", "-c", "setsid sh -c 'echo $$; exec sleep 600' & wait")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        inner = int(outer.stdout.readline())
        serving.signal_tree(outer.pid, signal.SIGSTOP)
        wait_for("both stop", lambda: (state(outer.pid), state(inner)) == ("T", "T"))
        with serving.awake(serving.Server(port=1, paused=outer.pid)):
            wait_for("both go on", lambda: "T" not in (state(outer.pid), state(inner)))
        wait_for("both stop", lambda: (state(outer.pid), state(inner)) == ("T", "T"))
        serving.signal_tree(outer.pid, signal.SIGKILL)


def test_a_missing_value_is_replaced_in_rows_and_in_windows():
    row = {"humid": None, "wave": 1.0}
    assert serving_once.without_missing(row) == {"humid": 0.5, "wave": 1.0}
    assert serving_once.without_missing([row, row]) == [{"humid": 0.5, "wave": 1.0}] * 2


def test_the_ratio_is_to_the_quickest_of_the_peers_that_were_measured():
    rates = {"gridmill": [300.0, 310.0, 290.0], "mlserver": [50.0, 60.0, 55.0], "ray": [100.0, 90.0, 110.0]}
    rows = tuple(serving_once.rows_of("mlp, 1 connection", rates))
    assert [row.value for row in rows] == [300.0, 55.0, 100.0, 3.0]
    assert rows[-1].what == "mlp, 1 connection: gridmill / best of these (ray)"
    assert len(tuple(serving_once.rows_of("mlp", {"gridmill": [1.0]}))) == 1
