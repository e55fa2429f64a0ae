"""What a channel does about silence, slow readers and cuts in the stream, on a clock that moves when told."""

import socket
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.codec import decode_message, encode_message
from gridmill.domain.amounts import Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import Ack, AttemptOrder, Heartbeat, Start, ToPod
from gridmill.domain.serving import ServiceOrder
from gridmill.errors import InputError
from gridmill.testing.clock import FakeClock
from gridmill.testing.link_suite import hello
from gridmill.transport import spool
from gridmill.transport.channel import SEND_LIMIT_BYTES, Channel, LineSplitter, for_spool, for_tls, to_pod
from gridmill.transport.pod_side import StreamLink
from gridmill.transport.server import EventLoop
from gridmill.transport.socket import SocketWire
from gridmill.transport.spool import SpoolFolder


class TestSilence:
    @pytest.fixture
    def clock(self):
        return FakeClock()

    @pytest.fixture
    def pair(self):
        ends = socket.socketpair()
        for end in ends:
            end.setblocking(False)
        yield ends
        for end in ends:
            end.close()

    def test_a_channel_speaks_when_idle_and_ends_when_the_pod_is_silent(self, clock, pair):
        channel = Channel(
            1, SocketWire(pair[0]), _unheard, liveness=for_tls(clock.monotonic), monotonic=clock.monotonic
        )
        clock.advance(4)
        assert channel.tick()
        with pytest.raises(BlockingIOError):
            pair[1].recv(100)
        clock.advance(1)
        assert channel.tick()
        assert isinstance(decode_message(pair[1].recv(1000).strip()), Heartbeat)
        pair[1].send(encode_message(Heartbeat(time=1.0)) + b"\n")
        assert channel.read()
        clock.advance(19.9)
        assert channel.tick()
        clock.advance(0.1)
        assert not channel.tick()

    def test_a_pod_speaks_when_idle_and_closes_when_the_control_node_is_silent(self, clock, pair):
        link = _link_over(pair[0], clock)
        assert link.connect()
        clock.advance(5)
        assert link.receive() == []
        assert isinstance(decode_message(pair[1].recv(1000).strip()), Heartbeat)
        pair[1].send(encode_message(Heartbeat(time=1.0)) + b"\n" + encode_message(Ack(number=1)) + b"\n")
        assert link.receive() == [Ack(number=1)]
        clock.advance(20)
        link.receive()
        assert link.receive() is None
        assert link.fileno() is None

    def test_a_pod_that_was_stopped_for_a_minute_reads_before_it_judges(self, clock, pair):
        link = _link_over(pair[0], clock)
        assert link.connect()
        pair[1].send(encode_message(Ack(number=1)) + b"\n")
        clock.advance(60)
        assert link.receive() == [Ack(number=1)]
        assert link.receive() == []

    def test_a_dropped_pod_has_five_seconds_to_read(self, clock, pair):
        channel = Channel(1, SocketWire(pair[0]), _unheard, liveness=None, monotonic=clock.monotonic)
        channel.finish()
        pair[1].send(encode_message(hello("late")) + b"\n")
        assert channel.read()
        clock.advance(4.9)
        assert channel.tick()
        clock.advance(0.1)
        assert not channel.tick()

    def test_a_pod_that_leaves_too_much_unread_is_dropped(self, clock, pair):
        channel = Channel(1, SocketWire(pair[0]), _unheard, liveness=None, monotonic=clock.monotonic)
        assert channel.send(b"x" * (SEND_LIMIT_BYTES + 2**20))
        assert not channel.send(b"x")

    def test_garbage_closes_the_pods_end_too(self, clock, pair):
        link = _link_over(pair[0], clock)
        assert link.connect()
        pair[1].send(encode_message(Ack(number=1)) + b"\n" + encode_message(hello("no")) + b"\n")
        link.receive()
        assert link.receive() is None

    def test_a_spool_pod_that_was_killed_is_silent_and_its_folder_goes(self, clock, tmp_path):
        came = []
        exchange = EventLoop(lambda received, _: came.append(received), clock.monotonic)
        exchange.add_folder(SpoolFolder(tmp_path, clock.monotonic), for_spool)
        connection = tmp_path / (tmp_path / "epoch").read_text() / "c"
        for direction in ("in", "out"):
            (connection / direction).mkdir(parents=True)
        spool.write_whole(connection / "out", "1", encode_message(hello("p-1.0")) + b"\n")
        _turn(exchange, clock, 80)
        assert [got.message for got in came] == [hello("p-1.0")]
        _turn(exchange, clock, 15)
        assert [got.message for got in came] == [hello("p-1.0"), None]
        assert not connection.exists()
        exchange.close()

    def test_a_pod_that_leaves_too_much_in_the_spool_is_seen(self, tmp_path):
        for direction in ("in", "out"):
            (tmp_path / direction).mkdir(parents=True)
        wire = spool.SpoolWire(tmp_path, read_from="out", write_to="in", owns=True)
        for _ in range(3):
            wire.write(b"x" * 2**20)
        assert wire.pending_bytes() == 3 * 2**20
        (tmp_path / "in" / "000000000001").unlink()
        assert wire.pending_bytes() == 2 * 2**20
        wire.close()
        assert not tmp_path.exists()


def _unheard(channel, message, size_bytes):
    raise AssertionError("nothing but heartbeats was said")


def _link_over(sock, clock):
    def dial():
        yield from ()
        return SocketWire(sock)

    return StreamLink(dial, new_liveness=for_tls, monotonic=clock.monotonic)


def _turn(exchange, clock, seconds):
    for _ in range(int(seconds * 2)):
        exchange.turn(0)
        clock.advance(0.5)


# framing


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b""))), st.data())
def test_lines_come_whole_however_the_stream_is_cut(lines, data):
    whole, found, inbox = b"".join(line + b"\n" for line in lines), [], LineSplitter()
    while whole:
        cut = data.draw(st.integers(1, len(whole)))
        found += inbox.feed(whole[:cut])
        whole = whole[cut:]
    assert found == lines


def test_a_line_over_the_limit_is_refused():
    inbox = LineSplitter(limit_bytes=10)
    assert inbox.feed(b"0123456789\n") == [b"0123456789"]
    with pytest.raises(InputError, match="longer than 10 bytes"):
        inbox.feed(b"01234567890")


@pytest.mark.parametrize("kind", get_args(ToPod), ids=lambda kind: kind.__name__)
def test_a_pod_accepts_every_message_that_a_control_node_sends(kind: type[ToPod]):
    values = {
        "acknowledged": 1,
        "number": 2,
        "time": 3.0,
        "reason": "why",
        "attempt_id": "p-1.j.1",
        "sealed": "c2VhbGVk",
        "order": ServiceOrder(name="rain", versions=()),
    }
    if kind is Start:
        values["order"] = AttemptOrder(
            attempt_id="p-1.j.1",
            token="t",
            run_id="p-1",
            pipeline="p",
            job=Job(name="j", command=CommandSpec(run="true")),
            given=Amounts(),
            root="/root",
            output_uri="files/p/j/p-1.j.1",
        )
    message = kind(**{name: values[name] for name in values if name in kind.__dataclass_fields__})
    assert to_pod(encode_message(message)) == message
