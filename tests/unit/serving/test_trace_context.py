"""The header `traceparent` is read as the recommendation defines it, and no id of a client breaks the log."""

import json
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.served_models import linear_model, order_of, row, run

from gridmill.domain.serving import RequestLog
from gridmill.serving.request import headers_of
from gridmill.serving.request_log import RequestLogWriter
from gridmill.serving.trace_context import traceparent_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01"


def is_hex(text: str) -> bool:
    return all(sign in "0123456789abcdef" for sign in text)


def read_by_the_recommendation(text: str) -> tuple[str, str, int] | None:
    """Return the trace id, the parent id and the flags, or None if the trace begins again. Each step is a
    sentence of the sections *traceparent Header* and *Versioning of traceparent*."""
    if len(text) < 55:  # "if the size of the header is shorter than 55 characters, … restart the trace"
        return None
    version, trace, parent, flags = text[:2], text[3:35], text[36:52], text[53:55]
    if not is_hex(version) or version == "ff":  # "version 255 is invalid"
        return None
    if version == "00" and len(text) > 55:  # version 00 has exactly four fields
        return None
    if text[2] != "-" or text[35] != "-" or text[52] != "-":
        return None
    if not is_hex(trace) or set(trace) == {"0"}:
        return None
    if not is_hex(parent) or set(parent) == {"0"}:
        return None
    if not is_hex(flags) or text[55:56] not in ("", "-"):  # "either the end of the string or a dash"
        return None
    return trace, parent, int(flags, 16)


def digits(size: int) -> st.SearchStrategy[str]:
    some = st.text("0123456789abcdef", min_size=size, max_size=size)
    return some | st.just("0" * size) | some.map(str.upper) | st.just("f" * size)


FIELDS = st.tuples(st.sampled_from(["00", "01", "cc", "fe", "ff", "0G"]), digits(32), digits(16), digits(2))
REST = st.sampled_from(["", "-", "-extra", "-00-more", ".", "0", " x"])
WRITTEN = st.builds(lambda fields, rest: "-".join(fields) + rest, FIELDS, REST)


def changed(text: str, at: int, sign: str, how: int) -> str:
    at %= len(text)
    return text[:at] + sign * (how < 2) + text[at + (how > 0) :]


CHANGED = st.builds(
    changed, WRITTEN | st.just(VALID), st.integers(0, 60), st.characters(max_codepoint=255), st.integers(0, 2)
)


@settings(max_examples=1500)
@given(WRITTEN | CHANGED | st.text(st.characters(max_codepoint=255), max_size=70))
@example(VALID)
@example(VALID.upper())
@example(f"ff-{TRACE}-{PARENT}-01")
@example(f"00-{'0' * 32}-{PARENT}-01")
@example(f"00-{TRACE}-{'0' * 16}-01")
@example(VALID + "-more")
@example(f"01-{TRACE}-{PARENT}-01-more")
@example(f"cc-{TRACE}-{PARENT}-ff")
@example(f"01-{TRACE}-{PARENT}-01.more")
@example("")
@example(f"{VALID},{VALID}")
def test_a_valid_trace_is_kept_and_any_other_header_begins_a_new_one(text: str) -> None:
    answered = traceparent_of(text.encode("latin-1")).decode()
    version, trace, parent, flags = answered.split("-")
    own = read_by_the_recommendation(answered)
    assert own is not None
    assert version == "00"
    expected = read_by_the_recommendation(text.strip(" \t"))
    if expected is not None:
        assert (trace, parent, int(flags, 16)) == (*expected[:2], expected[2] & 3)
    else:
        assert flags == "00"
        assert trace not in text
        assert traceparent_of(text.encode("latin-1")).decode() != answered


def test_a_repeated_traceparent_is_not_valid() -> None:
    pairs = [(b"traceparent", VALID.encode()), (b"accept", b"*"), (b"traceparent", VALID.encode())]
    assert TRACE.encode() not in traceparent_of(headers_of(pairs)[b"traceparent"])
    assert headers_of(pairs[:2]) == dict(pairs[:2])
    assert headers_of([(b"accept", b"1"), *pairs[:2]]) == dict(pairs[:2])


HEADERS = st.text(st.characters(max_codepoint=255), max_size=200)


def test_no_header_of_a_client_reaches_the_log_or_the_answer_unchecked(tmp_path: Path) -> None:
    model = linear_model(tmp_path / "m")
    number = 0

    @settings(max_examples=60, deadline=None)
    @given(HEADERS, HEADERS, HEADERS)
    @example("a" * 128, VALID, "vendor=1")
    @example("a" * 129, "", "x\r\nset-cookie: a=b")
    @example('x"}\n{"status": 200, "request_id": "forged', "00-\n", "a=b," * 40)
    @example("\x1b[2J", VALID, "")
    @example("\x7f\x85\u00e9", VALID, "")
    def check(given_id: str, trace: str, state: str) -> None:
        nonlocal number
        number += 1
        folder = tmp_path / f"log{number}"
        log = RequestLogWriter(RequestLog(folder=str(folder)), "weather", 0)

        async def scenario(call, hosted):
            sent = {"x-request-id": given_id, "traceparent": trace, "tracestate": state}
            reply = await call("/predict", {"rows": [row(1)]}, headers=sent)
            shown = reply.headers["x-request-id"]
            is_taken = 0 < len(given_id) <= 128 and all(" " <= sign <= "~" for sign in given_id)
            assert (shown == given_id) == is_taken
            assert 0 < len(shown) <= 128
            assert "tracestate" not in reply.headers
            log.flush()
            [line] = (folder / "requests-0.jsonl").read_text("utf-8").splitlines()
            logged = json.loads(line)
            assert logged["request_id"] == shown
            assert logged["traceparent"] == reply.headers["traceparent"]
            assert read_by_the_recommendation(logged["traceparent"]) is not None
            assert line.isprintable()

        run(scenario, order_of(model), tmp_path, log=log)

    check()
