"""Random histories of a Redis stream: entries come and go, others consume them, loads are killed and cut off.

After each load the sink's table is compared with the plain rules of `databases`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from deltalake.exceptions import TableNotFoundError

from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.domain.source import Source, StreamSource
from gridmill.errors import DataError, UnavailableError
from gridmill.jobs.sink.run import run
from tests.kit.redisserver import PASSWORD
from tests.kit.sink_case import SinkCase
from tests.oracles.database_places import redis_place
from tests.oracles.databases import Entry, Id, StreamTable, entry_row, shown
from tests.oracles.dying import STEPS, at_step, load_and_die

FIELDS = ("a", "b", "Größe", "x y")
VALUES = ("", "01234", "1e5", "ä", "😀", "null", "true", "2024-01-01", '"', "\\", "a\nb", "x" * 300)


class Stream:
    """A stream as it is now, and the sink that reads it."""

    def __init__(self, random: Random, folder: Path, server: redis.Redis, port: int, key: str) -> None:
        self.random, self.server, self.key, self.port = random, server, key, port
        self.case = SinkCase(folder)
        self.entries: list[Entry] = []
        self.last: Id = (random.choice((0, 1_711_846_800_000, 253_402_300_000_000)), 0)
        self.model = StreamTable()
        if random.random() < 0.2:
            server.xgroup_create(key, "first", mkstream=True)
        else:
            self.add()

    def spec(self, max_rows: int) -> SinkSpec:
        url = f"redis://:${{env:REDIS_PASSWORD}}@127.0.0.1:{self.port}/0"
        source = Source(stream=StreamSource(url=url, key=self.key, max_rows=max_rows))
        return SinkSpec(source=source, columns={"n": ColumnType.INTEGER})

    def add(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            moment, number = self.last
            self.last = (
                (moment, number + 1)
                if self.random.random() < 0.4
                else (moment + self.random.randint(1, 9999), 0)
            )
            fields = {
                name: self.random.choice(VALUES)
                for name in self.random.sample(FIELDS, self.random.randint(0, 3))
            }
            fields["n"] = str(self.random.randint(-(2**63), 2**63 - 1))
            self.server.xadd(self.key, fields, id=f"{self.last[0]}-{self.last[1]}")
            self.entries.append((self.last, fields))

    def delete(self) -> None:
        for entry in self.random.sample(self.entries, min(2, len(self.entries))):
            self.server.xdel(self.key, _id(entry))
            self.entries.remove(entry)

    def trim(self) -> None:
        """Anywhere, also beyond what is loaded."""
        kept = self.random.randint(0, len(self.entries))
        self.server.xtrim(self.key, maxlen=kept, approximate=False)
        self.entries = self.entries[len(self.entries) - kept :]

    def consume(self) -> None:
        """A reader of a group reads, acknowledges some and dies; another one claims the rest."""
        group = f"g{self.random.randint(0, 2)}"
        if not any(one["name"] == group.encode() for one in self.server.xinfo_groups(self.key)):
            self.server.xgroup_create(self.key, group, id=self.random.choice(("0", "$")))
        found: Any = self.server.xreadgroup(group, "one", {self.key: ">"}, count=self.random.randint(1, 4))
        ids = [identity for _, entries in found for identity, _ in entries]
        if ids and self.random.random() < 0.5:
            self.server.xack(self.key, group, *ids[: self.random.randint(1, len(ids))])
        self.server.xautoclaim(self.key, group, "two", min_idle_time=0)
        if self.random.random() < 0.2:
            self.server.xgroup_destroy(self.key, group)

    def change(self) -> None:
        acts = (self.add, self.consume, self.delete, self.trim)
        for _ in range(self.random.randint(0, 3)):
            self.random.choices(acts, (6, 3, 1, 1))[0]()

    def load(self) -> None:
        """The table has the entries of before, and the next ones: all, or none where the load was ended."""
        random, max_rows = self.random, self.random.choice((1, 3, 5, 1000, 1000))
        disturb = random.choices(("", "kill", "cut", "add"), (50, 30, 10, 10))[0]
        step = random.randint(1, STEPS)
        few = len(self._next(max_rows))
        if disturb == "kill":
            killed = load_and_die(self.case, self.spec(max_rows), step)
            self._check({few, 0} if killed else {few}, max_rows)
            return
        try:
            with at_step(step, {"cut": self._cut, "add": self.add}.get(disturb, lambda: None)):
                run(self.case.context(self.spec(max_rows)))
        except UnavailableError:
            assert disturb == "cut"
            self._check({0}, max_rows)
            return
        self._check(set(range(few, len(self._next(max_rows)) + 1)), max_rows)

    def _cut(self) -> None:
        self.server.client_kill_filter(_type="normal", skipme=True)

    def _next(self, max_rows: int) -> list[Entry]:
        return [entry for entry in self.entries if entry[0] > self.model.last][:max_rows]

    def _check(self, counts: set[int], max_rows: int) -> None:
        found = self.table()
        count = len(found) - len(self.model.entries)
        assert count in counts, f"{count} entries, not {counts}"
        self.model.load(self.entries, count)
        wanted = sorted(_shown(entry_row(entry, (*FIELDS, "n"))) for entry in self.model.entries)
        assert found == wanted, f"found: {found}\nwanted: {wanted}"

    def table(self) -> list[str]:
        try:
            return sorted(map(_shown, self.case.table().to_pylist()))
        except TableNotFoundError:
            return []

    def spoil(self) -> None:
        """An entry that cannot be read stops the load and is named, until it is removed."""
        self.last = (self.last[0] + 1, 0)
        bad = (self.last, {})
        fields: dict[Any, Any] = self.random.choice(({b"\xff": b"1"}, {b"n": b"1", b"a": b"\xff\xfe"}))
        self.server.xadd(self.key, fields, id=_id(bad))
        before = self.table()
        with pytest.raises(DataError, match=_id(bad)):
            run(self.case.context(self.spec(1000)))
        assert self.table() == before
        self.server.xdel(self.key, _id(bad))


def _id(entry: Entry) -> str:
    return f"{entry[0][0]}-{entry[0][1]}"


def _shown(row: dict[str, object]) -> str:
    """The values that are there."""
    values = {
        name: int(value) if name == "n" and isinstance(value, str) else value
        for name, value in row.items()
        if value is not None
    }
    return ", ".join(f"{name}={shown(value)}" for name, value in sorted(values.items()))


@contextmanager
def _stream(random: Random, seed: int, folder: Path) -> Iterator[Stream]:
    port = redis_place()
    os.environ["REDIS_PASSWORD"] = PASSWORD
    key = f"clicks-{seed}"
    with redis.Redis(port=port, password=PASSWORD) as server:
        server.delete(key)
        yield Stream(random, folder, server, port, key)
        server.delete(key)


def case(seed: int, folder: Path) -> None:
    """One stream, one history."""
    random = Random(seed)
    with _stream(random, seed, folder) as stream:
        for _ in range(random.randint(5, 10)):
            stream.change()
            if random.random() < 0.05:
                stream.spoil()
            stream.load()
