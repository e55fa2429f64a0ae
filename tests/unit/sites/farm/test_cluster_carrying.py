"""What an attempt at a farm made comes home once, whatever is cut or killed on the way."""

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.codec import encode, from_builtins, to_builtins
from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.farm_protocol import FarmStatus, FileEntry, Manifest, PlaceTree
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import (
    AttemptOrder,
    AttemptOutcome,
    Events,
    EventType,
    PodEvent,
    ServiceUpdate,
)
from gridmill.domain.route import Staging
from gridmill.domain.service_features import SentFile, SentView, ViewMode, ViewOrder, ViewOrders
from gridmill.domain.serving import ServedStage, ServedVersion, ServiceOrder
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import (
    DataError,
    InputError,
    InterruptedRunError,
    NotFoundError,
    StorageError,
    UnavailableError,
    UnsafePathError,
)
from gridmill.sites.attempt_inputs import changed_shares
from gridmill.sites.farm.errors import FarmStorageError
from gridmill.sites.farm.pod_leases import PodLeases
from gridmill.sites.farm.site import FarmSite, _rate_texts
from gridmill.sites.farm.staging import HomeAttemptData
from gridmill.sites.processes import _is_locked, _pid
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.engine import ScannedTree
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.progress import TransferState
from gridmill.transfer.stream import Chunk

URI = "files/p/j/p-1.j.1"


