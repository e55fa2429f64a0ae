"""The conformance suite for links between pods and control node. Make a subclass of `LinkSuite` in a test
module and give it a fixture `harness`."""

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from gridmill.codec import encode_message
from gridmill.domain.pod_protocol import (
    PROTOCOL,
    Ack,
    Events,
    EventType,
    FromPod,
    Goodbye,
    Heartbeat,
    Hello,
    PodEvent,
    Stop,
    ToPod,
    Welcome,
)
from gridmill.ports.link import LinkServer, PodLink, ReceivedMessage

_DEADLINE_SECONDS = 120.0
_BIG = 5 * 2**20


def hello(pod_id: str) -> Hello:
    """A pod's first message."""
    return Hello(pod_id=pod_id, deployment_id="d-1", secret="secret", protocol=PROTOCOL, version="0")


def log_event(number: int, text: str) -> Events:
    """Returns a journal entry that contains one line of log."""
    body = {"stream": "out", "text": text}
    return Events(
        events=(PodEvent(number=number, attempt_id="a", token="t", time=1.0, type=EventType.LOG, body=body),)
    )


class PodEnd:
    """The link of one pod, and all messages that have arrived over it. `ended` is set when the link was
    closed."""

    def __init__(self, link: PodLink) -> None:
        self.link = link
        self.came: list[ToPod] = []
        self.ended = False
        self.reads = True

    def step(self) -> None:
        """Runs one turn of the loop of the pod."""
        if self.link.pending():
            self.link.flush()
        messages = self.link.receive() if self.reads else ()
        if messages is None:
            self.ended = True
        else:
            self.came += messages


