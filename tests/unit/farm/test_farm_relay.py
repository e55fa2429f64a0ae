"""A farm's relay by itself: sessions, replays, and what is dropped between them."""

import asyncio
from collections.abc import Sequence

import pytest

from gridmill.codec import decode_passed, encode_passed
from gridmill.domain.amounts import Amounts
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import Ack, AttemptOrder, FromPod, Goodbye, Hello, Message, Start, ToPod
from gridmill.errors import ConflictError, InputError, NotFoundError
from gridmill.farm.relay import Relay
from gridmill.ports.link import ReceivedMessage

HELLO = Hello(pod_id="d.0", deployment_id="d", secret="s", protocol=1, version="1")


class Pods:
    """A LinkServer whose pods are told and asked by hand."""

    def __init__(self) -> None:
        self.coming: list[ReceivedMessage] = []
        self.told: list[tuple[int, ToPod | None]] = []

    def says(self, channel: int, message: FromPod | None) -> None:
        self.coming.append(ReceivedMessage(channel=channel, message=message))

    def receive(self) -> Sequence[ReceivedMessage]:
        taken, self.coming = self.coming, []
        return taken

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        self.told += [(channel, message) for message in messages]

    def drop(self, channel: int) -> None:
        self.told.append((channel, None))

    def close(self) -> None:
        return


@pytest.fixture
def pods() -> Pods:
    return Pods()


@pytest.fixture
def started() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def relay(pods: Pods, started: list[tuple[str, str]]) -> Relay:
    return Relay(pods, lambda pod, order: started.append((pod, order.attempt_id)))


def read(relay: Relay, name: str, turns: int = 1) -> list[tuple[int, Message | None]]:
    """What the session's reader gets in so many pieces; then it goes away."""

    async def heard() -> list[bytes]:
        session = relay.begin(name)
        lines = relay.lines(session, lambda: False)
        pieces = [await anext(lines) for _ in range(turns)]
        await lines.aclose()
        return pieces

    said = b"".join(asyncio.run(heard())).splitlines()
    return [decode_passed(line) for line in said if line.strip()]


def test_what_pods_say_comes_by_the_session(relay: Relay, pods: Pods) -> None:
    pods.says(7, HELLO)
    pods.says(8, HELLO)
    pods.says(8, None)
    assert read(relay, relay.open()) == [(7, HELLO), (8, HELLO), (8, None)]


def test_a_sequence_is_passed_on_once(relay: Relay, pods: Pods) -> None:
    name = relay.open()
    for number in (1, 1, 2, 1):
        relay.forward(name, number, encode_passed(7, Ack(number=number)))
    assert pods.told == [(7, Ack(number=1)), (7, Ack(number=2))]
    relay.forward(name, None, encode_passed(7, None))
    assert pods.told[-1] == (7, None)


def test_of_lines_with_a_wrong_one_nothing_is_passed_on(relay: Relay, pods: Pods) -> None:
    name = relay.open()
    good = encode_passed(7, Goodbye(reason="x"))
    for wrong in (b"rubbish", encode_passed(7, HELLO), b"[7]", b'[7,["start",{}]]'):
        with pytest.raises(InputError):
            relay.forward(name, 1, good + b"\n" + wrong)
    assert pods.told == []
    relay.forward(name, 1, good)  # and its number was not used up
    assert pods.told == [(7, Goodbye(reason="x"))]


def test_pods_of_an_earlier_session_dial_again(relay: Relay, pods: Pods) -> None:
    pods.says(7, HELLO)
    first = relay.open()
    read(relay, first)
    pods.says(8, HELLO)  # nobody has heard of this one yet
    pods.says(7, HELLO)
    pods.says(7, None)
    second = relay.open()
    assert pods.told == [(7, None)]
    assert read(relay, second) == [(8, HELLO)]
    for over in (first, "unheard of", second):  # the reader of the second has gone, too
        with pytest.raises(NotFoundError):
            relay.forward(over, 1, b"")


def test_pods_of_a_tenant_that_is_silent_have_no_control_node(relay: Relay, pods: Pods) -> None:
    pods.says(7, HELLO)
    name = relay.open()
    read(relay, name)
    relay.hang_up()
    assert pods.told == [(7, None)]
    with pytest.raises(NotFoundError):
        relay.forward(name, 1, b"")
    relay.hang_up()
    pods.says(7, None)
    pods.says(8, HELLO)  # it dials again
    assert read(relay, relay.open()) == [(8, HELLO)]
    assert pods.told == [(7, None)]


def test_a_session_is_read_once(relay: Relay) -> None:
    async def twice(name: str) -> None:
        relay.begin(name)
        relay.begin(name)

    with pytest.raises(ConflictError):
        asyncio.run(twice(relay.open()))


def test_what_starts_is_noted_with_its_pod(relay: Relay, pods: Pods, started: list[tuple[str, str]]) -> None:
    order = AttemptOrder(
        attempt_id="a1",
        token="t",
        run_id="r",
        pipeline="p",
        job=Job(name="j", command=CommandSpec(run="true")),
        given=Amounts(),
        root="",
        output_uri="out",
    )

    async def said() -> None:
        name = relay.open()
        lines = relay.lines(relay.begin(name), lambda: False)
        pods.says(7, HELLO)
        await anext(lines)
        relay.forward(name, 1, encode_passed(7, Start(order=order)))
        await lines.aclose()

    asyncio.run(said())
    assert started == [("d.0", "a1")]
    assert pods.told == [(7, Start(order=order))]