class Elsewhere:
    """A farm whose storage root is a folder here. `fails`: what the next questions are answered with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fails: list[Exception] = []
        self.forgotten: list[str] = []
        self.placed: dict[str, PlaceTree] = {}
        self.fetched = 0
        self.gave: list[str] = []
        self.forgetful = False  # it was started anew, and must look at the folder again
        self.round_trip_seconds = 0.001

    def scan(self, uri: str) -> Manifest:
        if self.fails:
            raise self.fails.pop(0)
        self.tree = self.root / uri
        return scan(self.tree)

    def fetch(self, chunks):
        if self.forgetful:
            self.forgetful = False
            raise NotFoundError("is not here")
        self.fetched += 1
        self.gave += chunks
        return ScannedTree(self.tree, scan(self.tree)).fetch(chunks)

    def status(self) -> FarmStatus:
        return FarmStatus(version="", protocol=1, root=str(self.root), nodes=())

    def place(self, place: PlaceTree) -> tuple[str, ...]:
        self.placed[place.uri] = place
        return ()

    def delete_attempt(self, attempt_id: str, *, keep: bool = False) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.forgotten.append(attempt_id)


@pytest.fixture
def farm(tmp_path: Path) -> Elsewhere:
    made = tmp_path / "there" / URI
    made.mkdir(parents=True)
    (made / "file").write_text("what it made")
    return Elsewhere(tmp_path / "there")


def home(tmp_path: Path, farm: Elsewhere, **more: float) -> HomeAttemptData:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    folders = root, tmp_path / "bundles", tmp_path / "far" / "carried"
    return HomeAttemptData(farm, *folders, **more)  # type: ignore[arg-type]


def order(**more: str) -> AttemptOrder:
    job = Job(name="j", command=CommandSpec(run="true"))
    given = Amounts(cpus=1, memory_bytes=2**27)
    return AttemptOrder(
        attempt_id="p-1.j.1",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=job,
        given=given,
        root="",
        output_uri=URI,
        **more,
    )


def ended(state: AttemptState = AttemptState.SUCCEEDED, token: str = "t") -> Events:
    outcome = AttemptOutcome(state=state, outputs=(Output(kind=ArtifactKind.FILES, uri=URI),))
    body = {"outcome": to_builtins(outcome)}
    event = PodEvent(number=3, attempt_id="p-1.j.1", token=token, time=1.0, type=EventType.ENDED, body=body)
    return Events(events=(event,))


def outcome(events: Events) -> AttemptOutcome:
    return from_builtins(events.events[0].body["outcome"], AttemptOutcome)


def test_what_it_made_comes_home_once(tmp_path: Path, farm: Elsewhere) -> None:
    carrying = home(tmp_path, farm)
    carrying.note(order())
    came = outcome(carrying.download_results(ended()))
    assert replace(came, transfers=None) == outcome(ended())
    assert came.transfers is not None
    assert came.transfers.download.transferred_bytes == len("what it made")
    assert came.transfers.round_trip_seconds == farm.round_trip_seconds
    assert (tmp_path / "root" / URI / "file").read_text() == "what it made"
    assert farm.forgotten == []  # nobody waits for that
    carrying.cleanup.tick()
    assert farm.forgotten == ["p-1.j.1"]
    farm.fails = [NotFoundError("is not here")] * 2  # it was forgotten there
    again = home(tmp_path, farm)  # the control node was killed before it had noted the end
    assert outcome(again.download_results(ended())).state == AttemptState.SUCCEEDED
    assert farm.fetched == 1


def test_a_farm_that_does_not_answer_is_asked_again(tmp_path: Path, farm: Elsewhere) -> None:
    carrying = home(tmp_path, farm)
    carrying.note(order())
    farm.fails = [UnavailableError("cut")]
    with pytest.raises(UnavailableError):
        carrying.download_results(ended())
    assert outcome(carrying.download_results(ended())).state == AttemptState.SUCCEEDED


def test_why_nothing_comes_home_is_told_until_it_comes(tmp_path: Path, farm: Elsewhere) -> None:
    near = home(tmp_path, farm)
    near.note(order())
    farm.fails = [StorageError("cannot be kept: No space left on device", place="/data")]
    with pytest.raises(StorageError):
        near.download_results(ended())
    assert near.held_up() == {
        "p-1.j.1": "the transfer of data of p-1.j.1 waits: /data: cannot be kept: No space left on device"
    }
    near.download_results(ended())
    assert near.held_up() == {}


def test_what_is_interrupted_by_the_end_of_home_comes_another_time(tmp_path: Path, farm: Elsewhere) -> None:
    near = home(tmp_path, farm)
    near.note(order())
    near.close()
    with pytest.raises(UnavailableError):
        near.download_results(ended())
    assert outcome(home(tmp_path, farm).download_results(ended())).state == AttemptState.SUCCEEDED


class Dying(Elsewhere):
    """One whose pod goes while data comes."""

    def place(self, place: PlaceTree) -> tuple[str, ...]:
        return tuple(chunk for file in place.manifest.files for chunk in file.chunks)

    def missing(self, chunks):
        self.near.leave("far-1.0")
        raise UnavailableError("it goes")


def test_nothing_is_carried_to_a_pod_that_is_gone(tmp_path: Path) -> None:
    there = Dying(tmp_path / "there")
    there.near = home(tmp_path, there)
    (tmp_path / "root" / "kept").mkdir()
    (tmp_path / "root" / "kept" / "step").write_text("so far")
    there.near.note(order(checkpoint_uri="kept"), "far-1.0")
    with pytest.raises(InterruptedRunError):
        there.near.upload_inputs(order(checkpoint_uri="kept"))


def test_that_the_farm_does_not_forget_costs_nothing(tmp_path: Path, farm: Elsewhere) -> None:
    carrying = home(tmp_path, farm)
    carrying.note(order())
    forget = farm.delete_attempt
    farm.delete_attempt = lambda _, keep: (_ for _ in ()).throw(UnavailableError("slow"))  # type: ignore[method-assign]
    assert outcome(carrying.download_results(ended())).state == AttemptState.SUCCEEDED
    carrying.cleanup.tick()
    farm.delete_attempt = forget  # type: ignore[method-assign]
    again = home(tmp_path, farm)
    again.cleanup.tick()
    again.cleanup.tick()
    assert farm.forgotten == ["p-1.j.1"]


def test_what_is_read_there_next_is_kept_there_before(tmp_path: Path, farm: Elsewhere) -> None:
    near = home(tmp_path, farm)
    near.note(order())
    near.download_results(ended())
    (tmp_path / "root/parts/a").mkdir(parents=True)
    near.upload_inputs(replace(order(parts=("parts/a",)), attempt_id="p-1.k.1"))  # type: ignore[arg-type]
    assert farm.forgotten == []
    near.upload_inputs(replace(order(parts=(URI,)), attempt_id="p-1.k.1"))  # type: ignore[arg-type]
    assert farm.forgotten == ["p-1.j.1"]


def test_forgetting_is_done_beside(tmp_path: Path, farm: Elsewhere) -> None:
    near, there, go, over = home(tmp_path, farm), threading.Event(), threading.Event(), threading.Event()

    def forget(attempt_id: str, *, keep: bool) -> None:
        there.set()
        assert go.wait(120.0)
        over.set()

    farm.delete_attempt = forget  # type: ignore[method-assign]
    near.cleanup.start()
    near.note(order())
    assert outcome(near.download_results(ended())).state == AttemptState.SUCCEEDED
    assert there.wait(120.0)
    assert not over.is_set()
    go.set()
    assert over.wait(120.0)
    near.close()


def test_a_disk_there_that_fails_is_waited_for_but_not_for_ever(tmp_path: Path, farm: Elsewhere) -> None:
    near = home(tmp_path, farm)
    near.note(order(checkpoint_uri="checkpoints/p/j"))
    farm.fails = [FarmStorageError("at the farm x: cannot be read: Input/output error")]
    with pytest.raises(FarmStorageError):
        near.download_results(ended())
    impatient = home(tmp_path, farm, trouble_seconds=0.0)
    for end in (ended(), ended(AttemptState.FAILED)):
        impatient.note(order(checkpoint_uri="checkpoints/p/j"))
        farm.fails = [FarmStorageError("at the farm x: cannot be read: Input/output error")]
        assert outcome(impatient.download_results(end)).state == AttemptState.FAILED
        assert farm.fails == []


REFUSED = TransferRefusedError(
    "access is refused: RequestTimeTooSkewed", hint="Set the clock.", place="s3://b"
)


def test_a_bucket_that_refuses_is_waited_for_until_a_key_or_a_clock_is_set(
    tmp_path: Path, farm: Elsewhere
) -> None:
    near = home(tmp_path, farm)
    for state in (AttemptState.SUCCEEDED, AttemptState.FAILED):
        near.note(order(checkpoint_uri="checkpoints/p/j"))
        farm.fails = [REFUSED]
        with pytest.raises(UnavailableError, match="s3://b: access is refused"):
            near.download_results(ended(state))
        assert "TimeTooSkewed. Set the clock." in near.held_up()["p-1.j.1"]
        assert outcome(near.download_results(ended(state))).state == state
        assert near.held_up() == {}
        near.cleanup.tick()
        assert farm.forgotten.pop() == "p-1.j.1"


def test_what_a_bucket_refuses_for_too_long_is_left_at_the_farm(tmp_path: Path, farm: Elsewhere) -> None:
    near = home(tmp_path, farm, refused_seconds=0.0)
    for end in (ended(), ended(AttemptState.FAILED)):
        near.note(order(checkpoint_uri="checkpoints/p/j"))
        farm.fails = [REFUSED]
        assert outcome(near.download_results(end)).state == AttemptState.FAILED
        for again in (near, home(tmp_path, farm)):
            assert outcome(again.download_results(end)).state == AttemptState.FAILED
            again.cleanup.tick()
    assert farm.forgotten == []


def test_a_note_that_is_damaged_loses_its_attempt_alone(tmp_path: Path, farm: Elsewhere) -> None:
    home(tmp_path, farm).note(order())
    (tmp_path / "far/carried/attempts/p-1.j.1.json").write_bytes(b"")
    near = home(tmp_path, farm)
    assert outcome(near.download_results(ended())).state == AttemptState.LOST
    near.note(order())
    assert outcome(near.download_results(ended())).state == AttemptState.SUCCEEDED


def test_what_is_gone_there_is_lost_and_what_cannot_be_carried_fails(tmp_path: Path, farm: Elsewhere) -> None:
    for error, state, cause in (
        (NotFoundError("is not here"), AttemptState.LOST, Cause.LOST),
        (UnsafePathError("a link"), AttemptState.FAILED, Cause.STORAGE),
    ):
        carrying = home(tmp_path, farm)
        carrying.note(order())
        farm.fails = [error]
        told = outcome(carrying.download_results(ended()))
        assert (told.state, told.cause) == (state, cause)
        assert str(error) in told.message
        again = home(tmp_path, farm)  # the control node was killed before it had noted the end
        assert outcome(again.download_results(ended())) == told


@pytest.mark.parametrize(
    ("why", "cause"), [(InputError("no such thing"), Cause.INPUT), (StorageError("full"), Cause.STORAGE)]
)
def test_a_refusal_is_told_also_after_a_restart(
    tmp_path: Path, farm: Elsewhere, why: Exception, cause: Cause
) -> None:
    carrying = home(tmp_path, farm)
    carrying.note(order())
    carrying.refuse("p-1.j.1", why)  # type: ignore[arg-type]
    told = home(tmp_path, farm).download_results(ended(AttemptState.STOPPED, token=""))
    assert told.events[0].token == "t"
    assert (outcome(told).state, outcome(told).cause) == (AttemptState.FAILED, cause)
    assert outcome(told).message == str(why)


def test_one_that_was_stopped_before_it_began_ends_with_its_token(tmp_path: Path, farm: Elsewhere) -> None:
    carrying = home(tmp_path, farm)
    carrying.note(order())
    told = carrying.download_results(ended(AttemptState.STOPPED, token=""))
    assert told.events[0].token == "t"
    assert outcome(told).state == AttemptState.STOPPED
    assert farm.fetched == 0


def test_a_farm_that_was_started_anew_is_told_what_to_give(tmp_path: Path, farm: Elsewhere) -> None:
    carrying = home(tmp_path, farm)
    carrying.note(order())
    farm.forgetful = True
    assert outcome(carrying.download_results(ended())).state == AttemptState.SUCCEEDED
    assert (tmp_path / "root" / URI / "file").read_text() == "what it made"


def test_what_the_version_before_holds_is_not_carried_again(tmp_path: Path, farm: Elsewhere) -> None:
    same = b"unchanged" * 2**17
    before = tmp_path / "root/files/p/j/before"
    before.mkdir(parents=True)
    (before / "one").write_bytes(same)
    (farm.root / URI / "other-name").write_bytes(same)
    output = Output(kind=ArtifactKind.FILES, uri="files/p/j/before")
    version = Artifact(id="p/j@1", name="p/j", number=1, output=output, fingerprint="f")
    carrying = home(tmp_path, farm)
    carrying.note(replace(order(), earlier=(Input(name="j", artifact=version),)))
    told = outcome(carrying.download_results(ended()))
    assert (tmp_path / "root" / URI / "other-name").read_bytes() == same
    assert farm.gave == list(scan(farm.root / URI / "file").files[0].chunks)
    assert told.transfers is not None
    assert told.transfers.download.reused_bytes == len(same)


def test_a_stop_reaches_also_what_an_earlier_session_began(tmp_path: Path, farm: Elsewhere) -> None:
    inside, go = threading.Event(), threading.Event()

    def missing(_: object) -> tuple[str, ...]:
        inside.set()
        go.wait(120.0)
        raise UnavailableError("cut")

    farm.missing = missing  # type: ignore[attr-defined]
    farm.place = lambda _: ("lacking",)  # type: ignore[method-assign]
    bundle = tmp_path / "bundles/b.tar.gz"
    bundle.parent.mkdir()
    bundle.write_text("code")
    near, wanted = home(tmp_path, farm), order(bundle="b", bundle_path=str(bundle))
    near.note(wanted)
    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(near.upload_inputs, wanted)
        assert inside.wait(120.0)
        near.note(wanted)
        near.abandon("p-1.j.1")
        go.set()
        with pytest.raises(InterruptedRunError):
            earlier.result(120.0)


def test_what_has_ended_takes_no_room_there(tmp_path: Path, farm: Elsewhere) -> None:
    near = home(tmp_path, farm)
    near.note(order())
    near.download_results(ended())
    with pytest.raises(InterruptedRunError):
        near.upload_inputs(order())


def test_checkpoints_of_what_failed_come_home(tmp_path: Path, farm: Elsewhere) -> None:
    there = farm.root / "checkpoints/p/j.p-1.j.1"
    there.mkdir(parents=True)
    (there / "epoch").write_text("3")
    carrying = home(tmp_path, farm)
    carrying.note(order(checkpoint_uri="checkpoints/p/j"))
    carrying.download_results(ended(AttemptState.FAILED))
    assert (tmp_path / "root/checkpoints/p/j/epoch").read_text() == "3"


def test_what_jobs_put_into_a_pods_folder_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("lock", "pid"):
        os.mkfifo(tmp_path / name)
    assert _pid(tmp_path) is None
    assert _is_locked(tmp_path) in (True, False)


def test_it_is_seen_which_way_data_goes(tmp_path: Path, farm: Elsewhere) -> None:
    seen: list[str] = []

    class Looking:
        def endpoint(self, staging: Staging, sizes: object) -> None:
            way, _ = carrying.progress("p-1.j.1") or ("", None)
            seen.append(way)
            raise InputError(f"no {staging}")

    farm.place = lambda place: ("x",)  # type: ignore[attr-defined]
    carrying = home(tmp_path, farm)
    carrying._bucket_endpoints = Looking()  # type: ignore[assignment]
    (tmp_path / "root/parts").mkdir()
    for staging in (Staging.DIRECT, Staging.EXPORT):
        wanted = replace(order(), parts=("parts",), staging=staging)
        carrying.note(wanted)
        with pytest.raises(InputError, match=staging):
            carrying.upload_inputs(wanted)
    assert seen == ["to", "through a bucket to"]


def test_a_farm_that_does_not_hear_is_asked_to_forget_once(tmp_path: Path, farm: Elsewhere) -> None:
    near = home(tmp_path, farm)
    for attempt_id in ("p-1.j.1", "p-1.j.2"):
        near.note(replace(order(), attempt_id=attempt_id))
        (event,) = ended().events
        near.download_results(Events(events=(replace(event, attempt_id=attempt_id),)))
    farm.fails = [UnavailableError("it hangs")]
    near.cleanup.first({URI})
    assert (farm.fails, farm.forgotten) == ([], [])
    near.cleanup.first({URI})
    assert farm.forgotten == ["p-1.j.1", "p-1.j.2"]


def test_what_lacks_at_a_farm_is_told_before_it_has_forgotten(tmp_path: Path, farm: Elsewhere) -> None:
    near = home(tmp_path, farm)
    near.note(order())
    near.download_results(ended())
    farm.missing = lambda chunks, *, seconds: tuple(chunks)  # type: ignore[attr-defined]
    made = Output(kind=ArtifactKind.FILES, uri=URI, size_bytes=12)
    version = Artifact(id="v", name="p/j", number=1, fingerprint="", output=made)
    site = FarmSite("far", farm, None, near, "", PodLeases(tmp_path / "leases.json", 10.0))  # type: ignore[arg-type]
    assert site.missing_sizes([version]) == {"v": 12}
    assert farm.forgotten == []


class SlowFarm(Elsewhere):
    """It keeps chunks, and counts those that were sent to it; the first batch waits for `go`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.kept: dict[str, int] = {}
        self.sent: list[str] = []
        self.sending, self.go = threading.Event(), threading.Event()
        self.asked = threading.Semaphore(0)

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        return tuple(chunk for chunk in chunks if chunk not in self.kept)

    def send(self, chunks: Sequence[Chunk]) -> None:
        self.sending.set()
        self.go.wait()
        if self.fails:
            raise self.fails.pop(0)
        for chunk in chunks:
            self.sent.append(chunk.hash)
            self.kept[chunk.hash] = len(chunk.data)

    def place(self, place: PlaceTree) -> tuple[str, ...]:
        self.asked.release()
        return self.missing(chunk for entry in place.manifest.files for chunk in entry.chunks)


