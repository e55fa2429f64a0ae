"""Histories of objects and of files behind URLs, against what the documentation promises."""

from pathlib import Path
from unittest import SkipTest

import pytest

from tests.oracles.remote_cases import http_case, objects_case

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("seed", range(3))
def test_a_table_holds_what_its_urls_gave(seed: int, tmp_path: Path) -> None:
    http_case(seed, tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_a_table_holds_what_its_objects_held(seed: int, tmp_path: Path) -> None:
    _objects(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 53))
def test_more_histories_of_urls(seed: int, tmp_path: Path) -> None:
    http_case(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 53))
def test_more_histories_of_objects(seed: int, tmp_path: Path) -> None:
    _objects(seed, tmp_path)


def _objects(seed: int, folder: Path) -> None:
    try:
        objects_case(seed, folder)
    except SkipTest as error:
        pytest.skip(str(error))
