"""Building an environment is seen while it goes on: with a real pip and a package of this machine."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gridmill.domain.environment_build import BEGUN, ENDED, ENVIRONMENT

pytestmark = pytest.mark.e2e
BUILD = """
import os, sys
from pathlib import Path
from gridmill.pod.python_environments import EVENTS_FD, Requirements, ready_environment
os.dup2(1, EVENTS_FD)
file = Path(sys.argv[1])
wanted = Requirements(file=file, text=file.read_text(), bundle="")
print(ready_environment(Path(sys.argv[2]), wanted), file=sys.stderr)
"""


def write_wheel(folder: Path) -> Path:
    """A package without content."""
    path = folder / "own_package-1.0-py3-none-any.whl"
    info = "own_package-1.0.dist-info"
    files = {
        "own_package.py": "VALUE = 1\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)
    return path


def build(file: Path, home: Path) -> tuple[list[dict[str, object]], str]:
    """The events of a build, and the folder of the environment."""
    argv = [sys.executable, "-c", BUILD, str(file), str(home)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.strip().splitlines()[-1]


def test_the_building_of_an_environment_has_a_beginning_progress_and_an_end(tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text(f"./{write_wheel(tmp_path).name}\n")
    events, folder = build(file, tmp_path / "home")
    notes = [str(event["note"]) for event in events if event.get("phase") == ENVIRONMENT]
    assert "building environment: python -m venv" in notes
    assert "building environment: pip install own_package (1 of 1 package)" in notes
    assert notes[-1].startswith("building environment: pip install, unpacking (")
    said = [str(event["text"]) for event in events if event["type"] == "log"]
    assert any(text.startswith(BEGUN) for text in said)
    assert any(text.startswith(ENDED) for text in said)
    assert events[-1] == {"type": "progress", "done": 0, "phase": ""}, "then the job's own progress is shown"
    python = Path(folder) / "bin" / "python"
    imported = subprocess.run([python, "-c", "import own_package"], check=False, capture_output=True)
    assert imported.returncode == 0
    assert build(file, tmp_path / "home")[0] == [], "an environment that is there is not built"
