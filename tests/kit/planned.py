"""A plan before each run of a test: what `plan` says of pipelines that then succeed.

`GRIDMILL_TEST_PLAN` names a file, which gets a line for each `gridmill run` of the tests; unset, nothing is
planned.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

VARIABLE = "GRIDMILL_TEST_PLAN"
_GRIDMILL = str(Path(sys.executable).parent / "gridmill")
_NO_PLAN = frozenset({"--detach", "-d", "--only", "--adopt", "--help", "-h"})
"""With these, a run is not of the pipeline that a plan shows, or does not say how it ends."""
_SECONDS = 120.0
_EXIT_CODES = (0, 2)
"""Of a plan that was made."""


@dataclass
class Planned:
    """What a plan said, and how the run that followed it ended (None: nobody waited for the end)."""

    test: str
    words: list[str]
    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    exit_code: int | None = None

    @property
    def is_false(self) -> bool:
        """Whether a plan has an error, or failed itself, for a run that succeeds."""
        failed = any("check itself failed" in one for one in self.unchecked)
        return self.exit_code == 0 and bool(self.problems or failed)


@contextmanager
def planned(words: Sequence[object], env: Mapping[str, str], folder: Path | None = None) -> Iterator[Planned]:
    """Plans what `gridmill` with these words would run. The body sets how that ended."""
    file = os.environ.get(VARIABLE, "")
    texts = [str(word) for word in words]
    one = Planned(test=os.environ.get("PYTEST_CURRENT_TEST", ""), words=texts)
    made = (
        bool(file) and texts[:1] == ["run"] and not _NO_PLAN.intersection(texts) and _plan(one, env, folder)
    )
    yield one
    if made:
        with open(file, "a") as log:
            log.write(json.dumps(asdict(one)) + "\n")


def read(file: Path) -> list[Planned]:
    """All plans that a run of tests wrote."""
    return [Planned(**json.loads(line)) for line in file.read_text().splitlines()]


def _plan(one: Planned, env: Mapping[str, str], folder: Path | None) -> bool:
    words = [
        _GRIDMILL,
        "plan",
        *(word for word in one.words[1:] if word not in ("--force", "--json")),
        "--json",
    ]
    try:
        done = subprocess.run(
            words, env=dict(env), cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in _EXIT_CODES or not done.stdout:
        return False
    made = json.loads(done.stdout)
    if "jobs" not in made:
        return False
    one.problems = [f"{job['job']}: {job['problem']}" for job in made["jobs"] if job.get("problem")]
    one.doubts = [f"{job['job']}: {job['doubt']}" for job in made["jobs"] if job.get("doubt")]
    one.unchecked = list(made.get("unchecked") or ())
    return True
