"""What a farm refuses of what its tenant says does not hold up the rest."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from gridmill.codec import decode_passed, encode_passed
from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import (
    Ack,
    AttemptOrder,
    Events,
    EventType,
    FromPod,
    PodEvent,
    ServiceUpdate,
    Start,
    Stop,
)
from gridmill.domain.service_features import ViewOrders
from gridmill.domain.serving import ServiceOrder
from gridmill.errors import GridmillError, InputError, StorageError, UnavailableError
from gridmill.sites.farm.relay import _RelaySession, _RemotePod


class Older:
    """A farm that does not know some of what is said. `place`: of what it says then."""

    def __init__(self) -> None:
        self.said: list[tuple[int, bytes]] = []
        self.place = ""

    def open_relay(self) -> str:
        return "s"

    def send_lines(self, session: str, number: int, lines: Sequence[bytes]) -> None:
        if any(b"of-tomorrow" in line for line in lines):
            raise InputError("not a Start", place=self.place)
        self.said += [(number, line) for line in lines]


class Refusals:
    """`first` begins once something has come home, as it waits for the room."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.confirmed: list[str] = []
        self.room, self.asked = threading.Event(), 0

    def note(self, order: AttemptOrder, pod_id: str) -> None:
        return None

    def upload_inputs(self, order: AttemptOrder) -> AttemptOrder:
        self.asked += 1
        if order.attempt_id == "first" and not self.room.is_set():
            raise UnavailableError("it waits for room")
        return order

    def upload_service(self, update: ServiceUpdate) -> ServiceUpdate:
        if update.order.generation == 1:
            raise StorageError("the disk of the farm is full")
        return update

    def download_results(self, events: Events) -> Events:
        self.room.set()
        return events

    def confirm(self, attempt_id: str) -> None:
        self.confirmed.append(attempt_id)

    def abandon(self, attempt_id: str) -> None:
        return None

    def refuse(self, attempt_id: str, why: GridmillError) -> None:
        self.refused[attempt_id] = why.message


def start(name: str) -> bytes:
    order = AttemptOrder(
        attempt_id=name,
        token="t",
        run_id="r",
        pipeline="p",
        job=Job(name="j", command=CommandSpec(run="true")),
        given=Amounts(cpus=1, memory_bytes=1),
        root="",
        output_uri="",
    )
    return encode_passed(1, Start(order=order))


@pytest.fixture
def farm() -> Older:
    return Older()


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
def session(farm: Older, refusals: Refusals) -> Iterator[_RelaySession]:
    with ThreadPoolExecutor(1) as there, ThreadPoolExecutor(1) as back:
        yield _RelaySession(farm, None, refusals, there, back, threading.Event())  # type: ignore[arg-type]


def test_an_attempt_that_a_farm_does_not_understand_ends_and_others_begin(
    farm: Older, refusals: Refusals, session: _RelaySession
) -> None:
    lines = [start("a"), start("of-tomorrow"), encode_passed(2, Ack(number=1))]
    last = session._send_lines(1, lines)
    assert [line for _, line in farm.said] == [lines[0], lines[2]]
    numbers = [number for number, _ in farm.said]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] <= last
    assert refusals.refused == {"of-tomorrow": "the farm refuses the job: not a Start"}
    _, stop = decode_passed(session._outgoing.get_nowait() or b"")
    assert isinstance(stop, Stop)
    assert stop.attempt_id == "of-tomorrow"


def test_a_farm_that_refuses_us_is_dialled_again(
    farm: Older, refusals: Refusals, session: _RelaySession
) -> None:
    farm.place = "Authorization"
    with pytest.raises(InputError):
        session._send_lines(1, [start("of-tomorrow")])
    assert refusals.refused == {}


class Link:
    """To a control node that hears all."""

    def __init__(self) -> None:
        self.sent: list[FromPod] = []

    def fileno(self) -> None:
        return None

    def send(self, messages: Sequence[FromPod]) -> bool:
        self.sent += messages
        return True

    def flush(self) -> bool:
        return True


