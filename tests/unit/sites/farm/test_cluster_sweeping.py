"""What is left in buckets is removed: what this process does not use, and what others have left."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.kit.little_bucket import LittleBucket, little_bucket

from gridmill.domain.route import Staging
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import UnavailableError
from gridmill.sites.farm.carrier_choice import (
    HOLDS,
    LATE_SECONDS,
    LIVE,
    BucketCollector,
    BucketEndpoints,
    BucketPrefix,
    BucketPrefixes,
    SiteBuckets,
)
from gridmill.transfer.bucket_cache import BucketCache
from gridmill.transfer.bucket_exchange import ExportBucketEndpoint, UniqueNames
from gridmill.transfer.stream import Chunk, hash_of

URL = "s3://exchange/me/far"


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


class Process:
    """A home's, from its start on."""

    def __init__(self, folder: Path, buckets: dict[str, LittleBucket], clock: Clock) -> None:
        self.buckets, self.uses, self.lots = buckets, UniqueNames(clock), BucketPrefixes(folder / "lots")
        opens = (self.open, lambda lot: BucketCache(self.open(lot)))
        self.sweeper = BucketCollector("far", self.lots, self.uses, opens, folder / "swept", 3600.0, clock)

    def open(self, lot: BucketPrefix) -> LittleBucket:
        return self.buckets[lot.url]

    def put(self, url: str = URL) -> str:
        self.lots.begin(BucketPrefix(url=url, folder=self.uses.folder))
        name = self.uses.begin()
        self.buckets[url].put(name, b"x")
        return name


@pytest.fixture
def bucket() -> Iterator[LittleBucket]:
    with little_bucket() as made:
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path, bucket: LittleBucket, clock: Clock) -> Process:
    return Process(tmp_path, {URL: bucket}, clock)


def test_what_is_in_use_stays_and_what_comes_late_goes(home: Process, bucket: LittleBucket) -> None:
    used, over = home.put(), home.put()
    home.uses.end(over)
    bucket.put("of/another", b"x")
    home.sweeper.sweep_unused()
    assert set(bucket.objects) == {used, "of/another"}
    home.uses.end(used)
    home.sweeper.sweep_unused()
    bucket.put(used, b"the farm was slow")
    home.sweeper.sweep_unused()
    assert set(bucket.objects) == {"of/another"}


def test_a_bucket_that_nothing_was_put_into_for_long_is_not_looked_at(home: Process, clock: Clock) -> None:
    home.uses.end(home.put())
    clock.now += LATE_SECONDS
    home.buckets.clear()  # to look would fail
    home.sweeper.sweep_unused()


def test_what_a_killed_process_left_goes_and_what_comes_of_it_later(
    tmp_path: Path, home: Process, bucket: LittleBucket, clock: Clock
) -> None:
    left = home.put()
    for _ in range(3):  # it is started again and again
        again = Process(tmp_path, home.buckets, clock)
        again.sweeper.sweep_unused()
        assert bucket.objects == {}
        clock.now += LATE_SECONDS / 2 - 1
        bucket.put(left, b"the farm was slow")
    again.sweeper.sweep_unused()
    assert bucket.objects == {}
    assert len(again.lots.all()) == 1
    clock.now += LATE_SECONDS
    again.sweeper.sweep_unused()
    assert again.lots.all() == ()


def test_a_bucket_that_is_used_no_more_is_still_swept_and_none_holds_up_another(
    tmp_path: Path, home: Process, bucket: LittleBucket, clock: Clock
) -> None:
    with little_bucket() as other:
        home.buckets["s3://other"] = other
        for url in home.buckets:
            home.put(url)
        for fails, works in ((bucket, other), (other, bucket)):
            fails.fails_to_remove, works.fails_to_remove = True, False
            Process(tmp_path, home.buckets, clock).sweeper.sweep_unused()
            assert works.objects == {}
        other.fails_to_remove = False
        Process(tmp_path, home.buckets, clock).sweeper.sweep_unused()
        assert other.objects == {}


def test_what_was_kept_goes_after_its_time_also_from_a_bucket_that_is_used_no_more(
    tmp_path: Path, home: Process, bucket: LittleBucket, clock: Clock
) -> None:
    lot = BucketPrefix(url=URL)
    home.lots.begin(lot)
    BucketCache(bucket).send([Chunk(hash=hash_of(b"x"), data=b"x")])
    put_at = max(bucket.put_at.values())
    home.sweeper.sweep_old(datetime.fromtimestamp(put_at + 3500, UTC))
    assert bucket.objects
    again = Process(tmp_path, home.buckets, clock)
    home.sweeper.sweep_old(datetime.fromtimestamp(put_at + 3700, UTC))
    assert bucket.objects == {}
    assert again.lots.all() == (lot,)  # whoever has begun it may go on
    again.sweeper.sweep_old(datetime.fromtimestamp(put_at + 3700, UTC))
    assert again.lots.all() == ()


