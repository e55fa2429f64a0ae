"""Sinks over databases and streams hold what plain rules say, through random histories, kills and cuts.

`python -m tests.fuzz postgresql mariadb sqlite redis` tries as many as you like.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.subjects import case_of
from tests.oracles.database_places import Database, MissingServerError, close, database
from tests.oracles.database_values_cases import every_value, late_values

pytestmark = pytest.mark.e2e

SUBJECTS = ("sqlite", "postgresql", "mariadb", "redis")


@pytest.fixture(scope="module", autouse=True)
def _servers() -> Iterator[None]:
    yield
    close()


def try_seeds(subject: str, seeds: range, folder: Path) -> None:
    for seed in seeds:
        below = folder / str(seed)
        below.mkdir()
        try:
            case_of(subject)(seed, below)
        except MissingServerError as missing:
            pytest.skip(str(missing))
        except BaseException as error:
            error.add_note(f"python -m tests.fuzz {subject} --seed {seed}")
            raise


@pytest.mark.parametrize("subject", SUBJECTS)
def test_random_histories(subject: str, tmp_path: Path) -> None:
    try_seeds(subject, range(3), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_many_random_histories(subject: str, tmp_path: Path) -> None:
    try_seeds(subject, range(3, 60), tmp_path)


@pytest.mark.parametrize("subject", ["sqlite", "postgresql", "mariadb"])
@pytest.mark.parametrize("case", [every_value, late_values])
def test_every_value_of_every_type(
    subject: str, case: Callable[[str, Database, Path], None], tmp_path: Path
) -> None:
    try:
        with database(subject, Random(1), tmp_path) as made:
            case(subject, made, tmp_path)
    except MissingServerError as missing:
        pytest.skip(str(missing))