def reads_parts(tmp_path: Path, attempt_id: str, files: int) -> AttemptOrder:
    parts = tmp_path / "root/parts"
    for number in range(files):
        (parts / f"{number:03}").mkdir(parents=True, exist_ok=True)
        (parts / f"{number:03}" / "rows").write_text(f"row {number}")
    return replace(order(), attempt_id=attempt_id, parts=("parts",), staging=Staging.DIRECT)


@pytest.mark.parametrize("first_fails", [False, True])
def test_what_several_attempts_need_travels_once(tmp_path: Path, *, first_fails: bool) -> None:
    """The second waits for the first, and sends what the first did not bring."""
    there = SlowFarm(tmp_path / "there")
    near = home(tmp_path, there)
    orders = [reads_parts(tmp_path, f"p-1.j.{number}", files=20) for number in (1, 2, 3)]
    for one in orders:
        near.note(one)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(near.upload_inputs, orders[0])
        assert there.sending.wait(10)
        rest = [threads.submit(near.upload_inputs, one) for one in orders[1:]]
        for _ in orders:  # each has heard what lacks
            assert there.asked.acquire(timeout=10)
        if first_fails:
            near.abandon("p-1.j.1")
        there.go.set()
        for future in rest:
            future.result(timeout=10)
        if first_fails:
            with pytest.raises(InterruptedRunError):
                first.result(timeout=10)
        else:
            first.result(timeout=10)
    assert len(there.kept) == 20
    assert sorted(there.sent) == sorted(there.kept)
    notes = [near._noted.find(one.attempt_id) for one in orders]
    sent_bytes = [note.upload.transferred_bytes for note in notes if note is not None]
    assert sum(sent_bytes) == sum(there.kept.values())
    if not first_fails:
        assert [note.upload.reused_bytes for note in notes[1:] if note] == [sum(there.kept.values())] * 2


