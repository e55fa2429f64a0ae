"""No module imports itself through others, whichever way it imports them."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.kit.contracts import Contracts, all_imports

PLUG_INS = "gridmill.plugins"
"""The table of plug-ins names modules that import it: it loads one when it is asked for it."""


def ordered(imports: dict[str, frozenset[str]]) -> list[str]:
    return list(TopologicalSorter(imports).static_order())


def test_there_is_no_cycle_of_modules(contracts: Contracts, tmp_path: Path):
    imports = {**all_imports(contracts, tmp_path), PLUG_INS: frozenset()}
    assert len(ordered(imports)) >= len(contracts.modules) - 1


def test_a_cycle_of_two_modules_is_found(contracts: Contracts, tmp_path: Path):
    imports = {**all_imports(contracts, tmp_path), PLUG_INS: frozenset()}
    assert "gridmill.sdk.runs" not in imports["gridmill.sdk.notebook"]
    imports["gridmill.sdk.notebook"] |= {"gridmill.sdk.runs"}  # as if it imported the type of a tick
    with pytest.raises(CycleError):
        ordered(imports)