def said(session: _RelaySession, count: int) -> list[Start | Stop]:
    """What was said to pods, once it is so much."""
    until = time.monotonic() + 120.0
    while session._outgoing.qsize() < count and time.monotonic() < until:
        session._turn()
    lines = [session._outgoing.get_nowait() or b"" for _ in range(count)]
    return [decode_passed(line)[1] for line in lines]  # type: ignore[misc]


def begun(session: _RelaySession, name: str) -> None:
    _, message = decode_passed(start(name))
    session._to_pod(1, message)  # type: ignore[arg-type]


def test_what_waits_for_room_holds_up_neither_others_nor_what_makes_it(
    refusals: Refusals, session: _RelaySession
) -> None:
    link = Link()
    session._remote_pods[1] = _RemotePod(link)  # type: ignore[arg-type]
    begun(session, "first")
    begun(session, "second")
    assert [one.order.attempt_id for one in said(session, 1) if isinstance(one, Start)] == ["second"]
    end = Events(
        events=(PodEvent(number=1, attempt_id="a", token="t", time=1.0, type=EventType.ENDED, body={}),)
    )
    session._remote_pods[1].waiting.append(end)
    assert [one.order.attempt_id for one in said(session, 1) if isinstance(one, Start)] == ["first"]
    assert link.sent == [end]


def test_what_was_stopped_while_it_waited_is_asked_for_no_more(
    refusals: Refusals, session: _RelaySession
) -> None:
    session._remote_pods[1] = _RemotePod(Link())  # type: ignore[arg-type]
    begun(session, "first")
    session._to_pod(1, Stop(attempt_id="first", reason="enough"))
    begun(session, "second")
    assert [type(one) for one in said(session, 2)] == [Stop, Start]
    refusals.room.set()
    session._turn()
    assert session._outgoing.empty()


def test_an_end_is_confirmed_only_when_the_control_node_has_committed_it(
    refusals: Refusals, session: _RelaySession
) -> None:
    session._remote_pods[1] = far = _RemotePod(Link())  # type: ignore[arg-type]
    kinds = ((1, "a", EventType.ENDED), (2, "b", EventType.LOG), (3, "b", EventType.ENDED))
    far.waiting += [
        Events(events=(PodEvent(number=number, attempt_id=name, token="t", time=1.0, type=kind, body={}),))
        for number, name, kind in kinds
    ]
    until = time.monotonic() + 120.0
    while far.waiting and time.monotonic() < until:
        session._turn()
    assert refusals.confirmed == []
    for number, confirmed in ((2, ["a"]), (3, ["a", "b"]), (3, ["a", "b"])):
        session._to_pod(1, Ack(number=number))
        assert refusals.confirmed == confirmed


def test_an_update_of_a_service_is_tried_again_until_a_newer_update_replaces_it(
    session: _RelaySession,
) -> None:
    session._remote_pods[1] = _RemotePod(Link())  # type: ignore[arg-type]

    def update(generation: int) -> ServiceUpdate:
        order = ServiceOrder(name="rain", versions=(), generation=generation)
        return ServiceUpdate(attempt_id="serve", order=order)

    session._to_pod(1, update(1))
    until = time.monotonic() + 60.0
    while session._updates[0][2].due_seconds == float("inf") and time.monotonic() < until:
        session._turn()
    assert session._updates[0][2].due_seconds < 60.0
    session._to_pod(1, update(2))
    (sent,) = said(session, 1)
    assert isinstance(sent, ServiceUpdate)
    assert sent.order.generation == 2
    assert not session._updates


def test_an_update_with_the_order_that_is_just_sent_does_not_restart_its_transfer(
    session: _RelaySession,
) -> None:
    session._remote_pods[1] = _RemotePod(Link())  # type: ignore[arg-type]
    update = ServiceUpdate(attempt_id="serve", order=ServiceOrder(name="rain", versions=(), generation=1))
    session._to_pod(1, update)
    (before,) = session._updates
    session._to_pod(1, replace(update, views=ViewOrders(checked_at=2.0)))
    assert list(session._updates) == [before]
    session._to_pod(2, update)
    assert [number for number, _, _ in session._updates] == [2]