def test_a_transfer_that_waits_for_another_can_be_stopped(tmp_path: Path) -> None:
    there = SlowFarm(tmp_path / "there")
    near = home(tmp_path, there)
    orders = [reads_parts(tmp_path, f"p-1.j.{number}", files=3) for number in (1, 2)]
    for one in orders:
        near.note(one)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(near.upload_inputs, orders[0])
        assert there.sending.wait(10)
        second = threads.submit(near.upload_inputs, orders[1])
        for _ in orders:
            assert there.asked.acquire(timeout=10)
        near.abandon("p-1.j.2")
        with pytest.raises(InterruptedRunError, match="stopped"):
            second.result(timeout=10)
        there.go.set()
        first.result(timeout=10)


def test_a_bucket_that_refuses_is_waited_for_on_the_way_there_too(tmp_path: Path, farm: Elsewhere) -> None:
    refusals = [REFUSED]

    def place(wanted: PlaceTree) -> tuple[str, ...]:
        if refusals:
            raise refusals.pop()
        return ()

    farm.place = place  # type: ignore[method-assign]
    near = home(tmp_path, farm)
    wanted = reads_parts(tmp_path, "p-1.j.1", 2)
    near.note(wanted)
    with pytest.raises(UnavailableError, match="s3://b: access is refused"):
        near.upload_inputs(wanted)
    assert "TimeTooSkewed. Set the clock." in near.held_up()["p-1.j.1"]
    near.upload_inputs(wanted)
    assert near.held_up() == {}
    refusals.append(REFUSED)
    impatient = home(tmp_path, farm, refused_seconds=0.0)
    impatient.note(wanted)
    with pytest.raises(DataError, match="access is refused"):
        impatient.upload_inputs(wanted)


