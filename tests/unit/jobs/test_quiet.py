"""No library that Gridmill uses tells anybody anything."""

import os
import subprocess
import sys

from gridmill.telemetry import QUIET

SAY = f"import os; print({{name: os.environ.get(name) for name in {sorted(QUIET)}}})"
SUPPRESSED_BY = ("CI", "ORT_RUNNING_UNIT_TESTS", "GITHUB_ACTIONS", "TF_BUILD")


def ran(code: str, folder, **more: str) -> str:
    quiet = {*QUIET, *SUPPRESSED_BY}
    env = {name: value for name, value in os.environ.items() if name not in quiet}
    env |= {"HOME": str(folder), "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **more}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, cwd=folder
    )
    return done.stdout


def test_onnx_runtime_writes_no_identifier_and_no_session(tmp_path):
    ran("import gridmill.jobs.model_files", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_importing_gridmill_turns_telemetry_off_but_changes_nothing_that_is_set(tmp_path):
    assert ran(f"import gridmill; {SAY}", tmp_path).strip() == str(dict(sorted(QUIET.items())))
    said = ran(f"import gridmill; {SAY}", tmp_path, DO_NOT_TRACK="0")
    assert "'DO_NOT_TRACK': '0'" in said