def test_what_a_farm_gives_that_does_not_answer_any_more_goes(home: Process, bucket: LittleBucket) -> None:
    class Dying:
        def give(self, parcel: object) -> None:
            (name,) = home.uses._names
            bucket.put(name, b"x")
            raise UnavailableError("killed")

    home.lots.begin(BucketPrefix(url=URL, folder=home.uses.folder))
    way = ExportBucketEndpoint(Dying(), bucket, {"0" * 64: 1}, home.uses)  # type: ignore[arg-type]
    bucket.fails_to_remove = True
    with pytest.raises(UnavailableError, match="killed"):
        list(way.fetch(["0" * 64]))
    assert len(bucket.objects) == 1
    bucket.fails_to_remove = False
    home.sweeper.sweep_unused()
    assert bucket.objects == {}


def test_when_a_site_is_removed_nothing_is_left_but_what_others_keep(
    tmp_path: Path, home: Process, bucket: LittleBucket, clock: Clock
) -> None:
    with little_bucket() as other:
        lots = tuple(BucketPrefix(url=url) for url in (URL, "s3://other"))
        home.buckets["s3://other"] = other
        for lot in lots:
            home.lots.begin(lot)
            BucketCache(home.open(lot)).send([Chunk(hash=hash_of(b"x"), data=b"x")])
            home.put(lot.url)
        Process(tmp_path, home.buckets, clock).put()
        home.sweeper.clear([lots[0], BucketPrefix(url="s3://other", folder="a")])
        assert [name.partition("/")[0] for name in bucket.objects] == ["chunks"]
        assert other.objects == {}
        assert [lot for lot in home.lots.all() if not lot.folder] == [], "what others keep is noted by them"


def test_a_site_that_is_added_again_meanwhile_has_what_is_kept(
    home: Process, bucket: LittleBucket, caplog: pytest.LogCaptureFixture
) -> None:
    lot, sought = BucketPrefix(url=URL), list[str]()
    home.lots.begin(lot)
    BucketCache(bucket).send([Chunk(hash=hash_of(b"x"), data=b"x")])
    HOLDS.hold(lot)
    with caplog.at_level(logging.INFO):
        home.sweeper.clear(())
    assert f"bucket_not_cleared site=far url={URL}" in caplog.text
    assert len(bucket.objects) == 1
    assert home.lots.all() == (lot,), "it is looked after"
    HOLDS.release(lot)

    def remove(name: str) -> None:
        with pytest.raises(UnavailableError, match="still being deleted") as told:
            HOLDS.hold(lot)
        assert "continues automatically" in told.value.hint
        sought.append(name)

    bucket.remove = remove  # type: ignore[method-assign]
    home.sweeper.clear(())
    assert sought == list(bucket.objects)
    assert home.lots.all() == ()
    HOLDS.hold(lot)
    HOLDS.release(lot)


def test_a_note_of_a_bucket_that_is_damaged_harms_no_other(tmp_path: Path) -> None:
    lots, lot = BucketPrefixes(tmp_path), BucketPrefix(url=URL, folder="a")
    lots.begin(lot)
    (tmp_path / "damaged.json").write_bytes(b"{")
    assert lots.all() == (lot,)
    assert BucketPrefixes(tmp_path).over(lot, 5.0).over == 5.0
    assert BucketPrefixes(tmp_path).over(BucketPrefixes(tmp_path).all()[0], 9.0).over == 5.0
    assert BucketPrefixes(tmp_path).over(BucketPrefixes(tmp_path).all()[0], 1.0).over == 1.0


def test_a_second_port_of_the_site_leaves_what_the_first_is_using(
    tmp_path: Path, bucket: LittleBucket, clock: Clock
) -> None:
    first, second = (Process(tmp_path, {URL: bucket}, clock) for _ in range(2))
    name = first.put()
    LIVE.add(first.uses.folder)
    try:
        second.sweeper.sweep_unused()
        second.sweeper.clear(())
        second.put()
        second.sweeper.sweep_old(datetime.fromtimestamp(bucket.put_at[name] + 7200, UTC))
        assert name in bucket.objects
    finally:
        LIVE.discard(first.uses.folder)
    second.sweeper.sweep_unused()
    assert name not in bucket.objects


def test_the_notes_of_buckets_of_rented_machines_outlive_the_machines(tmp_path: Path) -> None:
    root = f"file://{tmp_path}/bucket"
    site = Site(name="burst", kind=SiteKind.CLOUD, settings={})
    machine = BucketEndpoints(object(), site, "me", tmp_path / "buckets/burst", is_of_machines=True)  # type: ignore[arg-type]
    of_site = SiteBuckets(site, "me", tmp_path / "buckets/burst", is_of_machines=True)
    machine._site.settings["shared"] = root  # type: ignore[index]  # the settings take none that is a folder
    machine.endpoint(Staging.SHARED, {})
    notes = {lot.url for lot in BucketPrefixes(tmp_path / "buckets/burst/lots").all()}
    # exported results are below me/burst, and must not count as unneeded data of a transfer
    assert notes == {f"{root}/kept/me", f"{root}/me/burst/transfers"}
    of_site.sweeper.sweep_old(datetime.now(UTC))
    assert len(BucketPrefixes(tmp_path / "buckets/burst/lots").all()) == 2, "a machine uses both places"
    machine.close()
    of_site.sweeper.sweep_old(datetime.now(UTC))
    [left] = BucketPrefixes(tmp_path / "buckets/burst/lots").all()
    assert left.folder, "only the note of the late objects of the machine is left"
    of_site.close()
