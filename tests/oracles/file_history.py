"""Random histories of the files of a source: what happens to them between two loads."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from tests.oracles.file_drawing import (
    FLAVOURS,
    Column,
    Style,
    drawn_cell,
    drawn_rows,
    drawn_style,
    file_of,
)
from tests.oracles.files import SourceFile
from tests.oracles.values import Cell

NAMES = ("a", "b", "c", "d", "day-1", "day-2", "z", "B", "ä")


class History:
    """Files as they are now.

    `keeps_time` says that a file that gets another name keeps its time; `named` that the source names each
    of `names`, so that no other is looked for, and all of them have to be there.
    """

    def __init__(
        self,
        random: Random,
        *,
        keeps_time: bool = True,
        names: tuple[str, ...] = NAMES,
        named: bool = False,
    ) -> None:
        self.random, self.names, self.keeps_time, self.named = random, names, keeps_time, named
        self.style: Style = drawn_style(random)
        self.columns = self._drawn_columns()
        self.files: dict[str, SourceFile] = {}
        self.past: list[SourceFile] = []
        self.bad: dict[str, SourceFile | None] = {}
        self.clock = 1_700_000_000.0
        self.log: list[str] = []
        for name in self.wanted:
            self._write(name, self._columns_of())

    def _drawn_columns(self) -> list[Column]:
        flavours = [self.random.choice(FLAVOURS) for _ in range(self.random.randint(2, 6))]
        columns = [
            Column(f"c{number}", flavour, self.random.choice([0, 0, 0.2]))
            for number, flavour in enumerate(flavours)
        ]
        return [Column("id", "small"), *columns]

    @property
    def no_texts(self) -> tuple[str, ...]:
        """Flavours whose values are not declared texts."""
        return {"csv": (), "jsonl": ("float",), "parquet": ("date", "timestamp", "float")}[self.style.form]

    @property
    def now(self) -> list[SourceFile]:
        files = [*self.files.values()]
        return files if self.keeps_time else [replace(file, modified=None) for file in files]

    @property
    def wanted(self) -> tuple[str, ...]:
        """Files that have to be there."""
        return tuple(stem + self.style.suffix for stem in self.names) if self.named else ()

    # What may happen.

    def step(self) -> None:
        """A few things happen; what a load was told to refuse is put right, most often."""
        if self.bad and self.random.random() < 0.85:
            self.mend()
        for _ in range(self.random.choice([0, 1, 1, 2, 3])):
            self.random.choice(self.operations)()

    @property
    def operations(self) -> list[Callable[[], None]]:
        common = [
            self.add,
            self.add,
            self.change,
            self.append,
            self.remove,
            self.rename,
            self.back,
            self.copy,
        ]
        rare = [
            self.twins,
            self.twins,
            self.swap,
            self.over,
            self.same_size,
            self.header_only,
            self.reorder,
            self.more_columns,
        ]
        wrong = [self.wider, self.misfit, self.fewer_columns, self.ragged, self.empty]
        if self.named:
            fixed = [self.change, self.change, self.append, self.swap, self.back, self.copy, self.lose]
            return fixed * 3 + rare[4:] * 2 + wrong
        return common * 3 + rare * 2 + wrong

    def add(self) -> None:
        self._write(self._free_name(), self._columns_of())

    def change(self) -> None:
        if name := self._some():
            self._write(name, self._columns_of())

    def append(self) -> None:
        if name := self._some():
            old = self.files[name]
            columns = [one for one in self.columns if one.name in old.header] or self.columns
            more = drawn_rows(self.random, columns, self.style, self.random.randint(1, 3))
            known = {one.name: one.kind for one in columns}
            same = {*old.header} <= known.keys() and old.kinds.items() <= known.items()
            rows = [*old.rows, *more] if same else more
            self._put(name, columns, rows)

    def same_size(self) -> None:
        """Another value of as many characters, at another time."""
        if (name := self._some()) and self.files[name].rows:
            old = self.files[name]
            digits = {"1": "2", "2": "3", "3": "1"}
            cell = old.rows[0].get("id")
            if isinstance(cell, str) and set(cell) & set(digits):
                text = "".join(digits.get(sign, sign) for sign in cell)
                self._put(name, self._known(old), [{**old.rows[0], "id": text}, *old.rows[1:]])

    def remove(self) -> None:
        if name := self._some():
            self._log("remove", name)
            self._passed(name)
            self.files.pop(name)
            self.bad.pop(name, None)

    def twins(self) -> None:
        """Of two files of the same content and time one goes, the other moves, perhaps for a new one."""
        if name := self._some():
            file = self.files[name]
            alike = [one for one in self.now if one == replace(file, name=one.name) and one.name != name]
            if alike:
                self._log("remove", alike[0].name)
                self.files.pop(alike[0].name)
            if alike or any(replace(one, name=name) == file for one in self.past):
                self._move(name, self._free_name())
                self._write(name, self._columns_of()) if self.random.random() < 0.5 else None
            else:
                self._log("copy", name)
                free = self._free_name()
                self.files[free] = replace(file, name=free)
                self._copied_badness(name, free)

    def lose(self) -> None:
        """A file is away that has to be there."""
        if (name := self._some()) and name not in self.bad:
            self._log("lose", name)
            self.bad[name] = self.files.pop(name)

    def rename(self) -> None:
        if name := self._some():
            self._move(name, self._free_name())

    def over(self) -> None:
        """A file takes the place of another one."""
        if (name := self._some()) and (other := self._some()) and name != other:
            self._passed(other)
            self._move(name, other)

    def swap(self) -> None:
        if (name := self._some()) and (other := self._some()) and name != other:
            self._move(name, "aside")
            self._move(other, name)
            self._move("aside", other)

    def copy(self) -> None:
        """Sometimes with its time, as `cp -p` does."""
        if name := self._some():
            free, file = self._free_name(), self.files[name]
            self._log("copy", name, free)
            time = file.modified if self.random.random() < 0.3 else self._tick()
            self.files[free] = replace(file, name=free, modified=time)
            self._copied_badness(name, free)

    def back(self) -> None:
        """A file that was there once comes back, under its name or another, as it was or at a new time."""
        if self.past:
            old = self.random.choice(self.past)
            name = old.name if self.random.random() < 0.6 else self._free_name()
            time = old.modified if self.random.random() < 0.5 else self._tick()
            self._log("back", old.name, name)
            self.bad.pop(name, None)
            self.files[name] = replace(old, name=name, modified=time)

    def header_only(self) -> None:
        name = self._some() or self._free_name()
        self._put(name, self._columns_of(), [])

    def reorder(self) -> None:
        columns = self._columns_of()
        self.random.shuffle(columns)
        self._write(self._some() or self._free_name(), columns)

    def more_columns(self) -> None:
        new = Column(f"x{self.random.randint(0, 2)}", self.random.choice(FLAVOURS))
        if new.name not in {one.name for one in self.columns}:
            self.columns.append(new)
        self._write(self._some() or self._free_name(), [*self.columns])

    def wider(self) -> None:
        """Fractions where there were whole numbers, times where there were dates."""
        wider = {"small": "float", "date": "timestamp"}
        chosen = [at for at, one in enumerate(self.columns) if one.flavour in wider and one.name != "id"]
        if chosen:
            at = self.random.choice(chosen)
            self.columns[at] = replace(self.columns[at], flavour=wider[self.columns[at].flavour])
            self._write(self._free_name(), self._columns_of())

    # What is wrong with a file.

    def misfit(self) -> None:
        """A value of another flavour, which a load takes only where the column is one of texts."""
        name = self._some() or self._free_name()
        columns = self._columns_of()
        rows = drawn_rows(self.random, columns, self.style, self.random.randint(1, 4))
        one = self.random.choice(columns)
        other = self.random.choice([two for two in ("boolean", "date", "string") if two != one.flavour])
        cell = drawn_cell(self.random, Column(one.name, other), self.style, 0)
        if self.style.form == "parquet":
            columns = [Column(two.name, other) if two is one else two for two in columns]
            rows = drawn_rows(self.random, columns, self.style, len(rows))
        else:
            rows[self.random.randrange(len(rows))][one.name] = cell
        self._spoil(name, lambda: self._put(name, columns, rows))

    def fewer_columns(self) -> None:
        name = self._some() or self._free_name()
        columns = self._columns_of()
        columns.remove(self.random.choice(columns))
        self._spoil(name, lambda: self._write(name, columns))

    def ragged(self) -> None:
        if (
            self.style.form == "csv"
            and (name := self._some())
            and self.files[name].rows
            and not self.style.packing
        ):
            file = self.files[name]
            end = self.style.newline.encode()
            line = file.content.decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n").count("\n") + 2
            content = file.content.rstrip(b"\r\n") + end + b"1" + self.style.delimiter.encode() * 40 + end
            broken = replace(file, content=content, broken=line, modified=self._tick())
            self._log("ragged", name)
            self._spoil(name, lambda: self.files.update({name: broken}))

    def empty(self) -> None:
        """Not even a header: an error, but of JSON lines, where it is a file of no rows."""
        if self.style.form == "csv":
            name = self._some() or self._free_name()
            file = SourceFile(name, b"", self._tick(), "csv", (), (), broken=0)  # packed or not
            self._log("empty", name)
            self._spoil(name, lambda: self.files.update({name: file}))

    def mend(self) -> None:
        for name, before in self.bad.items():
            self._log("mend", name)
            if before is None:
                self.files.pop(name, None)
            else:
                self.files[name] = (
                    before if self.random.random() < 0.5 else replace(before, modified=self._tick())
                )
        self.bad = {}

    def _spoil(self, name: str, write: Callable[[], None]) -> None:
        before = self.bad[name] if name in self.bad else self.files.get(name)
        write()
        self.bad[name] = before

    # How it happens.

    def _write(self, name: str, columns: list[Column]) -> None:
        count = self.random.choice([1, 1, 2, 3, 5, 9])
        self._put(name, columns, drawn_rows(self.random, columns, self.style, count))

    def _put(
        self, name: str, columns: list[Column], rows: "list[dict[str, Cell]] | list[Mapping[str, Cell]]"
    ) -> None:
        self._log("write", name, f"{len(rows)} rows of {[one.name for one in columns]}")
        if name in self.files:
            self._passed(name)
        self.bad.pop(name, None)
        self.files[name] = file_of(self.random, name, self._tick(), self.style, columns, rows)

    def _passed(self, name: str) -> None:
        if name not in self.bad:
            self.past.append(self.files[name])

    def _move(self, name: str, to: str) -> None:
        self._log("rename", name, to)
        file = self.files.pop(name)
        self.files[to] = replace(file, name=to)
        self._copied_badness(name, to)
        self.bad.pop(name, None)

    def _copied_badness(self, name: str, to: str) -> None:
        self.bad.pop(to, None)
        if name in self.bad:
            self.bad[to] = None

    def _known(self, file: SourceFile) -> list[Column]:
        by_name = {one.name: one for one in self.columns}
        return [by_name[name] for name in file.header if name in by_name]

    def _columns_of(self) -> list[Column]:
        """Those of the first files; of later ones each file may lack some."""
        return [one for one in self.columns if not one.name.startswith("x") or self.random.random() < 0.5]

    def _some(self) -> str | None:
        return self.random.choice(sorted(self.files)) if self.files else None

    def _free_name(self) -> str:
        if self.named:
            return self.random.choice(self.wanted)
        free = [name for stem in self.names if (name := stem + self.style.suffix) not in self.files]
        return self.random.choice(free) if free else f"more-{self._tick():.0f}{self.style.suffix}"

    def _tick(self) -> float:
        self.clock += self.random.randint(1, 3)
        return self.clock

    def _log(self, *words: str) -> None:
        self.log.append(" ".join(words))
