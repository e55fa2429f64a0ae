"""The farm's API in this process, under whatever schemathesis thinks of: by a tenant, and by a stranger."""

from pathlib import Path

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from starlette.types import Receive, Scope, Send
from tests.kit.farms import LOCAL

from gridmill.farm.app import make_app
from gridmill.farm.certificates import Authority
from gridmill.farm.disk import FarmDisk
from gridmill.farm.state import Farm
from gridmill.farm.store import open_records
from gridmill.farm.tenant import Tenant, hash_of
from gridmill.http.connections import CERTIFICATE
from gridmill.settings import Settings

SHOWN = "c" * 64
TOKEN = "of the tenant"


class Visited:
    """The application as its server calls it. With authority a tenant asks it, else nobody known."""

    def __init__(self) -> None:
        self.app: FastAPI | None = None
        self.authority = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        if self.authority:
            scope[CERTIFICATE] = SHOWN
            kept = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
            scope["headers"] = [*kept, (b"authorization", f"Bearer {TOKEN}".encode())]
        await self.app(scope, receive, send)


VISITED = Visited()


@pytest.fixture(scope="module", autouse=True)
def tried(tmp_path_factory: pytest.TempPathFactory) -> None:
    home: Path = tmp_path_factory.mktemp("farm")
    here = Settings(home=home, root=home / "root", cpus=2.0, memory_bytes=2**30)
    records = open_records(here)
    records.put(Tenant(name="home", certificate=SHOWN, token_hash=hash_of(TOKEN), version="0.1.0", added=0.0))
    farm = Farm(
        settings=here,
        records=records,
        authority=Authority(home / "farm", 1e9),
        place=LOCAL,
        disk=FarmDisk(home),
        quota_bytes=2**20,
        one_user="it is tried",
    )
    VISITED.app = make_app(farm)
    yield
    farm.close()


schema = schemathesis.openapi.from_dict(make_app(Farm.__new__(Farm)).openapi())
schema.app = VISITED
schema.config.phases.update(phases=["fuzzing"])


@schema.parametrize()
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_nothing_that_a_tenant_says_is_a_server_error(case: schemathesis.Case) -> None:
    VISITED.authority = True
    answer = case.call()
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    assert answer.status_code != 401
    assert b"/docs" not in answer.content, "a farm has no such page"


@schema.parametrize()
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_stranger_is_let_in_nowhere(case: schemathesis.Case) -> None:
    VISITED.authority = False
    answer = case.call()
    if case.path in ("/v1/join", "/healthz"):
        assert answer.status_code < 500, answer.text
        assert "BEGIN CERTIFICATE" not in answer.text
    else:
        assert answer.status_code == 401, answer.text
