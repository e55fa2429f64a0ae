"""A farm over real TLS under what schemathesis thinks of: by a tenant, and by who has one proof of two."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from tests.kit.farms import Visitor, farm, member, open_folder

from gridmill.farm.app import make_app
from gridmill.farm.state import Farm

SHOWN: dict[str, Visitor] = {}
EXAMPLES = 2
OPEN = ("/v1/join", "/healthz")


@pytest.fixture(scope="module", autouse=True)
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with open_folder() as place, farm(place / "h") as running:
        tenant = member(running, tmp_path_factory.mktemp("home"))
        SHOWN.update(
            tenant=tenant,
            uncertified=replace(tenant, certified=False),
            nameless=replace(tenant, token="wrong"),
        )
        yield


schema = schemathesis.openapi.from_dict(make_app(Farm.__new__(Farm)).openapi())
schema.config.phases.update(phases=["fuzzing"])
pytestmark = pytest.mark.filterwarnings("ignore:Unverified HTTPS request")


def call(case: schemathesis.Case, who: str) -> schemathesis.Response:
    one = SHOWN[who]
    shown = (str(one.folder / "crt"), str(one.folder / "key")) if one.certified else None
    said = {"Authorization": f"Bearer {one.token}"}
    return case.call(
        base_url=f"https://127.0.0.1:{one.port}", headers=said, cert=shown, verify=False, timeout=300
    )


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_nothing_that_a_tenant_says_is_a_server_error(case: schemathesis.Case) -> None:
    answer = call(case, "tenant")
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    assert answer.status_code != 401


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_one_proof_is_none(case: schemathesis.Case) -> None:
    for who in ("uncertified", "nameless"):
        answer = call(case, who)
        if case.path in OPEN:
            assert answer.status_code < 500, answer.text
            assert "BEGIN CERTIFICATE" not in answer.text
        else:
            assert answer.status_code == 401, answer.text
