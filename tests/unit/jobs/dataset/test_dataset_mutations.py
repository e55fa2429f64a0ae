"""Faults in the dataset job are found by the random datasets."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.oracles.dataset_faults import MUTATIONS, Mutation
from tests.oracles.dataset_mutations import attempt, cases, find, mutated_text


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_the_text_of_each_fault_is_there(mutation: Mutation) -> None:
    assert mutated_text(mutation)


def test_a_fault_whose_text_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="has 0 times 'no such text'"):
        mutated_text(replace(MUTATIONS[0], text="no such text"))


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, id=one.name, marks=pytest.mark.soak if number % 8 else pytest.mark.long)
        for number, one in enumerate(MUTATIONS)
    ],
)
def test_each_fault_is_found(mutation: Mutation, tmp_path: Path) -> None:
    number = find(mutation, tmp_path)
    assert number is not None, f"none of {mutation.cases} cases shows it"
    drawn = next(drawn for at, drawn in cases(mutation) if at == number)
    attempt(mutation, number, drawn)  # the engine as it is makes this case right
