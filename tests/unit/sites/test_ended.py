"""What becomes of the folders of pods that have ended on machines without a control node."""

import os
from pathlib import Path

from gridmill.sites.processes import KEPT_SECONDS, clear, clear_old

NOW = 1_700_000_000.0


def a_pod(pods: Path, name: str, *, ended: float | None = None) -> Path:
    folder = pods / name
    (folder / "journal").mkdir(parents=True)
    (folder / "log").write_text("pod_ends")
    if ended is not None:
        (folder / "ended").touch()
        os.utime(folder / "ended", (ended, ended))
    return folder


def test_a_pod_that_was_ended_leaves_nothing_and_one_that_lives_keeps_all(tmp_path: Path) -> None:
    lives, over = a_pod(tmp_path, "a-1.0"), a_pod(tmp_path, "a-2.0", ended=NOW)
    for folder in (lives, over, over, tmp_path / "never"):
        clear(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["a-1.0"]
    assert (lives / "log").exists()


def test_one_that_ended_by_itself_stays_for_a_day(tmp_path: Path) -> None:
    a_pod(tmp_path, "lives")
    a_pod(tmp_path, "today", ended=NOW - KEPT_SECONDS)
    a_pod(tmp_path, "yesterday", ended=NOW - KEPT_SECONDS - 1)
    a_pod(tmp_path, ".gone-cut-short", ended=NOW - KEPT_SECONDS - 1)
    clear_old(tmp_path, NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lives", "today"]
    clear_old(tmp_path / "nowhere", NOW)