def test_a_transfer_that_is_tried_again_or_not_confirmed_says_so() -> None:
    sent = TransferState(total_bytes=10, present_bytes=0, transferred_bytes=10, bytes_per_second=0.0)
    assert list(_rate_texts(sent)) == []
    assert list(_rate_texts(replace(sent, still_seconds=20.0))) == [
        "all data is sent; the farm has not confirmed it for 20.0 s"
    ]
    hindered = replace(sent, transferred_bytes=5, trouble="the bucket is too slow")
    assert list(_rate_texts(hindered)) == ["retried because the bucket is too slow"]


def test_what_is_new_in_a_version_is_told_by_its_chunks() -> None:
    def version(number: int) -> Artifact:
        return Artifact(
            id=f"p/a@{number}",
            name="p/a",
            number=number,
            output=Output(kind=ArtifactKind.FILES, uri="x"),
            fingerprint="",
        )

    def manifest_of(one: Artifact) -> Manifest | None:
        if one.number == 9:
            return None
        chunks = tuple(f"{part:064x}" for part in (*range(9), 100 + one.number))
        return Manifest(files=(FileEntry(path="f", size_bytes=100, chunks=chunks),), chunk_bytes=10)

    assert changed_shares([(version(2), version(1))], manifest_of) == {"p/a@2": 0.1}
    assert changed_shares([(version(2), version(2))], manifest_of) == {"p/a@2": 0.0}
    assert changed_shares([(version(2), version(9))], manifest_of) == {}


