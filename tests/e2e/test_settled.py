"""Files that changed lately: `plan`, `run` and `show` count them, and no later run forgets them."""

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

PIPELINE = """\
pipeline: shop
parameters: {for: 1h}
jobs:
  sales: {sink: {source: {path: "*.csv", settled: "${for}"}}}
"""
WAITING = "waiting: 1 file changed less than 3600s ago"


def test_a_file_that_waits_is_told_and_not_forgotten(place: Place) -> None:
    file = place.write(PIPELINE)
    place.write("x\n1\n", "a.csv")
    assert f"sales: {WAITING}" in place.gridmill("plan", file).stdout
    failed = place.gridmill("run", file)
    assert failed.returncode != 0
    assert f"there is nothing to load yet; {WAITING}" in failed.stdout + failed.stderr
    assert place.gridmill("run", file, "--set", "for=1ms").returncode == 0
    for _ in range(2):
        done = place.gridmill("run", file)
        assert done.returncode == 0
        assert WAITING in done.stdout
        assert WAITING in place.gridmill("show", "sink", "shop/sales").stdout
    place.write("x\n2\n", "b.csv")
    assert place.gridmill("run", file, "--set", "for=1ms").returncode == 0
    assert place.json("show", "sink", "shop/sales")["output"]["rows"] == 2
    settled = place.gridmill("run", file, "--set", "for=1ms")
    assert "unchanged" in settled.stdout
    assert "waiting" not in settled.stdout
