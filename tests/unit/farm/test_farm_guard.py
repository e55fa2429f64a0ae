"""What stands before a farm's routes: no tenant takes what others need."""

import asyncio
import time
from collections import Counter
from pathlib import Path

from anyio.to_thread import current_default_thread_limiter
from starlette.types import Message, Receive, Scope, Send

from gridmill.domain.site import Site, SiteKind
from gridmill.farm.auth import LANE, TenantMiddleware
from gridmill.farm.certificates import Authority
from gridmill.farm.disk import FarmDisk
from gridmill.farm.state import Farm
from gridmill.farm.store import RecordStore
from gridmill.farm.tenant import Tenant, hash_of
from gridmill.http.connections import CERTIFICATE
from gridmill.settings import Settings


def scope(tenant: str, path: str) -> Scope:
    headers = [(b"authorization", f"Bearer {tenant}".encode())]
    return {"type": "http", "method": "GET", "path": path, "headers": headers, CERTIFICATE: tenant}


async def silent() -> Message:
    return {"type": "http.disconnect"}


async def unheard(message: Message) -> None:
    del message


async def among(farm: Farm) -> None:
    gate, inside, answered = asyncio.Event(), Counter[str](), Counter[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        inside[scope["gridmill.tenant"].name] += 1
        if scope["path"] == "/v1/staging/take":
            await gate.wait()
        answered[scope["gridmill.tenant"].name] += 1

    threads = current_default_thread_limiter().total_tokens
    guard = TenantMiddleware(app, farm=farm)
    asked = [guard(scope("a", "/v1/staging/take"), silent, unheard) for _ in range(3 * LANE)]
    async with asyncio.TaskGroup() as group:
        for one in asked:
            group.create_task(one)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert inside["a"] == LANE
        await guard(scope("b", "/v1/staging/missing"), silent, unheard)
        await guard(scope("a", "/v1/farm"), silent, unheard)
        assert answered == {"a": 1, "b": 1}
        assert current_default_thread_limiter().total_tokens == threads + 3 * LANE
        gate.set()
    assert answered["a"] == 3 * LANE + 1


def test_what_one_tenant_has_carried_holds_up_nothing_else(tmp_path: Path) -> None:
    records = RecordStore(tmp_path / "records.db")
    for name in "ab":
        records.put(Tenant(name=name, certificate=name, token_hash=hash_of(name), version="0.1.0", added=0))
    farm = Farm(
        settings=Settings(home=tmp_path, root=tmp_path),
        records=records,
        authority=Authority(tmp_path, time.time()),
        place=Site(name="farm", kind=SiteKind.LOCAL),
        disk=FarmDisk(tmp_path),
    )
    asyncio.run(among(farm))
    farm.close()
