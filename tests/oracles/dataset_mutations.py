"""Faults put into a copy of the dataset job: the random datasets must find each.

A mutation replaces one text of a source file. `python -m tests.oracles.dataset_mutations NAME`, with the copy
first in PYTHONPATH, tries cases that can show the fault until one does, and prints the number of that one.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import gridmill
from tests.oracles.dataset_cases import WAYS, Expected, check
from tests.oracles.dataset_draws import Drawn, draw_case
from tests.oracles.dataset_faults import MUTATIONS, Mutation

SOURCE = Path(gridmill.__file__).parent
JOB = Path("jobs") / "dataset"
ROOT = Path(__file__).parents[2]


def mutated_text(mutation: Mutation) -> str:
    """The file with the fault in it. Raises ValueError where the text is not there once."""
    file = JOB / mutation.file
    text = (SOURCE / file).read_text()
    if text.count(mutation.text) != 1:
        raise ValueError(
            f"{mutation.name}: {file} has {text.count(mutation.text)} times {mutation.text!r}; "
            "correct the mutation in tests/oracles/dataset_mutations.py"
        )
    return text.replace(mutation.text, mutation.instead)


def mutated(mutation: Mutation, folder: Path) -> Path:
    """A copy of the package with the fault in it."""
    package, text = folder / "gridmill", mutated_text(mutation)
    for path in SOURCE.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            copy = package / path.relative_to(SOURCE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
    (package / JOB / mutation.file).unlink()
    (package / JOB / mutation.file).write_text(text)
    return folder


def cases(mutation: Mutation) -> Iterator[tuple[int, Drawn]]:
    """The cases that can show the fault, with their numbers."""
    fitting = (
        (number, drawn)
        for number in range(100_000)
        if mutation.fits((drawn := draw_case(Random(number))).spec) and WAYS[mutation.way].fits(drawn.spec)
    )
    return islice(fitting, mutation.cases)


def attempt(mutation: Mutation, number: int, drawn: Drawn) -> None:
    """Make one case. Raises an error where the engine and the oracle differ."""
    expected = Expected(drawn)
    if expected.kept:
        with tempfile.TemporaryDirectory() as folder:
            check(Random(number), Path(folder), drawn, expected, [mutation.way])


def first_shown(mutation: Mutation) -> int | None:
    """The first case that shows the fault."""
    for number, drawn in cases(mutation):
        try:
            attempt(mutation, number, drawn)
        except Exception:  # noqa: BLE001 - an engine that fails is found as well
            return number
    return None


def find(mutation: Mutation, folder: Path) -> int | None:
    """The first case that shows the fault, in a process that imports the mutated copy."""
    source = mutated(mutation, folder)
    paths = os.pathsep.join([str(source), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.dataset_mutations", mutation.name],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = done.stdout.splitlines()[-1].split()
    assert answer[0] == str(source / "gridmill"), f"{answer[0]} was tried, not the mutated copy"
    return int(answer[1]) if len(answer) > 1 else None


if __name__ == "__main__":
    (chosen,) = (one for one in MUTATIONS if one.name == sys.argv[1])
    shown = first_shown(chosen)
    print(Path(gridmill.__file__).parent, "" if shown is None else shown)
