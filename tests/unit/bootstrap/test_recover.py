"""A store that is lost beside a full storage root is refused, and made again from what lies there."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gridmill.bootstrap.home_lock import home_secret, lock_home, open_store, open_store_as_it_is
from gridmill.bootstrap.recover import recover
from gridmill.control.counters import FLOOR
from gridmill.domain.artifact import LATEST, Alias, Artifact, ArtifactKind, Latest, Output
from gridmill.domain.job import JobKind
from gridmill.domain.provenance import Provenance
from gridmill.domain.resource import Resource
from gridmill.domain.schedule import Schedule, ScheduleSpec
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.version_manifest import AliasMove
from gridmill.errors import HomeInUseError, StorageError
from gridmill.ports.store import Put, Store
from gridmill.settings import Settings
from gridmill.storage.manifests import keep_manifest, note_move
from gridmill.storage.recovery import DeclaredCopies, claims
from gridmill.storage.root import claim
from gridmill.stores import sql
from gridmill.stores.rows import CLASSES

MARK, NAME = "0123456789abcdef", "weather/model"
BIG = Resource(name="big", type=JobKind.TRAINING, site="local", gpus=1)
HOURLY = Schedule(name="weather", spec=ScheduleSpec(every_seconds=3600.0), since=100.0, done=200.0, runs=4)


def version(number: int) -> Artifact:
    run = f"weather-{number + 3}"
    output = Output(kind=ArtifactKind.MODEL, uri=f"models/{NAME}/{run}.model.1")
    return Artifact(
        id=f"{NAME}@{number}",
        name=NAME,
        number=number,
        output=output,
        fingerprint=f"f{number}",
        run_id=run,
        attempt_id=f"{run}.model.1",
        parameters={"n": number},
    )


def provenance(number: int) -> Provenance:
    return Provenance(name=NAME, fingerprint=f"f{number}", format=4, artifact=f"{NAME}@{number}")


def alias(number: int) -> Alias:
    return Alias(id=f"{NAME}@good", name=NAME, alias="good", number=number, changed=2.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a home with three versions, an alias, and what a user declared, in its store and beside it."""
    home = tmp_path / "home"
    settings = Settings(home=home, root=home / "storage")
    home.mkdir()
    root = settings.root
    claim(root, "weather", MARK, str(home))
    for number in (1, 2, 3):
        (root / version(number).output.uri).mkdir(parents=True)
        keep_manifest(root, version(number), "", provenance=provenance(number))
    for move in (
        AliasMove(time=1.0, name=NAME, alias="good", before="", after=f"{NAME}@1", by="ada"),
        AliasMove(time=2.0, name=NAME, alias="good", before=f"{NAME}@1", after=f"{NAME}@2", by="ada"),
        AliasMove(time=2.0, name=NAME, alias="old", before="", after=f"{NAME}@1", by="ada"),
        AliasMove(time=3.0, name=NAME, alias="old", before=f"{NAME}@1", after="", by="ada"),
        AliasMove(time=3.0, name=NAME, alias=LATEST, before="", after=f"{NAME}@2", by="weather-5"),
    ):
        note_move(root, move)
    DeclaredCopies(root, MARK).keep([BIG, HOURLY, *declared()])
    with closing(open_store_as_it_is(settings)) as store:
        put(store, local(), *declared(), BIG, HOURLY, *map(version, (1, 2, 3)), *map(provenance, (1, 2, 3)))
        put(store, alias(2), Latest(name=NAME, artifact=f"{NAME}@2", run="weather-5", order=7))
    return settings


def local(mark: str = MARK) -> Site:
    return Site(name="local", kind=SiteKind.LOCAL, settings={"store": mark})


def declared() -> tuple[Site, ...]:
    return (Site(name="cluster", kind=SiteKind.SLURM, settings={"partition": "a b/c"}),)


def put(store: Store, *nouns) -> None:
    store.commit([Put(noun=noun, expected=0) for noun in nouns])


def content(settings: Settings) -> dict[str, str]:
    """All records, but what a recovery gives anew: the order of runs, and times of schedules."""
    with closing(open_store(settings)) as store:
        nouns = [record.noun for kind in CLASSES.values() for record in store.list(kind)]
    nouns = [replace(noun, order=0) if isinstance(noun, Latest) else noun for noun in nouns]
    nouns = [
        replace(noun, done=0.0, runs=0, message="") if isinstance(noun, Schedule) else noun for noun in nouns
    ]
    return {f"{type(noun).__name__} {getattr(noun, 'id', '') or noun.name}": repr(noun) for noun in nouns}


def delete(settings: Settings) -> None:
    (settings.home / "store.db").unlink()


def empty(settings: Settings) -> None:
    (settings.home / "store.db").write_bytes(b"")


def fresh(settings: Settings) -> None:
    delete(settings)
    sql.make(settings.home / "store.db").close()


def foreign(settings: Settings) -> None:
    delete(settings)
    with closing(sql.make(settings.home / "store.db")) as store:
        put(store, local("another"))


def rubbish(settings: Settings) -> None:
    (settings.home / "store.db").write_bytes(Random(1).randbytes(20_000))


def other_tables(settings: Settings) -> None:
    delete(settings)
    with closing(sqlite3.connect(settings.home / "store.db")) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")