def test_why_the_update_of_a_service_does_not_arrive_is_shown_until_an_update_arrives(
    tmp_path: Path, farm: Elsewhere
) -> None:
    near = home(tmp_path, farm)
    near.note(order())

    def update(folder: Path) -> ServiceUpdate:
        folder.mkdir(parents=True, exist_ok=True)
        version = ServedVersion(label="w/m@2", folder=str(folder))
        return ServiceUpdate(attempt_id="p-1.j.1", order=ServiceOrder(name="rain", versions=(version,)))

    with pytest.raises(InputError, match="is not in the storage root"):
        near.upload_service(update(tmp_path / "other"))
    assert "the update was not transferred to the site: w/m@2 is not in" in near.held_up()["p-1.j.1"]
    near.upload_service(update(tmp_path / "root/models/2"))
    assert near.held_up() == {}


def test_the_files_of_a_view_are_sent_as_one_folder_that_newer_files_replace(
    tmp_path: Path, farm: Elsewhere
) -> None:
    near = home(tmp_path, farm)
    near.note(order())
    features = tmp_path / "root/services/rain/features"
    view, stage = features / "view-1", tmp_path / "root/models/1"
    for folder in (
        features / "definition-1",
        features / "definition-2",
        view,
        stage,
        tmp_path / "root/models/2",
    ):
        folder.mkdir(parents=True)
    of_stage = ServedVersion(label="w/s@1", folder=str(stage), features=str(features / "definition-2"))
    version = ServedVersion(
        label="w/m@2",
        folder=str(tmp_path / "root/models/2"),
        features=str(features / "definition-1"),
        view=str(view),
        stages=(ServedStage(version=of_stage, columns={"s": "prediction"}),),
    )
    wanted = ViewOrder(definition=version.features, folder=str(view), root=str(tmp_path / "root"), tables={})
    update = ServiceUpdate(
        attempt_id="p-1.j.1",
        order=ServiceOrder(name="rain", versions=(version,)),
        views=ViewOrders(views=(wanted,), checked_at=1.0),
    )

    def received() -> ViewOrder:
        views = near.upload_service(update).views
        assert views is not None
        assert views.sent_at is not None
        return views.views[0]

    # the home has no complete view yet
    assert received().received is None
    for series in ("a", "b"):
        files = view / "sent" / series
        files.mkdir(parents=True)
        sent = SentView(series=series, snapshot=SentFile(name="snapshot.sqlite", size_bytes=1, sha256=""))
        (files / "snapshot.sqlite").write_text(series)
        (files / "not-described").touch()
        (view / "sent.json").write_bytes(encode(sent))
        there = received()
        assert (there.mode, there.received) == (ViewMode.RECEIVED, sent)
        placed = farm.placed[there.files.removeprefix(f"{farm.root}/")]
        assert [one.path for one in placed.manifest.files] == ["snapshot.sqlite"]
        assert placed.manifest.files[0].chunks == scan(files / "snapshot.sqlite").files[0].chunks
    changed = near.upload_service(update).order.versions[0]
    folders = ("models/1", "models/2", *(f"services/rain/features/definition-{n}" for n in (1, 2)))
    assert farm.placed.keys() > set(folders)
    assert changed.view == there.folder
    assert tmp_path / "root" not in Path(changed.stages[0].version.features).parents

    # a series that was just replaced by a newer one
    (view / "sent/b/snapshot.sqlite").unlink()
    with pytest.raises(UnavailableError, match="cannot be read"):
        near.upload_service(update)
