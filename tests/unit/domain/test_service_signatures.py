"""The differences between two versions of a model that the clients of a service would notice, in words."""

import pytest

from gridmill.domain.signature_changes import signature_differences

NUMBER = {"features": ["temp"], "labels": ["rain"], "objective": "regression", "sequence": None}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"features": ["temp", "wind"]}, "the features `wind` are new"),
        ({"features": []}, "the features `temp` are missing"),
        (
            {"objective": "classification"},
            "the kind of the prediction was `regression` and is `classification`",
        ),
        ({"sequence": 4}, "the number of rows of a sequence was not set and is `4`"),
        ({}, ""),
    ],
)
def test_a_difference_is_described_without_names_of_fields_of_gridmill(changed, text):
    assert "; ".join(signature_differences(NUMBER, NUMBER | changed)) == text