def truncated(settings: Settings) -> None:
    path = settings.home / "store.db"
    path.write_bytes(path.read_bytes()[: 3 * 4096 + 100])


WAYS = (delete, empty, fresh, foreign, rubbish, other_tables, truncated)


@pytest.mark.parametrize("lose", WAYS)
def test_a_lost_store_is_refused_and_then_recovered(settings: Settings, lose: Callable[[Settings], None]):
    before = content(settings)
    lose(settings)
    files = {path: path.read_bytes() for path in settings.home.rglob("*") if path.is_file()}
    with pytest.raises(StorageError) as refused:
        open_store(settings)
    assert "gridmill recover" in (refused.value.hint or "")
    dry = recover(settings, dry_run=True)
    assert len(dry.restored) + dry.present + sum(dry.salvaged.values()) >= 7
    changed = {p for p, data in files.items() if p.name != "control.lock" and p.read_bytes() != data}
    assert changed <= {settings.home / "store.db"}  # as SQLite opens it
    done = recover(settings, dry_run=False)
    assert done.restored == dry.restored
    assert content(settings) == before
    assert not list(settings.home.glob(".recover-*"))
    again = recover(settings, dry_run=False)
    assert (again.restored, again.problems, again.kept_at) == ((), (), "")
    assert content(settings) == before
    if lose in (foreign, rubbish, other_tables, truncated):
        assert Path(done.kept_at).read_bytes()[100:1000] == files[settings.home / "store.db"][100:1000]


def test_numbers_go_on_behind_all_that_may_have_been_given(settings: Settings):
    (settings.home / "pods" / "big-1204.0").mkdir(parents=True)
    (settings.root / "models" / NAME / "weather-9.model.2").mkdir()
    delete(settings)
    recover(settings, dry_run=False)
    with closing(open_store(settings)) as store:
        assert store.counters() == {"weather": 9, "big": 1204, FLOOR: 2000}


def test_a_store_that_can_be_used_gets_what_it_lacks(settings: Settings):
    before = content(settings)
    with closing(sqlite3.connect(settings.home / "store.db")) as connection, connection:
        connection.execute(
            "UPDATE record SET checksum = checksum + 1 WHERE noun IN ('Artifact', 'Resource') AND key <> ?",
            (f"{NAME}@2",),
        )
    done = recover(settings, dry_run=False)
    assert set(done.restored) == {f"version {NAME}@1", f"version {NAME}@3", "resource big"}
    assert (done.problems, done.lost) == ((), ())
    assert content(settings) == before
    with closing(open_store(settings)) as store:
        assert all(one.told for one in store.check())
        assert FLOOR not in store.counters()


def test_the_damaged_record_of_the_site_does_not_make_the_store_foreign(settings: Settings):
    with closing(sqlite3.connect(settings.home / "store.db")) as connection, connection:
        connection.execute("UPDATE record SET checksum = 1 WHERE noun = 'Site' AND key = 'local'")
    with closing(open_store(settings)) as store:
        assert store.get(Artifact, f"{NAME}@1") is not None
    recover(settings, dry_run=False)
    with closing(open_store(settings)) as store:
        site = store.get(Site, "local")
        assert site is not None
        assert site.noun.settings["store"] == MARK


def test_what_cannot_be_restored_is_named_with_the_reason(settings: Settings):
    root = settings.root
    (root / f"manifests/{NAME}/1.json").write_bytes(b"{")
    (root / version(2).output.uri).rmdir()
    (root / f"records/{MARK}/Resource/big.json").write_bytes(b"\0")
    delete(settings)
    done = recover(settings, dry_run=False)
    assert {what for what, _ in done.problems} == {
        f"version {NAME}@1",
        f"version {NAME}@2",
        f"alias {NAME}@good",
        "resource big",
    }
    assert f"version {NAME}@3" in done.restored
    assert any("runs" in what for what in done.lost)


def test_pipelines_of_other_homes_are_left_alone(settings: Settings, tmp_path: Path):
    claim(settings.root, "storm", "ffff", str(tmp_path / "elsewhere"))
    other = replace(version(1), id="storm/model@1", name="storm/model")
    keep_manifest(settings.root, other, "")
    delete(settings)
    recover(settings, dry_run=False)
    assert "Artifact storm/model@1" not in content(settings)
    marks = {one.pipeline: one.mark for one in claims(settings.root)}
    assert marks == {"weather": MARK, "storm": "ffff"}


def test_a_new_home_beside_a_root_of_others_is_not_refused(settings: Settings, tmp_path: Path):
    new = replace(settings, home=tmp_path / "new")
    new.home.mkdir()
    open_store(new).close()


def test_a_home_that_is_in_use_is_not_recovered(settings: Settings):
    with closing(lock_home(settings.home)), pytest.raises(HomeInUseError) as refused:
        recover(settings, dry_run=False)
    assert refused.value.hint == "Stop the control node first: `gridmill down`."


def test_a_damaged_secret_is_said_to_be_one(tmp_path: Path):
    (tmp_path / "secret").write_text("rubbish")
    with pytest.raises(StorageError, match="the key file is damaged"):
        home_secret(tmp_path)