class LinkHarness(ABC):
    """A link server, pods, and the messages that both sides have received. A subclass selects the kind of
    link."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.came: list[ReceivedMessage] = []
        self.pods: list[PodEnd] = []
        self.server: LinkServer | None = None

    @abstractmethod
    def make_server(self, on_ready: Callable[[], None]) -> LinkServer:
        """Returns a link server at the address of the harness, which is the same at each call."""

    @abstractmethod
    def make_pod(self) -> PodLink:
        """Returns a pod's end of a link to the address of the harness."""

    @abstractmethod
    def say_raw(self, data: bytes) -> object:
        """Opens a connection that sends these bytes, even if the bytes are not a valid message. The
        connection stays open as long as the returned object exists."""

    # --- methods for the tests

    def start(self) -> LinkServer:
        """Starts a link server. After a server was closed, the next call starts another server at the same
        address."""
        self.server = self.make_server(self.ready.set)
        return self.server

    def pod(self) -> PodEnd:
        """Returns a connected pod that has not sent anything."""
        end = PodEnd(self.make_pod())
        self.connect(end)
        self.pods.append(end)
        return end

    def connect(self, end: PodEnd) -> None:
        """Tries to connect until a link server answers."""
        self.wait(end.link.connect, "a pod connects")
        end.ended = False

    def greet(self, pod_id: str) -> tuple[PodEnd, int]:
        """Returns a pod that has sent Hello and received Welcome, and its channel."""
        end = self.pod()
        return end, self.welcome(end, pod_id)

    def welcome(self, end: PodEnd, pod_id: str) -> int:
        """Sends Hello on a new connection and waits for Welcome. Returns the channel of the pod."""
        seen = len(self.came)
        assert end.link.send([hello(pod_id)])
        self.wait(lambda: self._greeted(pod_id, seen) is not None, f"{pod_id} is heard")
        channel = self._greeted(pod_id, seen)
        assert channel is not None
        self.say(channel, Welcome(acknowledged=0))
        self.wait(lambda: Welcome(acknowledged=0) in end.came, f"{pod_id} is welcomed")
        return channel

    def _greeted(self, pod_id: str, seen: int) -> int | None:
        """Ignores the first `seen` messages, and returns the channel of the pod's Hello among the later
        messages."""
        hellos = (got for got in self.came[seen:] if got.message == hello(pod_id))
        return next((got.channel for got in hellos), None)

    def say(self, channel: int, *messages: ToPod) -> None:
        """Sends messages from the control node to a pod."""
        assert self.server is not None
        self.server.send(channel, messages)

    def by(self, channel: int) -> Sequence[FromPod | None]:
        """Returns the messages of a channel. The value None in the list means that the channel has ended."""
        return [got.message for got in self.came if got.channel == channel]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Steps both ends of the links until the condition is true. Raises AssertionError if the condition
        is not true after 120 s."""
        until = time.monotonic() + _DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < until, f"waited in vain until {what}"
            self.step()
            if not condition():
                self.ready.wait(0.002)
                self.ready.clear()

    def step(self) -> None:
        """Runs one step of both ends of the links."""
        if self.server is not None:
            self.came += self.server.receive()
        for end in self.pods:
            end.step()

    def close(self) -> None:
        """Closes the server and all pods."""
        for end in self.pods:
            end.link.close()
        if self.server is not None:
            self.server.close()


class LinkSuite:
    """The tests of the conformance suite. Each test needs a `harness`, which is closed after the test."""

    def test_hello_is_answered_with_welcome(self, harness: LinkHarness) -> None:
        """Checks that Hello and Welcome are the first messages on a link."""
        harness.start()
        end, channel = harness.greet("p-1.0")
        assert harness.by(channel) == [hello("p-1.0")]
        assert end.came == [Welcome(acknowledged=0)]

    def test_nobody_answers_before_a_server_is_there(self, harness: LinkHarness) -> None:
        """Checks that an unconnected link returns False and raises no error."""
        link = harness.make_pod()
        assert not link.connect()
        assert link.receive() is None
        assert not link.send([hello("p-1.0")])
        assert not link.flush()
        assert not link.pending()
        assert link.fileno() is None
        link.close()
        link.close()

    def test_connecting_twice_is_connecting_once(self, harness: LinkHarness) -> None:
        """Checks that connecting twice has the same effect as connecting once."""
        harness.start()
        end, channel = harness.greet("p-1.0")
        assert end.link.connect()
        end.link.send([log_event(1, "x")])
        harness.wait(lambda: len(harness.by(channel)) == 2, "the old channel still serves")

    def test_order_is_kept_in_both_directions(self, harness: LinkHarness) -> None:
        """Checks the order of many messages that are sent in both directions at the same time."""
        harness.start()
        end, channel = harness.greet("p-1.0")
        for number in range(1, 201):
            assert end.link.send([log_event(number, "x")])
            harness.say(channel, Ack(number=number))
        harness.wait(lambda: len(harness.by(channel)) == 201 and len(end.came) == 201, "all has come")
        assert harness.by(channel)[1:] == [log_event(number, "x") for number in range(1, 201)]
        assert end.came[1:] == [Ack(number=number) for number in range(1, 201)]

    def test_many_small_messages(self, harness: LinkHarness) -> None:
        """Checks many small messages that are sent in a few calls."""
        harness.start()
        end, channel = harness.greet("p-1.0")
        for first in range(0, 20_000, 1000):
            assert end.link.send([log_event(first + k, "x") for k in range(1000)])
            harness.say(channel, *(Ack(number=first + k) for k in range(1000)))
        harness.wait(lambda: len(harness.by(channel)) == 20_001 and len(end.came) == 20_001, "all has come")
        assert [ack.number for ack in end.came if isinstance(ack, Ack)] == list(range(20_000))

    def test_big_messages(self, harness: LinkHarness) -> None:
        """Checks messages of 5 MB in one line in both directions, with line breaks and other scripts in the
        text."""
        harness.start()
        end, channel = harness.greet("p-1.0")
        text = ("räucher\n行\r\n\u2028" * _BIG)[:_BIG]
        assert end.link.send([log_event(1, text)])
        harness.say(channel, Stop(attempt_id="a", reason=text))
        harness.wait(lambda: len(harness.by(channel)) == 2 and len(end.came) == 2, "both have come")
        assert harness.by(channel)[1] == log_event(1, text)
        assert end.came[1] == Stop(attempt_id="a", reason=text)

    def test_two_pods_at_once_are_not_mixed_up(self, harness: LinkHarness) -> None:
        """Checks that each pod has its own channel."""
        harness.start()
        (one, first), (two, second) = harness.greet("p-1.0"), harness.greet("p-1.1")
        assert first != second
        for number in range(50):
            one.link.send([log_event(number, "one")])
            two.link.send([log_event(number, "two")])
            harness.say(first, Ack(number=number))
            harness.say(second, Ack(number=-number))
        harness.wait(
            lambda: len(harness.came) == 102 and len(one.came) == len(two.came) == 51, "all has come"
        )
        assert harness.by(first)[1:] == [log_event(number, "one") for number in range(50)]
        assert harness.by(second)[1:] == [log_event(number, "two") for number in range(50)]
        assert two.came[1:] == [Ack(number=-number) for number in range(50)]

    def test_a_pod_that_closes_is_seen_once(self, harness: LinkHarness) -> None:
        """Checks that the last messages of a pod that closes its link still arrive."""
        harness.start()
        end, channel = harness.greet("p-1.0")
        end.link.send([log_event(1, "last")])
        end.link.close()
        harness.wait(lambda: None in harness.by(channel), "the end is seen")
        harness.step()
        assert harness.by(channel) == [hello("p-1.0"), log_event(1, "last"), None]

    def test_a_dropped_pod_gets_what_was_queued_first(self, harness: LinkHarness) -> None:
        """Checks that all queued messages of a dropped pod arrive before the end of its link."""
        harness.start()
        end, channel = harness.greet("p-1.0")
        assert harness.server is not None
        harness.say(channel, Stop(attempt_id="a", reason="x" * _BIG), Goodbye(reason="gone"))
        harness.server.drop(channel)
        harness.server.drop(channel)
        harness.wait(lambda: end.ended, "the pod sees the end")
        assert end.came[1:] == [Stop(attempt_id="a", reason="x" * _BIG), Goodbye(reason="gone")]
        assert not end.link.send([hello("p-1.0")])
        harness.wait(lambda: None in harness.by(channel), "the control node sees the end")

    def test_messages_to_a_closed_channel_are_lost_without_a_sound(self, harness: LinkHarness) -> None:
        """Checks that sending to a closed or unknown channel, and dropping such a channel, raise no
        error."""
        server = harness.start()
        end, channel = harness.greet("p-1.0")
        end.link.close()
        harness.wait(lambda: None in harness.by(channel), "the end is seen")
        for number in (channel, 4711):
            server.send(number, [Ack(number=1)])
            server.drop(number)
        harness.greet("p-1.1")

    def test_a_pod_comes_back_to_the_next_control_node(self, harness: LinkHarness) -> None:
        """Checks that a pod notices the end of its link, finds no server, connects again later, and gets a
        new channel."""
        server = harness.start()
        end, _ = harness.greet("p-1.0")
        server.close()
        harness.wait(lambda: end.ended, "the pod sees the end")
        assert not end.link.connect()
        harness.start()
        harness.connect(end)
        end.came.clear()
        channel = harness.welcome(end, "p-1.0")
        harness.say(channel, Ack(number=7))
        harness.wait(lambda: Ack(number=7) in end.came, "the new channel serves")

    def test_a_pod_that_starts_again_has_a_new_channel(self, harness: LinkHarness) -> None:
        """The old channel ends."""
        harness.start()
        end, old = harness.greet("p-1.0")
        end.link.close()
        _, new = harness.greet("p-1.0")
        assert new != old
        harness.wait(lambda: None in harness.by(old), "the old one's end is seen")
        assert harness.by(new) == [hello("p-1.0")]

    def test_garbage_closes_only_its_own_channel(self, harness: LinkHarness) -> None:
        """Checks invalid messages: invalid JSON, an unknown kind, a message that only a control node sends,
        deep nesting, and an endless line."""
        harness.start()
        end, channel = harness.greet("p-1.0")
        greeting = encode_message(hello("stranger")) + b"\n"
        garbage = (
            b"\xff\xfe\n",
            b'["sing",{}]\n',
            b'["welcome",{"acknowledged":1}]\n',
            b"\n",
            b'["hello",{}]\n',
            b'["hello",' + b"[" * 100_000 + b"]" * 100_000 + b"]\n",
        )
        open_ones = [harness.say_raw(greeting + bad) for bad in garbage]
        open_ones.append(harness.say_raw(b"x" * (2 * 2**20)))
        harness.wait(
            lambda: [got.message for got in harness.came].count(None) == len(garbage), "all are closed"
        )
        end.link.send([log_event(1, "x")])
        harness.wait(lambda: len(harness.by(channel)) == 2, "the pod is still heard")
        assert len(open_ones) == len(garbage) + 1

    def test_a_pod_that_does_not_read_keeps_nobody_waiting(self, harness: LinkHarness) -> None:
        """Checks a pod that does not read while 20 MB wait for it. During this time, a second pod is served.
        After the second pod was served, the first pod receives all its messages."""
        harness.start()
        sleeper, first = harness.greet("p-1.0")
        sleeper.reads = False
        for number in range(20):
            harness.say(first, Stop(attempt_id=str(number), reason="x" * 2**20))
        other, second = harness.greet("p-1.1")
        harness.say(second, Ack(number=1))
        harness.wait(lambda: Ack(number=1) in other.came, "the other is served")
        sleeper.reads = True
        harness.wait(lambda: len(sleeper.came) == 21, "the sleeper has all")

    def test_heartbeats_stay_within_the_link(self, harness: LinkHarness) -> None:
        """Checks that each of the two ends of a link can send heartbeats. Heartbeats wake no receiver."""
        harness.start()
        end, channel = harness.greet("p-1.0")
        end.link.send([Heartbeat(time=1.0), log_event(1, "x")])
        harness.say(channel, Heartbeat(time=1.0), Ack(number=1))
        harness.wait(lambda: len(harness.by(channel)) == 2 and len(end.came) == 2, "the rest has come")
        assert not any(
            isinstance(message, Heartbeat) for message in itertools.chain(harness.by(channel), end.came)
        )

    def test_the_control_loop_is_woken_for_messages_and_ends(self, harness: LinkHarness) -> None:
        """Checks that `on_ready` alone wakes the loop of the control node."""
        server = harness.start()
        end, _ = harness.greet("p-1.0")
        for act in (lambda: end.link.send([log_event(1, "x")]), end.link.close):
            harness.ready.clear()
            act()
            came: tuple[ReceivedMessage, ...] = ()
            while not came:  # the loop may have been woken for an earlier message
                assert harness.ready.wait(_DEADLINE_SECONDS)
                harness.ready.clear()
                came = tuple(server.receive())
            assert len(came) == 1

    def test_a_closed_server_can_still_be_spoken_to(self, harness: LinkHarness) -> None:
        """Checks that sending and closing raise no error after the server was closed."""
        server = harness.start()
        _, channel = harness.greet("p-1.0")
        server.close()
        server.send(channel, [Ack(number=1)])
        server.drop(channel)
        server.receive()
        server.close()
