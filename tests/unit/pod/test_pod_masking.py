"""Output, progress, metrics and reports are masked before the pod stores them, across every border."""

import os
import zlib
from base64 import b64decode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.masking import Masking
from gridmill.domain.pod_protocol import EventType
from gridmill.pod.attempt import FLUSH_BYTES, TEXT_BYTES, OutputReader

VALUE = "hunter2-is-a-long-secret-value"
MASKING = Masking([VALUE])
Events = list[tuple[EventType, dict[str, Any]]]


def texts(events: Events, stream: str) -> str:
    made = ""
    for kind, body in events:
        if kind == EventType.LOG and body["stream"] == stream:
            packed = body.get("packed")
            data = b64decode(packed) if isinstance(packed, str) else packed
            made += zlib.decompress(data).decode() if packed else body["text"]
    return made


def read(
    name: str, *pieces: bytes, masking: Masking | None = MASKING
) -> list[tuple[EventType, dict[str, Any]]]:
    """What a reader makes of these pieces, each of which is written and read on its own."""
    events: Events = []
    end, begin = os.pipe()
    reader = OutputReader({name: end}, lambda kind, body: events.append((kind, dict(body))), masking)
    for number, piece in enumerate(pieces):
        for at in range(0, len(piece), 4096):
            os.write(begin, piece[at : at + 4096])
            reader.read(name, float(number))
        reader.tick(float(number) + 10.0)
    os.close(begin)
    reader.drain(1e6)
    reader.end(1e6)
    return events


@given(st.lists(st.integers(0, len(VALUE)), max_size=5), st.sampled_from(["out", "err"]))
def test_a_value_in_pieces_is_masked(at: list[int], name: str):
    line = f"begin {VALUE} end\n".encode()
    places = [0, *sorted(place + 6 for place in at), len(line)]
    pieces = [line[a:b] for a, b in pairwise(places)]
    assert texts(read(name, *pieces), name) == "begin *** end\n"


@pytest.mark.parametrize("border", [FLUSH_BYTES, TEXT_BYTES])
@pytest.mark.parametrize("back", [0, 1, 10, len(VALUE) - 1, len(VALUE)])
def test_a_value_at_the_border_of_a_text_is_masked(border: int, back: int):
    data = b"x" * (border - back) + VALUE.encode() + b"y" * 100
    assert texts(read("out", data), "out") == "x" * (border - back) + "***" + "y" * 100


def test_a_value_at_the_end_of_the_output_is_masked():
    assert (
        texts(read("out", b"no newline ", VALUE.encode()[:9], VALUE.encode()[9:]), "out") == "no newline ***"
    )
    assert texts(read("out", VALUE.encode()[:9]), "out") == VALUE[:9]


def test_a_value_of_several_lines_is_masked_as_a_whole_and_line_by_line():
    key = "-----BEGIN KEY-----\nabcdefghijkl\nmnopqrstuvwx\n-----END KEY-----"
    masking = Masking([key])
    whole = read("out", key.encode()[:30], key.encode()[30:], b"\n", masking=masking)
    assert texts(whole, "out") == "***\n"
    lines = "".join(f"log: {line}\n" for line in key.splitlines()).encode()
    assert "abcdefghijkl" not in texts(read("out", lines, masking=masking), "out")


@pytest.mark.parametrize(
    "report",
    [
        b'{"type": "progress", "done": 1, "note": "at %s"}\n',
        b'{"type": "progress", "done": 1, "unit": "%s"}\n',
        b'{"type": "metric", "name": "loss of %s", "value": 1.5}\n',
        b'{"type": "metric", "name": "%s", "value": NaN}\n',
        b'{"type": "log", "text": "said %s"}\n',
        b"no report at all: %s\n",
        b'{"type": "%s"}\n',
    ],
)
def test_reports_are_masked(report: bytes):
    for line in (report % VALUE.encode(), report % "".join(f"\\u{ord(c):04x}" for c in VALUE).encode()):
        events = read("events", line[: len(line) // 2], line[len(line) // 2 :])
        assert events, "the report arrives"
        assert VALUE not in repr(events)


def test_a_value_at_the_border_of_a_long_line_that_is_no_report_is_masked():
    for back in range(len(VALUE) + 1):
        events = read("events", b"x" * (FLUSH_BYTES - back) + VALUE.encode() + b"y" * 10 + b"\n")
        assert texts(events, "pod") == "x" * (FLUSH_BYTES - back) + "***" + "y" * 10 + "\n"


def test_without_secrets_nothing_changes():
    events = read("out", f"{VALUE}\n".encode(), masking=None)
    assert texts(events, "out") == f"{VALUE}\n"
