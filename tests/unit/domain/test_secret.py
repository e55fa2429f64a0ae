"""Secrets: which values are accepted, how references are found and filled in, which forms are masked."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.secret import (
    MOST_BYTES,
    check_value,
    fill_in_secrets,
    forms_of,
    names_in,
    reference_to,
)
from gridmill.errors import InputError


@pytest.mark.parametrize(
    "value", ["", "abc", " abc ", "    \n", "a\0bcd", "****", "x" * (MOST_BYTES + 1), "\ud800abcd"]
)
def test_values_that_cannot_be_masked_or_sent_are_refused(value: str):
    with pytest.raises(InputError) as caught:
        check_value("db", value)
    assert caught.value.place == "secret db"
    assert value == "****" or len(value) < 6 or value not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("value", ["abcd", "äöü€", "x" * MOST_BYTES, "-----BEGIN\nKEY-----\n", "***a"])
def test_other_values_are_accepted(value: str):
    check_value("db", value)


def test_references_are_found_once_and_in_order():
    texts = ["${secret:b} and ${secret:a}", "", "${env:X}", "${secret:b}"]
    assert names_in(texts) == ("b", "a")


def test_values_are_quoted_inside_urls_only():
    values = {"pw": "p@ss/word", "url": "postgresql://a:b@c/d"}
    assert fill_in_secrets("x://u:${secret:pw}@h", values, "", in_url=True) == "x://u:p%40ss%2Fword@h"
    assert fill_in_secrets("${secret:url}", values, "", in_url=True) == values["url"]
    assert fill_in_secrets("Bearer ${secret:pw}", values, "") == "Bearer p@ss/word"


def test_a_missing_value_is_an_error_at_its_place():
    with pytest.raises(InputError, match=r"sql\.url: .*'gone'"):
        fill_in_secrets(reference_to("gone"), {}, "sql.url")


VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=4, max_size=60)
VALUES = VALUES.filter(lambda value: len(value.strip()) >= 4)


@given(VALUES, st.binary(max_size=7), st.binary(max_size=7))
def test_every_base64_code_that_contains_the_value_contains_one_of_its_forms(
    value: str, before: bytes, after: bytes
):
    if len(value.encode()) < 6:
        return
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        code = encode(before + value.encode() + after)
        assert any(form in code for form in forms_of(value))


@given(VALUES)
def test_quoted_and_escaped_values_contain_one_of_the_forms(value: str):
    texts = [value, quote(value), quote(value, safe=""), quote_plus(value)]
    texts += [json.dumps({"a": value}), json.dumps([value], ensure_ascii=False)]
    for text in texts:
        assert any(form in text.encode() for form in forms_of(value))


def test_the_lines_of_a_key_are_masked_on_their_own():
    key = "-----BEGIN KEY-----\nabcdefghij\nshort\n-----END KEY-----\n"
    assert b"abcdefghij" in forms_of(key)
    assert b"short" not in forms_of(key)


@given(VALUES)
def test_no_form_is_so_short_that_it_occurs_by_chance(value: str):
    assert all(len(form.decode("utf-8", "replace")) >= 4 for form in forms_of(value))
