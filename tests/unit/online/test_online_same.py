"""Features at request time equal those of the dataset: random tables and declarations, at the forced borders
of the oracle (equal times, rows at borders of windows, missing values, NaN, duplicates)."""

import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.kit.online_case import OnlineCase
from tests.oracles.dataset_cases import append, cut_in_loads, given
from tests.oracles.dataset_draws import Drawn, draw_case

from gridmill.errors import DataError, InputError


def is_close(made: Any, expected: Any) -> bool:
    if isinstance(made, float) and isinstance(expected, float):
        if math.isnan(made) or math.isnan(expected):
            return math.isnan(made) and math.isnan(expected)
        return made == expected or math.isclose(made, expected, rel_tol=1e-9, abs_tol=1e-9 * _scale)
    return bool(made == expected)


_scale = 1.0


def draw(random: Random, folder: Path) -> tuple[Drawn, OnlineCase, list[dict[str, Any]]] | None:
    """Random tables in loads, a view that follows the loads, and the rows of the dataset."""
    drawn = draw_case(random)
    drawn = replace(drawn, spec=replace(drawn.spec, encoders=(), split=None, required=()))
    loads = list(cut_in_loads(random, drawn))
    case = OnlineCase(given(folder, loads[0], drawn.spec), drawn.spec)
    case.build()
    for load in loads[1:]:
        for name in drawn.spec.references():
            if load[name]:
                append(case.tables, name, load[name])
        case.refresh()
    try:
        rows = case.tables.rows(drawn.spec)
    except (DataError, InputError):
        return None
    return drawn, case, rows


def problems(drawn: Drawn, case: OnlineCase, rows: list[dict[str, Any]], random: Random) -> list[str]:
    sources = {row["id"]: row for row in drawn.tables["obs"]}
    plan, features = case.plan(), case.features()
    random.shuffle(rows)
    size = random.choice((1, 3, len(rows)))
    found: list[str] = []
    for at in range(0, len(rows), size):
        some = rows[at : at + size]
        made = features.features_for([case.request(sources[row["id"]], row) for row in some])
        for number, row in enumerate(some):
            for name in plan.features:
                value, expected = made.columns[name][number].as_py(), row[name]
                if not is_close(_plain(value), _plain(expected)):
                    found.append(f"row {row['id']}: {name} is {value!r}, not {expected!r}")
    features.close()
    return found


def _plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") and value.tzinfo else value


def check(seed: int, folder: Path, cases: int) -> None:
    random = Random(seed)
    for number in range(cases):
        case = draw(random, folder / str(number))
        if case is not None:
            found = problems(*case, random)
            assert not found, "\n".join([str(case[0].spec), *found[:20]])


@pytest.mark.parametrize("seed", range(3))
def test_features_by_key_equal_the_dataset(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 6))
def test_more_features_by_key_equal_the_dataset(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, 4)
