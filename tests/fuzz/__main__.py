"""Try random cases of a subject: `python -m tests.fuzz SUBJECT --cases 10000`.

Seeds count up. What was tried is kept in `.fuzz/SUBJECT.json`, so that an interrupted trial goes on where
it ended; seeds that failed are listed there, and `--seed N` tries one of them again, with its traceback.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.fuzz.subjects import SUBJECTS, Case, case_of


@dataclass
class Trial:
    next_seed: int = 0
    passed: int = 0
    failed: list[int] = field(default_factory=list)


def load(state: Path, start: int) -> Trial:
    return Trial(**json.loads(state.read_text())) if state.exists() else Trial(next_seed=start)


def save(state: Path, trial: Trial) -> None:
    state.parent.mkdir(parents=True, exist_ok=True)
    aside = state.with_suffix(".new")
    aside.write_text(json.dumps(asdict(trial)))
    aside.replace(state)


def passes(case: Case, seed: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="gridmill-fuzz-") as folder:
        try:
            case(seed, Path(folder))
        except Exception:  # noqa: BLE001 - a failed case is a result; the trial goes on
            print(f"seed {seed} failed\n{traceback.format_exc()}", flush=True)
            return False
    return True


def run(subject: str, trial: Trial, cases: int, state: Path, minutes: float) -> None:
    case, end = case_of(subject), time.monotonic() + minutes * 60
    while trial.passed + len(trial.failed) < cases and time.monotonic() < end:
        if passes(case, trial.next_seed):
            trial.passed += 1
        else:
            trial.failed.append(trial.next_seed)
        trial.next_seed += 1
        save(state, trial)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("subjects", nargs="*", help="all of them unless given")
    parser.add_argument("--cases", type=int, default=10_000, help="how many cases in all, of each subject")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--from", dest="start", type=int, default=0, help="the first seed of a new trial")
    parser.add_argument("--seed", type=int, help="try this seed alone")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="where the state is kept")
    given = parser.parse_args()
    failed = 0
    for subject in given.subjects or SUBJECTS:
        if given.seed is not None:
            failed += not passes(case_of(subject), given.seed)
            continue
        state = given.folder / f"{subject}.json"
        trial = load(state, given.start)
        run(subject, trial, given.cases, state, given.minutes)
        failed += len(trial.failed)
        print(
            f"{subject}: {trial.passed} passed, {len(trial.failed)} failed {trial.failed[:20] or ''}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
