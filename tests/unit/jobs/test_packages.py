"""The packages with which a version was made: the recorded names, and the differences that matter."""

import platform

import pytest

from gridmill.jobs.packages import package_differences, recorded_packages


def test_what_computes_a_model_is_recorded():
    recorded = recorded_packages(["scikit-learn"])
    assert recorded["python"] == platform.python_version()
    assert {"gridmill", "numpy", "onnx", "onnxruntime", "scikit-learn"} <= recorded.keys()


@pytest.mark.parametrize(
    ("before", "now", "is_reported"),
    [
        ("1.17.0", "1.17.3", False),
        ("1.17.0", "1.18.0", True),
        ("1.17.0", "2.17.0", True),
        ("2.1.0+cpu", "2.1.1", False),
        ("2.1+cpu", "2.1", False),
        ("1.17", None, True),
    ],
)
def test_a_difference_in_the_first_two_numbers_is_reported(before, now, is_reported):
    present = {} if now is None else {"numpy": now}
    found = package_differences({"numpy": before, "torch": "1.0"}, present, ("numpy", "onnxruntime"))
    assert bool(found) == is_reported
    if is_reported:
        shown = now or "no such package"
        assert found == (f"numpy {before} made the version, {shown} computes it",)
