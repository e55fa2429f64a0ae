import os
import random
import zlib
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.codec import decode, encode
from gridmill.domain.job_log import packed_of, text_of
from gridmill.domain.pod_protocol import EventType
from gridmill.pod.attempt import (
    FLUSH_BYTES,
    FLUSH_SECONDS,
    TEXT_BYTES,
    LineBuffer,
    LogStream,
    OutputReader,
    parse_event,
)


def test_lines_are_whole():
    lines = LineBuffer()
    assert lines.feed(b"one\ntw") == ["one\n"]
    assert lines.feed(b"o\n") == ["two\n"]
    assert lines.feed(b"three") == []
    assert lines.end() == ["three"]
    assert lines.end() == []


def test_what_is_no_utf8_is_replaced():
    assert LineBuffer().feed(b"caf\xe9\n") == ["caf�\n"]


def test_a_long_line_is_cut_between_characters():
    text = "é" * FLUSH_BYTES
    lines = LineBuffer()
    pieces = lines.feed(b"x" + text.encode()) + lines.end()
    assert "".join(pieces) == "x" + text
    assert all(len(piece.encode()) <= FLUSH_BYTES for piece in pieces)


@given(text=st.text(), cuts=st.lists(st.integers(0, 50)))
def test_however_it_arrives_it_is_the_same_text(text, cuts):
    data, lines, found = text.encode(), LineBuffer(), []
    for cut in cuts:
        found += lines.feed(data[:cut])
        data = data[cut:]
    assert "".join(found + lines.feed(data) + lines.end()) == text


@given(text=st.text(), cuts=st.lists(st.integers(0, 50)), taken=st.lists(st.booleans()))
def test_however_a_log_arrives_and_is_taken_it_is_the_same_text(text, cuts, taken):
    data, log, found = text.encode(), LogStream(), []
    for cut, take in zip_longest(cuts, taken, fillvalue=0):
        log.feed(data[:cut], now=1.0)
        data = data[cut:]
        found += log.take() if take else []
    assert all(part.endswith("\n") for part in found)
    log.feed(data, now=1.0)
    log.end(now=1.0)
    assert "".join(found + log.take()) == text


def test_a_line_longer_than_a_text_comes_in_parts_that_are_cut_between_characters():
    log, line = LogStream(), "x" + "é" * TEXT_BYTES
    log.feed(b"before\n" + line.encode(), now=1.0)
    first = log.take()
    log.feed(b"\nafter\n", now=1.0)
    texts = [*first, *log.take()]
    assert "".join(texts) == f"before\n{line}\nafter\n"
    assert texts[0] == "before\n"
    assert max(len(text.encode()) for text in texts) <= TEXT_BYTES


def test_a_text_is_due_soon_after_its_first_line():
    log = LogStream()
    log.feed(b"part", now=10.0)
    assert log.due is None
    log.feed(b"ial\nnext\n", now=11.0)
    log.feed(b"third\n", now=11.01)
    assert log.due == 11.0 + FLUSH_SECONDS
    assert log.take() == ["partial\nnext\nthird\n"]
    assert log.due is None


def test_a_large_text_is_due_at_once_and_comes_in_pieces():
    log = LogStream()
    log.feed(b"0123456789\n" * 10_000, now=5.0)
    assert log.due == 5.0
    texts = log.take()
    assert "".join(texts) == "0123456789\n" * 10_000
    assert max(map(len, texts)) <= TEXT_BYTES


def test_reports_become_events():
    assert parse_event('{"type": "progress", "done": 3, "total": 10, "unit": "rows"}') == (
        EventType.PROGRESS,
        {"done": 3.0, "total": 10.0, "unit": "rows", "note": ""},
    )
    assert parse_event('{"type": "metric", "name": "loss", "value": 0.5, "step": 2}') == (
        EventType.METRIC,
        {"name": "loss", "value": 0.5, "step": 2.0},
    )
    assert parse_event("\n") is None


def test_what_is_no_report_becomes_a_log_text():
    for line in ("nonsense\n", "[1]\n", '{"type": "other"}\n', '{"type": "progress", "done": "3"}\n', "3\n"):
        assert parse_event(line) == (EventType.LOG, {"stream": "pod", "text": line})


def test_a_metric_that_is_not_finite_is_said_in_the_log():
    assert parse_event('{"type": "metric", "name": "loss", "value": NaN, "step": 5}') == (
        EventType.LOG,
        {"stream": "pod", "text": "metric loss is nan at step 5\n"},
    )


def test_the_phase_of_progress_is_kept_where_there_is_one():
    building = parse_event('{"type": "progress", "done": 0, "phase": "environment", "note": "pip"}')
    assert building is not None
    assert building[1]["phase"] == "environment"
    plain = parse_event('{"type": "progress", "done": 0, "phase": ""}')
    assert plain is not None
    assert "phase" not in plain[1]


def test_a_long_text_is_compressed_once_and_a_short_one_not():
    events = []
    ours, theirs = os.pipe()
    reader = OutputReader({"out": ours}, lambda kind, body: events.append(body))
    text = "ä line of a log\n" * 3000
    os.write(theirs, b"first\n")
    reader.drain(0.0)
    os.write(theirs, text.encode())
    reader.drain(1.0)
    os.close(theirs)
    reader.end(2.0)
    assert events[0] == {"stream": "out", "text": "first\n"}
    assert "".join(map(text_of, events)) == f"first\n{text}"
    assert sum(len(body.get("packed", b"")) for body in events) < len(text) // 20
    coded = decode(encode(events[1]), dict)
    assert (text_of(coded), packed_of(coded)[0]) == (text_of(events[1]), events[1]["packed"])


@pytest.mark.parametrize(
    "body",
    [
        {"packed": "no base64!", "size": 5},
        {"packed": "", "size": 5},
        {"packed": b"not zlib", "size": 5},
        {"packed": zlib.compress(b"x" * 10), "size": 1 << 40},
        {"packed": zlib.compress(b"x" * 10), "size": -1},
        {"packed": zlib.compress(b"x" * 10)},
        {"packed": 7, "size": "9"},
        {"packed": zlib.compress(b"x" * 10) + b"x" * 5000, "size": 10},
    ],
)
def test_a_compressed_text_that_cannot_be_right_is_empty(body):
    assert text_of(body) == ""


def test_a_compressed_text_is_not_longer_than_its_pod_says():
    assert text_of({"packed": zlib.compress(b"x" * 1_000_000), "size": 10}) == "x" * 10


def test_a_text_that_cannot_be_compressed_is_kept():
    data = random.Random(1).randbytes(384 * 1024)
    assert packed_of({"packed": zlib.compress(data, 0), "size": len(data)})[1] == len(data)
