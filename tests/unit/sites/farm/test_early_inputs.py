"""The inputs of the next attempt are transferred to a farm while another attempt runs. The farm is real; its
API is called over TLS."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.farms import farm, open_folder
from tests.unit.sites.farm.test_cluster_carrying import ended, order, outcome
from tests.unit.transfer.test_staging_chunks import contents
from tests.unit.transfer.test_staging_manifest import tree

from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.route import Staging
from gridmill.errors import ConflictError, InterruptedRunError, NotFoundError, UnavailableError
from gridmill.farm.files import TenantFiles
from gridmill.farm.join import invite
from gridmill.farm.main import RunningFarm, TickLoop
from gridmill.sites.farm import early_inputs
from gridmill.sites.farm.client import FarmClient, member
from gridmill.sites.farm.credentials import keeping
from gridmill.sites.farm.early_inputs import EarlyInputs
from gridmill.sites.farm.join import become_tenant
from gridmill.sites.farm.staging import HomeAttemptData
from gridmill.transfer.engine import USUAL
from gridmill.transfer.link_priority import LinkPriority
from gridmill.transfer.stream import Chunk

FILES = {f"f{at}": os.urandom(300_000) for at in range(10)}
NEXT = order(parts=("parts/a",))  # type: ignore[arg-type]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Home:
    """A home that has joined the farm. Its early transfers happen when a test calls `tick`."""

    def __init__(self, folder: Path, running: RunningFarm) -> None:
        self.folder, self.running = folder, running
        self.clock, self.link = Clock(), LinkPriority()
        self.client = member(keeping(folder, "far"))
        self.data = HomeAttemptData(
            self.client, folder / "root", folder / "bundles", folder / "clusters/far/carried"
        )
        self.data.early.close()
        self.data.early = self.early = self.inputs(self.client)

    def inputs(self, client: FarmClient) -> EarlyInputs:
        made = EarlyInputs(client, self.data.trees, self.link, lambda *_: client, USUAL, self.clock)
        made._thread = threading.current_thread()
        return made

    @property
    def files(self) -> TenantFiles:
        """The files of this home at the farm."""
        [sandbox] = self.running.farm.sandboxes.values()
        return sandbox.files

    @property
    def root_there(self) -> Path:
        return Path(self.client.status().root)

    def want(self, *orders: AttemptOrder) -> None:
        self.early.want(orders)

    def text(self) -> str:
        return self.early.progress()[NEXT.attempt_id]


@contextmanager
def opened(folder: Path, quota_bytes: int = 2**30) -> Iterator[Home]:
    with open_folder() as there, farm(there / "farm", quota_bytes=quota_bytes) as running:
        line = f"{running.farm.authority.fingerprint}:{invite(running.farm.records, running.farm.now())}"
        become_tenant(folder, "far", running.server.address.partition("//")[2], line)
        made = Home(folder, running)
        tree(folder / "root/parts/a", FILES)
        yield made
        made.client.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with opened(tmp_path) as made:
        yield made


def started(home: Home, wanted: AttemptOrder = NEXT) -> None:
    """The attempt starts: the order is sent to the farm."""
    home.data.note(wanted, "far-1.0")
    home.data.upload_inputs(wanted)


def test_an_attempt_starts_with_inputs_that_were_transferred_early(home: Home) -> None:
    home.want(NEXT)
    assert home.text() == "transferring inputs of job j: 0 %"
    home.early.tick()
    assert home.text() == "the inputs of job j are transferred"
    assert not (home.root_there / "parts").exists()
    started(home)
    assert contents(home.root_there / "parts/a") == FILES
    (home.root_there / "files/p/j/p-1.j.1").mkdir(parents=True)
    transfers = outcome(home.data.download_results(ended())).transfers
    assert transfers is not None
    assert (transfers.upload.transferred_bytes, transfers.early.transferred_bytes) == (0, 3_000_000)
    assert transfers.upload.reused_bytes == 0


def test_the_farm_keeps_nothing_for_an_attempt_that_has_started(home: Home) -> None:
    home.want(NEXT)
    home.early.tick()
    started(home)
    home.want()
    home.early.tick()
    assert not home.files.store.is_early(NEXT.attempt_id)
    home.client.delete_attempt(NEXT.attempt_id)
    assert home.files.store.evict(2**40) == 3_000_000


def test_inputs_of_a_stopped_job_are_released(home: Home) -> None:
    home.want(NEXT)
    home.early.tick()
    home.want()
    assert home.early.tick() == pytest.approx(10.0)  # the attempt may be about to start
    assert home.files.store.is_early(NEXT.attempt_id)
    home.clock.now = 11.0
    home.early.tick()
    assert not home.files.store.is_early(NEXT.attempt_id)
    assert home.files.store.evict(2**40) == 3_000_000
    assert home.early.progress() == {}


def test_the_farm_releases_inputs_that_the_home_does_not_renew(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.running.tick_loop.close()
    monkeypatch.setattr(early_inputs, "KEPT_SECONDS", 0.0)
    home.want(NEXT)
    home.early.tick()
    assert home.files.store.is_early(NEXT.attempt_id)
    TickLoop(home.running.farm, 3600.0).tick()
    assert not home.files.store.is_early(NEXT.attempt_id)


def test_the_home_renews_what_the_farm_keeps(home: Home) -> None:
    home.want(NEXT)
    assert home.early.tick() == pytest.approx(early_inputs.KEPT_SECONDS / 4)
    home.files.end_early(NEXT.attempt_id)
    home.clock.now += early_inputs.KEPT_SECONDS / 4
    home.early.tick()
    assert home.files.store.is_early(NEXT.attempt_id)


class Cut(FarmClient):
    """A client whose connection is cut after some batches: each further call fails."""

    left = 1

    def send(self, chunks: Sequence[Chunk], *arguments: object, **named: str) -> None:
        if not self.left:
            raise UnavailableError("cut")
        self.left -= 1
        super().send(chunks, *arguments, **named)  # type: ignore[arg-type]


def cut(home: Home) -> EarlyInputs:
    kept = keeping(home.folder, "far")
    return home.inputs(Cut(kept.read(), kept.certificate, kept.key))


def test_a_control_node_that_was_killed_in_mid_transfer_continues(home: Home) -> None:
    first = cut(home)
    first.want((NEXT,))
    first.tick()
    assert "transferring inputs of job j: 30 % (waits: cut)" in first.progress().values()
    home.want(NEXT)  # the next control node chooses the same attempt
    home.early.tick()
    assert home.early.started(NEXT.attempt_id).transferred_bytes < 3_000_000
    started(home)
    assert contents(home.root_there / "parts/a") == FILES


def test_an_attempt_starts_while_its_inputs_are_being_transferred(home: Home) -> None:
    home.early = home.data.early = cut(home)
    home.want(NEXT)
    home.early.tick()
    started(home)
    assert contents(home.root_there / "parts/a") == FILES
    (home.root_there / "files/p/j/p-1.j.1").mkdir(parents=True)
    transfers = outcome(home.data.download_results(ended())).transfers
    assert transfers is not None
    assert 0 < transfers.early.transferred_bytes < 3_000_000
    assert transfers.early.transferred_bytes + transfers.upload.transferred_bytes == 3_000_000


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Home]:
    with opened(tmp_path, quota_bytes=4_000_000) as made:
        yield made


def test_a_full_farm_delays_the_early_transfer_alone(full: Home) -> None:
    home = full
    tree(home.folder / "root/parts/b", {"big": os.urandom(3_500_000)})
    running = replace(NEXT, attempt_id="p-2.k.1", parts=("parts/b",), output_uri="files/p/k/p-2.k.1")
    home.want(NEXT)
    home.early.tick()
    started(home, running)  # the next attempt gives way, although its inputs came first
    assert not home.files.store.is_early(NEXT.attempt_id)
    home.clock.now += early_inputs.KEPT_SECONDS / 4
    assert home.early.tick() == pytest.approx(2.0)
    assert "waits: 2.9 MiB of inputs of the next jobs do not fit" in home.text()
    assert contents(home.root_there / "parts/b")["big"]
    home.client.delete_attempt(running.attempt_id)
    home.clock.now += 2.0
    home.early.tick()
    assert home.text() == "the inputs of job j are transferred"


def test_the_farm_refuses_chunks_that_had_to_give_way(home: Home) -> None:
    with pytest.raises(UnavailableError, match="gave way to other data"):
        home.client.send([Chunk(hash="0" * 64, data=b"x")], early="p-1.j.1")


def test_a_transfer_of_a_running_attempt_goes_first(home: Home) -> None:
    over = threading.Event()
    with home.link.first():
        home.want(NEXT)
        thread = threading.Thread(target=lambda: (home.early.tick(), over.set()))
        thread.start()
        assert not over.wait(0.5)
        assert home.text() == "transferring inputs of job j: 0 %"
    assert over.wait(60.0)
    thread.join()
    assert home.text() == "the inputs of job j are transferred"


def test_a_waiting_transfer_ends_when_its_job_is_stopped() -> None:
    link, stop = LinkPriority(), threading.Event()
    with link.first():
        stop.set()
        with pytest.raises(InterruptedRunError):
            link.wait(stop)


def fails(error: Exception) -> Callable[..., tuple[str, ...]]:
    def fail(*_: object) -> tuple[str, ...]:
        raise error

    return fail


@pytest.mark.parametrize("error", [NotFoundError("no such path"), ConflictError("the file changed")])
def test_a_farm_that_is_too_old_or_a_changed_file_ends_the_early_transfer(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(home.client, "place_early", fails(error))
    home.want(NEXT)
    home.early.tick()
    assert home.early.progress() == {}
    started(home)
    assert contents(home.root_there / "parts/a") == FILES


def test_inputs_travel_by_the_way_of_the_resource(home: Home) -> None:
    sent: list[str] = []

    class Bucket:
        missing = home.client.missing

        def send(self, chunks: Sequence[Chunk]) -> None:
            sent.extend(chunk.hash for chunk in chunks)
            home.client.send(chunks)

    early = EarlyInputs(home.client, home.data.trees, home.link, lambda *_: Bucket(), USUAL, home.clock)
    early._thread = threading.current_thread()
    early.want((replace(NEXT, staging=Staging.EXPORT),))
    early.tick()
    assert len(sent) == 10
    early.close()
