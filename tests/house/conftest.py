"""The import contracts, read once for all tests of the source."""

import pytest

from tests.kit.contracts import Contracts, load_contracts


@pytest.fixture(scope="session")
def contracts(tmp_path_factory: pytest.TempPathFactory) -> Contracts:
    return load_contracts(tmp_path_factory.mktemp("grimp"))
