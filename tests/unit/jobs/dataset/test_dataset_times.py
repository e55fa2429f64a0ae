"""A column that a dataset uses as a time and that holds something else: the error names the line to add."""

import pytest

from gridmill.errors import InputError
from gridmill.jobs.dataset.columns import check_time


def test_numbers_are_declared_times_in_the_sink():
    with pytest.raises(InputError, match="'at' of 'rows' has type BIGINT, not timestamp") as caught:
        check_time("at", "BIGINT", "rows", "basis")
    assert "`columns: {at: timestamp}`" in caught.value.hint
    assert "`timestamp_format: {at: unix_s}` under `source`" in caught.value.hint


def test_texts_are_declared_times_in_the_sink():
    with pytest.raises(InputError) as caught:
        check_time("at", "VARCHAR", "rows", "basis")
    assert (
        caught.value.hint == "In the sink: `columns: {at: timestamp}`, with a `timestamp_format` if needed."
    )
