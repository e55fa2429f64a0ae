"""The masker: what comes out is what a slow oracle makes of the whole text, wherever the text is cut."""

import base64
import json
import random
from collections.abc import Iterable
from itertools import pairwise
from urllib.parse import quote

from hypothesis import example, given
from hypothesis import strategies as st

from gridmill.domain.masking import Masking, StreamMasker
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.secret import forms_of
from gridmill.domain.states import AttemptState


def oracle(text: bytes, forms: Iterable[bytes]) -> bytes:
    """Each byte is tried as the beginning of each form."""
    covered = [False] * len(text)
    for form in forms:
        for at in range(len(text) - len(form) + 1):
            if text[at : at + len(form)] == form:
                covered[at : at + len(form)] = [True] * len(form)
    made = bytearray()
    for at, byte in enumerate(text):
        if not covered[at]:
            made.append(byte)
        elif at == 0 or not covered[at - 1]:
            made += b"***"
    return bytes(made)


def masked(forms: Iterable[bytes], pieces: Iterable[bytes]) -> bytes:
    masker = StreamMasker(forms)
    return b"".join([*map(masker.feed, pieces), masker.end()])


def cut(text: bytes, at: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[a:b] for a, b in pairwise(places)]


# few letters, so that forms overlap themselves and each other, and texts are full of beginnings of forms
LETTERS = st.text("ab\n", max_size=40).map(str.encode)
FORMS = st.sets(st.text("ab\n", min_size=1, max_size=7).map(str.encode), min_size=1, max_size=4)


@given(FORMS, LETTERS, st.lists(st.integers(0, 1000), max_size=12))
@example({b"aba", b"bab"}, b"ababab", [3])
@example({b"aaaa"}, b"aaaaaaaaaaaaa", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
@example({b"a\nb"}, b"xa\nbx", [2])
@example({b"ab", b"ba"}, b"abba", [2])
def test_the_output_is_the_oracles_wherever_the_text_is_cut(forms: set[bytes], text: bytes, at: list[int]):
    assert masked(forms, cut(text, at)) == oracle(text, forms)


@given(FORMS, LETTERS)
def test_every_single_byte_may_come_alone(forms: set[bytes], text: bytes):
    assert masked(forms, [text[at : at + 1] for at in range(len(text))]) == oracle(text, forms)


VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=4, max_size=30)
VALUES = VALUES.filter(lambda value: len(value.strip()) >= 4 and value.strip("*"))


@given(st.lists(VALUES, min_size=1, max_size=3), st.lists(st.integers(0, 10**6), max_size=30), st.randoms())
def test_no_form_of_a_value_is_left_at_any_border(values: list[str], at: list[int], chance: random.Random):
    forms = frozenset().union(*map(forms_of, values))
    texts = [*values, *(quote(one, safe="") for one in values), *(json.dumps(one) for one in values)]
    texts += [base64.b64encode(b"user:" + one.encode()).decode() for one in values]
    texts += ["\n", " line \n", values[0][:3], values[-1][1:]]
    text = "".join(chance.choice(texts) for _ in range(12)).encode()
    out = masked(forms, cut(text, at))
    assert out == oracle(text, forms)
    assert masked(forms, cut(text, range(0, len(text), 7))) == out


@given(FORMS, LETTERS, st.lists(st.integers(0, 1000), max_size=12))
def test_no_more_is_held_back_than_a_form_has(forms: set[bytes], text: bytes, at: list[int]):
    masker = StreamMasker(forms)
    for piece in cut(text, at):
        masker.feed(piece)
        assert len(masker._held) < max(map(len, forms))


def test_a_line_without_the_beginning_of_a_value_is_passed_on_at_once():
    masker = Masking(["hunter2-value"]).stream()
    assert masker.feed(b"all is well\n") == b"all is well\n"
    assert masker.feed(b"the value: hun") == b"the value: "
    assert masker.feed(b"dred\n") == b"hundred\n"


def test_a_stream_that_ended_leaves_nothing_to_the_next_text():
    masker = Masking(["hunter2-value"]).stream()
    assert masker.feed(b"hunter2-value") + masker.end() == b"***"
    assert masker.feed(b"hunter2-value") + masker.end() == b"***"


def test_texts_bodies_and_outcomes_are_masked():
    masking = Masking(["hunter2-value"])
    assert masking.body({"name": "a hunter2-value", "value": 1.0, "step": None}) == {
        "name": "a ***",
        "value": 1.0,
        "step": None,
    }
    outcome = AttemptOutcome(
        state=AttemptState.FAILED,
        message="cannot use hunter2-value",
        hint="try hunter2-value again",
        metrics={"hunter2-value": 1.0},
    )
    assert "hunter2" not in repr(masking.outcome(outcome))
