"""Unix users of a farm's sources: never given twice, and nothing of them runs on."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gridmill.errors import UnavailableError
from gridmill.farm.source import Source
from gridmill.farm.users import FIRST_USER, Numbered, end_processes, first_number, living, next_number

alone = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="root alone starts processes as others: be it",
)


def source(user: int | None) -> Source:
    return Source(name="s", certificate="", token_hash="", version="0.1.0", added=0, user=user)


def test_a_number_is_never_given_again() -> None:
    assert next_number(Numbered(next=FIRST_USER + 5), []).next == FIRST_USER + 5  # whoever had 4 is gone
    assert next_number(None, [source(FIRST_USER), source(FIRST_USER + 2)]).next == FIRST_USER + 3
    assert next_number(Numbered(next=FIRST_USER), [source(FIRST_USER + 2)]).next == FIRST_USER + 3
    assert next_number(None, []).next >= FIRST_USER
    assert all(FIRST_USER <= first_number().next < 2**31 for _ in range(100))


def test_nobody_but_a_source_is_ended() -> None:
    for user in (0, os.getuid(), 1000, 65534):
        with pytest.raises(UnavailableError, match="no source's"):
            end_processes(user)
    end_processes(None)


@pytest.fixture
def user() -> Iterator[int]:
    number = first_number().next
    yield number
    end_processes(number)


@alone
def test_all_that_runs_as_a_user_is_ended_and_nothing_else(user: int) -> None:
    mine, others = (started(one) for one in (user, user + 1))
    try:
        assert len(living(user)) == 2
        end_processes(user)
        assert living(user) == []
        assert others.poll() is None
        assert len(living(user + 1)) == 2
    finally:
        end_processes(user + 1)
        mine.wait()
        others.wait()


_FORKS = "trap '' TERM; setsid sh -c 'echo two; exec sleep 1000' & exec sleep 1000"


def started(user: int) -> subprocess.Popen[bytes]:
    """A process and its child, which has left its session."""
    words = ["/bin/sh", "-c", _FORKS]
    one = subprocess.Popen(words, user=user, group=user, extra_groups=[], cwd="/", stdout=subprocess.PIPE)
    assert one.stdout is not None
    assert one.stdout.readline() == b"two\n"
    return one
