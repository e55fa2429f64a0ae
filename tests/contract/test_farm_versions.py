"""Home and a farm of other versions: the one before is used, anything else is refused clearly."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_farm_api import attempt, framed, hear, outcome, pod_order, tree_of
from tests.kit.farms import Listener, Visitor, farm, member, open_folder, visitor

from gridmill.codec import decode
from gridmill.domain.farm_protocol import (
    ChunkHashes,
    DeployRequest,
    FarmStatus,
    JoinRequest,
    PlaceTree,
    PodNames,
)
from gridmill.domain.pod_protocol import Hello, Message, Welcome
from gridmill.errors import InputError
from gridmill.farm.join import invite
from gridmill.farm.main import RunningFarm
from gridmill.farm.tenant import Invitation, invited
from gridmill.ports.site import PodReports
from gridmill.sites.farm.client import FarmClient
from gridmill.sites.farm.credentials import FarmCredentials
from gridmill.version import __version__

MAJOR, MINOR = map(int, __version__.split(".")[:2])
NEWER, FAR_NEWER = f"{MAJOR}.{MINOR + 1}.0", f"{MAJOR}.{MINOR + 2}.0"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningFarm]:
    with open_folder() as place, farm(place / "h") as one:
        yield one


@pytest.fixture(scope="module")
def home(running: RunningFarm, tmp_path_factory: pytest.TempPathFactory) -> Visitor:
    one = member(running, tmp_path_factory.mktemp("home"))
    one.headers = {"Gridmill-Version": NEWER}
    return one


def of_tomorrow(noun: Any) -> Any:
    """As the next version may say it: each noun in it has fields that nobody knows yet."""
    if is_dataclass(noun):
        known = {one.name: of_tomorrow(getattr(noun, one.name)) for one in fields(noun)}
        return known | {"of_tomorrow": {"list": [1], "text": "x"}}
    if isinstance(noun, Mapping):
        return {name: of_tomorrow(value) for name, value in noun.items()}
    if isinstance(noun, tuple | list):
        return [of_tomorrow(one) for one in noun]
    return noun


def said(noun: Any) -> bytes:
    return json.dumps(of_tomorrow(noun)).encode()


def passed(channel: int, message: Message) -> bytes:
    return json.dumps([channel, [type(message).__name__.lower(), of_tomorrow(message)]]).encode()


def test_a_tenant_that_is_newer_is_understood(home: Visitor) -> None:
    look = decode(home.ask("GET", "/v1/farm").body, FarmStatus)
    assert look.version == __version__
    manifest = tree_of({"a": b"one"})
    place = PlaceTree(uri="in/v", manifest=manifest, attempt_id="v1")
    lacking = home.ask("POST", "/v1/staging/place", said(place)).told["chunks"]
    assert home.ask("POST", "/v1/staging/chunks", framed(b"one")).status == 204
    assert (
        home.ask("POST", "/v1/staging/missing", said(ChunkHashes(chunks=tuple(lacking)))).told["chunks"] == []
    )
    assert home.ask("POST", "/v1/staging/place", said(place)).told["chunks"] == []

    listener = Listener(home)
    wanted = DeployRequest(orders=(pod_order("new-1.0"),), lease_seconds=600)
    assert home.ask("PUT", "/v1/deployments/new-1?of_tomorrow=1", said(wanted)).status == 204
    channel, _ = hear(listener, Hello)
    made = f"mkdir -p {look.root}/out/v1; cat {look.root}/in/v/a > {look.root}/out/v1/a"
    start = attempt("v1", made, look.root)
    lines = b"\n".join(passed(channel, one) for one in (Welcome(acknowledged=0), start))
    assert home.ask("POST", f"/v1/relay/{listener.name}", lines, Sequence="1").status == 204
    assert outcome(listener) == "succeeded"
    assert home.ask("POST", "/v1/staging/scan", said({"uri": "out/v1"})).told["files"][0]["size_bytes"] == 3
    pods = PodNames(pods=("new-1.0",))
    assert "new-1.0" in decode(home.ask("POST", "/v1/pods/observe", said(pods)).body, PodReports).reports
    assert home.ask("DELETE", "/v1/staging/attempts/v1?of_tomorrow=1").status == 204
    assert home.ask("POST", "/v1/pods/end", said(pods)).status == 204


@pytest.fixture
def dial(running: RunningFarm, home: Visitor) -> Iterator[Callable[[str], FarmClient]]:
    """As a Gridmill of some version at home does it."""
    opened: list[FarmClient] = []

    def dialled(version: str) -> FarmClient:
        fingerprint = running.farm.authority.fingerprint
        at = FarmCredentials(host="127.0.0.1", port=home.port, fingerprint=fingerprint, token=home.token)
        opened.append(FarmClient(at, home.folder / "crt", home.folder / "key", version))
        return opened[-1]

    yield dialled
    running.farm.version = __version__
    for one in opened:
        one.close()


def test_a_farm_one_version_older_is_used(dial: Callable[[str], FarmClient]) -> None:
    assert dial(NEWER).status().version == __version__


@pytest.mark.parametrize(
    ("ours", "theirs", "advice"),
    [
        (FAR_NEWER, __version__, f"Install {FAR_NEWER} at the farm"),
        (__version__, NEWER, f"Install {NEWER} at home"),
    ],
)
def test_any_other_farm_is_refused_with_what_to_do(
    dial: Callable[[str], FarmClient],
    running: RunningFarm,
    tmp_path: Path,
    ours: str,
    theirs: str,
    advice: str,
) -> None:
    running.farm.version = theirs
    far = dial(ours)
    stranger = visitor(running, tmp_path)
    secret = invite(running.farm.records, running.farm.now())
    wanted = JoinRequest(tenant="new", secret=secret, request=stranger.request("new"), version=ours)
    for ask in (far.status, far.open_relay, partial(far.join, wanted)):
        with pytest.raises(InputError) as told:
            ask()
        assert f"Gridmill {ours} at home" in told.value.message
        assert f"version {theirs}" in told.value.message
        assert advice in told.value.hint
    assert invited(running.farm.records.all(Invitation), secret, running.farm.now()) is not None
