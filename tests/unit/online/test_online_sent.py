"""A view that another site makes from a snapshot and the changes after it equals the view at home, whatever
happens to the tables, and to the messages in between."""

import shutil
import sqlite3
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.online.test_online_replay import Day

from gridmill.domain.service_features import SENT_FILE, SENT_FOLDER, OnlinePolicy, SentView
from gridmill.errors import DataError
from gridmill.online.features import OnlineFeatures, Status
from gridmill.online.sent_files import SendingLimits, end_sending, receive_view, write_sent_files
from gridmill.online.view import current_file, mark_damaged, open_view

FEW = SendingLimits(changes=2)


def content(folder: Path) -> dict[str, Any]:
    """All rows of a view, and the versions that it holds."""
    with closing(sqlite3.connect(current_file(folder))) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name GLOB 'feed_*'")]
        found = {name: db.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall() for name in names}
        return found | {"held": db.execute("SELECT * FROM held ORDER BY name").fetchall()}


class Pair:
    """A view at home, and the view of another site. A message is the description of the files with a copy of
    the files."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.day, self.random = Day(folder, seed), Random(seed)
        self.home, self.there, self.files = self.day.online.folder, folder / "there", folder / "messages"
        self.messages: list[tuple[SentView, Path]] = []
        self.contents: list[dict[str, Any]] = []

    def send(self, limits: SendingLimits = FEW) -> SentView:
        """Write the files at home, and copy them as a message."""
        sent = write_sent_files(self.home, self.day.online.plan(), {"sales": "p/sales@1"}, limits)
        files = self.files / str(len(self.messages))
        files.mkdir(parents=True)
        for one in sent.files():
            shutil.copyfile(self.home / SENT_FOLDER / sent.series / one.name, files / one.name)
        self.messages.append((sent, files))
        self.contents.append(content(self.home))
        return sent

    def receive(self, number: int = -1) -> None:
        sent, files = self.messages[number]
        receive_view(self.there, self.day.online.plan(), sent, files)

    def features(self, folder: Path) -> OnlineFeatures:
        online = self.day.online
        return OnlineFeatures(folder, online.plan(), clock=lambda: online.now)

    def answers(self, folder: Path, requests: list[dict[str, str]]) -> list[dict[str, Any]]:
        with closing(self.features(folder)) as features:
            rows: list[dict[str, Any]] = features.features_for(requests).columns.to_pylist()
            return rows

    def check(self) -> None:
        """Compare the rows of both views, and the features of some requests."""
        assert content(self.there) == content(self.home)
        requests = [{"shop": shop, "at": at.isoformat()} for shop, at in self.day.requests()]
        assert repr(self.answers(self.there, requests)) == repr(self.answers(self.home, requests))


def exchange(folder: Path, seed: int, steps: int) -> int:
    """Change tables and send messages, of which some are lost, doubled or late. Return the number of
    snapshots."""
    pair, series = Pair(folder, seed), set[str]()
    for _ in range(steps):
        pair.day.step()
        series.add(pair.send().series)
        for _ in range(pair.random.choice((0, 1, 1, 2))):
            late = pair.random.randrange(len(pair.messages))
            pair.receive(pair.random.choice((-1, -1, late)))
            # the view is one that the home had at some time
            assert content(pair.there) in pair.contents
        if pair.random.random() < 0.4:
            pair.receive()
            pair.check()
    pair.day.online.refresh()
    pair.send()
    pair.receive()
    pair.check()
    return len(series)


def test_any_messages_give_the_view_of_the_last_one(tmp_path: Path) -> None:
    assert exchange(tmp_path, 0, 6) > 1


@pytest.mark.long
def test_many_messages_give_the_view_of_the_last_one(tmp_path: Path) -> None:
    assert exchange(tmp_path, 1, 12) > 1


def test_a_change_is_sent_alone_and_a_time_without_changes_sends_nothing(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 0)
    first = pair.send()
    pair.day.online.now += 5
    pair.day.online.refresh()
    still = pair.send()
    assert (still.files(), still.synced_at) == (first.files(), first.synced_at + 5)
    pair.day.append()
    pair.day.step()
    pair.day.online.refresh()
    after = pair.send()
    assert (after.snapshot, len(after.changes)) == (first.snapshot, 1)
    pair.receive()
    pair.check()


def test_a_home_that_ends_between_two_files_sends_all_changes_later(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 1)
    pair.send()
    description = (pair.home / SENT_FILE).read_bytes()
    for _ in range(2):
        pair.day.append()
        pair.day.step()
        pair.day.online.refresh()
        pair.send()
        # the description was not written
        (pair.home / SENT_FILE).write_bytes(description)
    sent = pair.send()
    pair.receive()
    pair.check()
    assert sent.snapshot == pair.messages[0][0].snapshot


def test_a_damaged_file_leaves_the_view_as_it_is(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 2)
    pair.send()
    pair.receive()
    before = content(pair.there)
    pair.day.append()
    pair.day.step()
    pair.day.online.refresh()
    sent = pair.send()
    path = pair.messages[-1][1] / sent.files()[-1].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataError, match="is damaged"):
        pair.receive()
    assert content(pair.there) == before
    path.write_bytes(whole)
    pair.receive()
    pair.check()


def test_a_damaged_view_is_made_again_from_the_files(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 3)
    pair.send()
    pair.receive()
    name = current_file(pair.there).name
    mark_damaged(pair.there)
    pair.receive()
    assert current_file(pair.there).name != name
    pair.check()


def test_a_view_that_is_not_sent_any_more_records_no_changes(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 8)
    pair.send()
    end_sending(pair.home, pair.day.online.plan())
    pair.day.append()
    pair.day.step()
    pair.day.online.refresh()
    assert not (pair.home / SENT_FILE).exists()
    assert not (pair.home / SENT_FOLDER).exists()
    with closing(open_view(pair.home, pair.day.online.plan())) as view:
        assert view.recorded() == []
    pair.send()
    pair.receive()
    pair.check()


def test_a_view_that_is_too_large_is_not_sent(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 4)
    sent = pair.send(SendingLimits(view_bytes=1000))
    assert not sent.files()
    assert "views of more than 1000 B are not sent" in sent.problem


def test_an_interrupted_copy_is_begun_again_and_the_old_view_serves_meanwhile(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 5)
    pair.send()
    pair.receive()
    before = content(pair.there)
    pair.day.online.build()
    sent = pair.send()
    assert sent.series != pair.messages[0][0].series
    assert sent.snapshot is not None
    path = pair.messages[-1][1] / sent.snapshot.name
    moved = path.rename(path.with_name("moved"))
    with suppress(Exception):
        pair.receive()
    assert content(pair.there) == before
    moved.rename(path)
    pair.receive()
    pair.check()


def test_ages_are_measured_by_the_clock_of_the_home(tmp_path: Path) -> None:
    """The clock of the other site is 1 hour ahead; the home has not sent anything for 10 minutes."""
    pair = Pair(tmp_path, 6)
    sent, online = pair.send(), pair.day.online
    files = pair.messages[-1][1]
    receive_view(pair.there, online.plan(), sent, files, ahead_seconds=3600.0)
    for seconds, is_stale in ((599.0, False), (601.0, True)):
        features = OnlineFeatures(
            pair.there,
            online.plan(),
            policy=OnlinePolicy(stale_after_seconds=600.0),
            clock=partial(float, online.now + 3600.0 + seconds),
        )
        statuses = features.features_for([{"shop": "a"}]).statuses
        features.close()
        assert (Status.STALE in {one for each in statuses.values() for one in each}) == is_stale
