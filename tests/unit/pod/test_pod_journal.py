import errno
import os

import pytest

from gridmill.domain.pod_protocol import EventType
from gridmill.pod.journal import Journal, read_journal


def fill(journal, count, text="x"):
    for _ in range(count):
        journal.append("p-1.j.1", "token", 1.0, EventType.LOG, {"stream": "out", "text": text})
    journal.flush()


def numbers(events):
    return [event.number for event in events]


def everything_after(journal, number):
    found = []
    while events := journal.after(number, limit_bytes=2000):
        found += numbers(events)
        number = events[-1].number
    return found


def test_numbers_count_from_one_without_gaps(tmp_path):
    journal = Journal(tmp_path)
    fill(journal, 5)
    assert numbers(journal.after(0)) == [1, 2, 3, 4, 5]
    assert numbers(journal.after(3)) == [4, 5]
    assert journal.after(5) == ()


def test_a_batch_is_bounded_but_never_empty(tmp_path):
    journal = Journal(tmp_path)
    fill(journal, 10, "y" * 1000)
    assert numbers(journal.after(0, limit_bytes=1)) == [1]
    assert len(journal.after(0, limit_bytes=5000)) < 10


def test_what_no_longer_fits_in_memory_is_read_back_from_disk(tmp_path):
    journal = Journal(tmp_path, segment_bytes=50_000)
    for _ in range(30):
        fill(journal, 10, "y" * 10_000)
    assert everything_after(journal, 0) == list(range(1, 301))
    assert everything_after(journal, 123) == list(range(124, 301))


def test_acknowledged_segments_are_deleted_and_the_rest_stays_readable(tmp_path):
    journal = Journal(tmp_path, segment_bytes=10_000)
    for _ in range(20):
        fill(journal, 5, "y" * 1000)
    before = len(list(tmp_path.iterdir()))
    journal.acknowledge(60)
    assert 0 < len(list(tmp_path.iterdir())) < before
    assert everything_after(journal, 60) == list(range(61, 101))
    journal.acknowledge(100)
    assert list(tmp_path.iterdir()) == []
    fill(journal, 1)
    assert numbers(journal.after(100)) == [101]


def test_acknowledging_less_than_before_changes_nothing(tmp_path):
    journal = Journal(tmp_path)
    fill(journal, 3)
    journal.acknowledge(3)
    journal.acknowledge(1)
    assert journal.acknowledged == 3


def test_it_is_full_at_its_cap_until_acknowledged(tmp_path):
    journal = Journal(tmp_path, cap_bytes=20_000, segment_bytes=5_000)
    while not journal.full:
        fill(journal, 1, "z" * 500)
    journal.acknowledge(journal.last)
    assert not journal.full


def test_a_torn_last_line_is_left_out(tmp_path):
    journal = Journal(tmp_path)
    fill(journal, 3)
    journal.close()
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes() + b'{"number":4,"att')
    assert numbers(read_journal(tmp_path)) == [1, 2, 3]


def test_a_full_disk_loses_nothing_and_tears_no_line(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    fill(journal, 1)
    room = [20]
    real_write = os.write

    def write(descriptor, data):
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real_write(descriptor, bytes(data)[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", write)
    fill(journal, 3)
    assert numbers(journal.after(0)) == [1, 2, 3, 4]
    assert numbers(read_journal(tmp_path)) == [1]
    room[0] = 10_000
    journal.flush()
    assert numbers(read_journal(tmp_path)) == [1, 2, 3, 4]


def test_a_disk_that_stays_full_holds_the_jobs_back(tmp_path, monkeypatch):
    journal = Journal(tmp_path, segment_bytes=2_000)

    def write(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    fill(journal, 20, "x" * 200)
    assert journal.full
    journal.acknowledge(journal.last)
    assert not journal.full


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_reading_in_small_steps_gives_each_event_once(tmp_path, cut):
    journal = Journal(tmp_path, segment_bytes=3_000)
    for _ in range(cut):
        fill(journal, 7, "w" * 3)
    assert everything_after(journal, 0) == list(range(1, 7 * cut + 1))
