"""The log on standard error is bounded, and says how much it leaves out."""

import io
import logging
from collections.abc import Iterator

import pytest

from gridmill.process_log import KINDS, LINES, SECONDS, BoundedHandler
from gridmill.testing.clock import FakeClock


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO, FakeClock]]:
    clock, text = FakeClock(), io.StringIO()
    logger = logging.getLogger("test_process_log")
    logger.propagate = False
    logger.addHandler(BoundedHandler(text, clock.monotonic))
    yield logger, text, clock
    logger.handlers.clear()


def test_lines_of_one_kind_are_counted_after_some(log):
    logger, text, clock = log
    for number in range(1000):
        logger.warning("refused %d", number)
    logger.warning("something else")
    lines = text.getvalue().splitlines()
    assert lines == [*(f"refused {number}" for number in range(LINES)), "something else"]
    clock.advance(SECONDS)
    logger.warning("later")
    rest = text.getvalue().splitlines()[len(lines) :]
    assert rest == [f"{1000 - LINES} more lines like this were not written: refused 999", "later"]
    logger.warning("refused again %d", 1)
    assert text.getvalue().splitlines()[-1] == "refused again 1"


def test_any_number_of_kinds_is_bounded_too(log):
    logger, text, _ = log
    for number in range(10 * KINDS):
        logger.warning(f"line {number}")
    assert len(text.getvalue().splitlines()) <= KINDS + LINES
