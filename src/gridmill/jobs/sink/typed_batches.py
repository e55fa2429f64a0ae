"""Infers the types of the columns in source files from all values, and reads the files in typed batches."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import ColumnType, OnMisfit, SinkSpec
from gridmill.domain.source import ENTRY_TIME, Format, Source
from gridmill.errors import DataError
from gridmill.jobs.context import JobContext
from gridmill.jobs.sink.ambiguous import example, forms_of, is_open, may_fit, unclear_in
from gridmill.jobs.sink.constraints import RowBatch
from gridmill.jobs.sink.convert import (
    ARROW,
    TIMESTAMP,
    TYPES,
    MisfitError,
    TextRules,
    as_texts,
    convert,
    convert_fitting,
    is_coded,
    is_missing,
    is_nested,
    is_text,
    lost,
    plain,
    trimmed,
)
from gridmill.jobs.sink.csv import CsvReader
from gridmill.jobs.sink.csv_batches import FileGroupReader, bundled
from gridmill.jobs.sink.excel import ExcelReader
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.form_detection import FormCandidates
from gridmill.jobs.sink.formats import ExpectedTypes, Reader, UnexpectedTypeError, place_of
from gridmill.jobs.sink.jsonl import JsonLinesReader
from gridmill.jobs.sink.lossless import is_beyond
from gridmill.jobs.sink.parquet import ParquetReader
from gridmill.jobs.sink.rejects import misfit
from gridmill.jobs.sink.schema_evolution import ColumnMapping
from gridmill.jobs.sink.schema_inference import TypeGuesses, chosen_types, see_types
from gridmill.jobs.sink.value_forms import ANY, MARKS, Form, Forms

_READERS: Mapping[Format, Callable[[SourceFile, Source], Reader]] = {
    Format.CSV: CsvReader,
    Format.PARQUET: ParquetReader,
    Format.JSONL: JsonLinesReader,
    Format.XLSX: ExcelReader,
}


FIRST_ROWS = 5000
"""The number of rows of each CSV file from which the types of its columns are first inferred."""


@dataclass(slots=True)
class Progress:
    """Reports how many bytes have been read, over all files and all passes."""

    context: JobContext
    total: int
    note: str = ""
    _before: int = 0

    def begin(self, file: SourceFile) -> None:
        """Record that reading of a file begins."""
        self.note = file.name
        self.seen(0)

    def seen(self, count: int) -> None:
        """Record how many bytes of the file were read."""
        self.context.progress(self._before + count, self.total, "bytes", self.note)

    def end(self, file: SourceFile) -> None:
        """Record that the file was read completely."""
        self._before += file.size_bytes
        self.seen(0)


class NoProgress(Progress):
    """A progress object for files whose progress is not shown."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def begin(self, file: SourceFile) -> None:
        """Do nothing."""

    def seen(self, count: int) -> None:
        """Do nothing."""

    def end(self, file: SourceFile) -> None:
        """Do nothing."""


@dataclass(slots=True)
class LoadContext:
    """The rules by which the source files of a sink are read."""

    spec: SinkSpec
    progress: Progress
    lost: Counter[str] = field(default_factory=Counter)
    """The number of values that lost information. The keys have the form `COLUMN HOW`."""
    later: set[str] = field(default_factory=set)
    """The columns that were added to the table later. Source files may lack these columns."""
    expect_types: bool = False
    """Whether a CSV file is read with the types of its first rows. A value of another type then raises
    UnexpectedTypeError. If types are expected, texts in Parquet files also stay dictionary-encoded."""
    without_type: tuple[str, ...] = ()
    """The columns of the schema whose type is unknown: they have neither a value nor a declaration."""
    most_rows: int | None = None
    """The number of first rows of each file to read. None means that all rows are read."""
    is_cut: bool = field(default=False, init=False)
    """Whether a file has more rows than `most_rows`."""
    layout: ColumnMapping = field(init=False)
    keys: tuple[str, ...] = field(default=(), init=False)
    """The columns of the schema that contain only numbers, of which some begin with a zero."""
    forms: dict[str, Forms] = field(default_factory=dict)
    """The forms of the texts in columns that Arrow cannot read directly."""
    zoned: set[str] = field(default_factory=set, init=False)
    """The columns of times with time zones, which the CSV reader of Arrow does not accept."""
    kept: frozenset[str] = field(init=False)
    """The columns whose text forms come from the existing table."""
    decided: bool = False
    """Whether the text forms were detected from all values, so that a value that does not fit is wrong."""
    read_as: dict[str, str] = field(default_factory=dict)
    """For each column with detected text forms, an example that shows how a text is read."""

    def __post_init__(self) -> None:
        self.layout = ColumnMapping(spec=self.spec)
        self.kept = frozenset(self.forms)

    def rules(self, file: SourceFile) -> TextRules:
        """Return the rules by which the texts of the sink are read."""
        nulls = self.spec.source.nulls if file.format == Format.CSV else ()
        return TextRules(nulls=nulls)

    def rules_of(self, rules: TextRules, name: str, table: pa.Schema | None = None) -> TextRules:
        """Return the rules for reading the texts of a column, which may belong to an existing table."""
        return replace(
            rules,
            time_format=self.spec.source.time_format(name),
            forms=self.forms.get(name),
            known=self._possible_forms(name, table),
            declared=name in self.spec.columns,
        )

    def _possible_forms(self, name: str, table: pa.Schema | None) -> Forms:
        """Return the text forms that a column can have before any text is read."""
        form = self.forms.get(name, ANY)
        mark = {None: None, ".": Form.POINT, ",": Form.COMMA}[self.spec.source.decimal]
        if name not in self.forms and table is not None and name in table.names:
            mark = mark or (Form.POINT if table.field(name).type == pa.float64() else None)
        return form if mark is None else form - {*MARKS} | {mark}

    def _new_guesses(self, files: Sequence[SourceFile], table: pa.Schema | None = None) -> TypeGuesses:
        rules = self.rules(files[0])
        return TypeGuesses(rules=rules, rules_of=lambda name: self.rules_of(rules, name, table))

    def find_forms(self, files: Sequence[SourceFile], table: pa.Schema | None = None) -> None:
        """Detect the text forms of columns with declared types from all their values. Raises DataError."""
        guesses = self._new_guesses(files, table)
        guesses.declared = self._undecided()
        for file in files:
            self._look_at_declared(open_reader(file, self.spec.source), guesses)
        self._settle(guesses, files)
        self.decided = True

    def _undecided(self) -> dict[str, ColumnType]:
        """Return the declared columns whose texts can have several forms."""
        return {
            name: type_
            for name, type_ in self.spec.columns.items()
            if type_ not in (ColumnType.STRING, ColumnType.BOOLEAN)
            and self.spec.source.time_format(name) is None
            and name not in self.spec.add
            and is_open(self.forms.get(name), type_)
        }

    def _settle(self, guesses: TypeGuesses, files: Sequence[SourceFile]) -> None:
        """Store the text forms. Raises DataError if these forms leave the meaning of values unclear."""
        candidates = {name: (guess.narrowing, guess.best) for name, guess in guesses.of.items()}
        candidates |= {name: (one, guesses.declared[name]) for name, one in guesses.declared_of.items()}
        # these rows are rejected later, so that ambiguous years are no error here
        if self.spec.on_misfit == OnMisfit.REJECT:
            for narrowing in guesses.declared_of.values():
                narrowing.short = ""
        for name, (narrowing, type_) in candidates.items():
            unclear = unclear_in(name, narrowing, type_)
            if unclear is not None:
                raise unclear.error(self._place_of_text(files, name, unclear.text))
            forms = forms_of(narrowing, type_)
            if forms is not None:
                self.forms[name] = forms
            if narrowing.zoned:
                self.zoned.add(name)

    def _place_of_text(self, files: Sequence[SourceFile], name: str, text: str) -> str:
        """Return the place at which a column first has this text. To find the place, this method reads the
        files again."""
        for file in files:
            reader, row = open_reader(file, self.spec.source), 0
            for batch in reader.batches(None, lambda count: None):
                rows = self.layout.renamed(batch)
                if name in rows.column_names:
                    texts = as_texts(rows[name], TIMESTAMP)
                    at = -1 if texts is None else pc.index(trimmed(texts, ()), text).as_py()
                    if at >= 0:
                        return place_of(reader, row + at)
                row += batch.num_rows
        return files[0].name

    def schema(self, files: Sequence[SourceFile]) -> pa.Schema:
        """Return the columns of the table. Columns without a declared type get the type that fits all of
        their values. Raises DataError."""
        guesses = self._new_guesses(files)
        if not self.decided:
            guesses.declared = self._undecided()
            self._look_at_declared(open_reader(files[0], self.spec.source), guesses, first=True)
        self._guesses(files, guesses)
        declared, guesses.declared_of = guesses.declared_of, {}
        self._settle(guesses, files)
        self._keep_certain(declared, guesses)
        return self._schema_of(guesses, files)

    def _keep_certain(self, candidates: Mapping[str, FormCandidates], guesses: TypeGuesses) -> None:
        """Store the text forms of the declared columns if the first rows are sufficient to detect them.
        If the first rows are not sufficient, all rows are read later."""
        for name, narrowing in candidates.items():
            type_ = guesses.declared[name]
            forms = forms_of(narrowing, type_)
            if narrowing.zoned:
                self.zoned.add(name)
            if forms is not None and unclear_in(name, narrowing, type_) is None:
                self.forms[name] = forms

    def first_schema(self, files: Sequence[SourceFile]) -> pa.Schema | None:
        """Return the result of `schema`, computed only from the first values of each file.

        Return None if the first values are not sufficient to find the types. The type of a column is the
        first type with which all its values can be read. If the first values of a column exclude a type, all
        values of the column together exclude it too. If all later values can be read with the first type
        that remains, all values together give the same type. Raises DataError.
        """
        guesses = self._new_guesses(files)
        if any(file.format != Format.CSV for file in files):
            return None
        for number, piece in enumerate(bundled(files, self.spec.source)):
            reader = piece if isinstance(piece, FileGroupReader) else open_reader(piece, self.spec.source)
            if number == 0 and not self.decided:
                guesses.declared = self._undecided()
                self._look_at_declared(reader, guesses, first=True)
            self._look(reader, guesses, first=not isinstance(piece, FileGroupReader))
        if any(guess.possible is None for name, guess in guesses.of.items() if name not in self.spec.columns):
            return None
        declared, guesses.declared_of = guesses.declared_of, {}
        if any(unclear_in(name, one.narrowing, one.best) for name, one in guesses.of.items()):
            return None
        self._settle(guesses, files)
        self._keep_certain(declared, guesses)
        return self._schema_of(guesses, files)

    def _schema_of(self, guesses: TypeGuesses, files: Sequence[SourceFile]) -> pa.Schema:
        types = chosen_types(guesses.of) | {name: ARROW[type_] for name, type_ in self.spec.columns.items()}
        if not guesses.of:  # JSON files without lines contain no values from which types could be guessed
            guesses.expect(self.spec.columns)
        names = self.spec.select or tuple(guesses.of)
        if not names:
            raise _no_columns(files)
        typed_names = {
            name
            for name, guess in guesses.of.items()
            if guess.possible is not None or guess.nested is not None
        }
        inferred = [name for name in names if name not in self.spec.columns]
        self.without_type = tuple(name for name in inferred if name not in typed_names)
        self.keys = tuple(name for name in inferred if name in guesses.of and guesses.of[name].is_key)
        self.layout.check_declared(guesses.of, files[0].name)
        added = [(name, self._constant(name, guesses.rules).type) for name in self.spec.add]
        return pa.schema([(name, types.get(name, pa.string())) for name in names] + added)

    def _constant(self, name: str, rules: TextRules) -> pa.Scalar:
        return self.layout.constant(name, self.rules_of(rules, name))

    def inferred_types(self, files: Sequence[SourceFile], table: pa.Schema) -> dict[str, pa.DataType | None]:
        """Return the types of the columns in new files for an existing table. A column without any value has
        the type None. Raises DataError if a file lacks a column."""
        guesses = self._new_guesses(files, table)
        guesses.expect(name for name in table.names if name not in self.spec.add)
        types = chosen_types(self._guesses(files, guesses).of)
        texts = {item.name for item in table if item.type == pa.string()}
        # not narrowed, because text columns stay text, whatever their texts look like
        for name in texts & guesses.of.keys():
            guesses.of[name].narrowing = FormCandidates()
        self._settle(guesses, files)
        self.find_forms(files, table)
        for name, guess in guesses.of.items():
            type_ = self.spec.columns.get(name)
            if type_ is not None:
                types[name] = ARROW[type_]
            elif guess.possible is None and guess.nested is None:
                types[name] = None
        return types

    def _guesses(self, files: Sequence[SourceFile], guesses: TypeGuesses) -> TypeGuesses:
        for file in files:
            self.progress.begin(file)
            self._look(open_reader(file, self.spec.source), guesses)
            self.progress.end(file)
        stream = self.spec.source.stream
        # the fields are texts, and later texts may have other forms
        if stream is not None and stream.json is None:
            guesses.keep_texts(but=self.layout.rename(ENTRY_TIME))
        return guesses

    def _look(self, reader: Reader, guesses: TypeGuesses, *, first: bool = False) -> None:
        """Exclude the types that do not fit the values of a file, or of its first rows. Only the needed
        columns of the file are read."""
        guesses.begin(any_text=reader.file.format == Format.CSV)
        names = reader.names()
        sources = self.layout.selected() if names is None else self.layout.sources(names, reader.file.name)
        if names is not None and sources is not None:
            self._check_same(reader.file, guesses, sources)
            guesses.expect(self.layout.rename(name) for name in sources)
        if isinstance(reader, ParquetReader):
            see_types(
                guesses, self.layout.renamed(reader.schema().empty_table().select(list(sources or ()))).schema
            )
            return
        open_ = tuple(name for name in sources or () if self.layout.rename(name) not in self.spec.columns)
        if sources is None or open_:
            read = self._read(reader, open_ if names is not None else sources)
            for batch in islice(read, 1) if first else read:
                rows = batch.slice(0, FIRST_ROWS) if first else batch
                guesses.see(self.layout.renamed(rows), skip=self.spec.columns)

    def _look_at_declared(self, reader: Reader, guesses: TypeGuesses, *, first: bool = False) -> None:
        """Exclude the text forms that do not fit the declared columns of a file, or of its first rows."""
        names = reader.names()
        wanted = self.layout.sources_of(guesses.declared)
        present = wanted if names is None else tuple(name for name in wanted if name in names)
        if isinstance(reader, JsonLinesReader):
            reader.integers, reader.floats = map(self.layout.declared, (ColumnType.INTEGER, ColumnType.FLOAT))
        if present:
            guesses.any_text = reader.file.format == Format.CSV
            read = self._read(reader, None if names is None else present)
            for batch in islice(read, 1) if first else read:
                rows = self.layout.renamed(batch.slice(0, FIRST_ROWS) if first else batch)
                guesses.see_declared(rows)

    def _read(
        self, reader: Reader, columns: tuple[str, ...] | None, haste: ExpectedTypes | None = None
    ) -> Iterator[pa.Table]:
        """Yield the batches of the reader, with at most `most_rows` rows."""
        batches = reader.batches(columns, self.progress.seen, haste)
        if self.most_rows is None:
            yield from batches
            return
        left = self.most_rows
        for batch in batches:
            self.is_cut = self.is_cut or batch.num_rows > left
            if not left:
                return
            yield batch.slice(0, left)
            left = max(0, left - batch.num_rows)

    def _check_same(self, file: SourceFile, guesses: TypeGuesses, sources: Sequence[str]) -> None:
        have = {self.layout.rename(name) for name in sources}
        names = set(guesses.of)
        if not names or file.format == Format.JSONL:
            return
        self._check_missing_columns(file, names - have)
        self.later |= have - names

    def _check_missing_columns(self, file: SourceFile, lacking: set[str]) -> None:
        missing = sorted(lacking - self.later)
        if missing:
            raise _missing_columns_error(file, missing)

    def together(self, bundle: FileGroupReader, schema: pa.Schema) -> Iterator[RowBatch]:
        """Yield the rows of several files together. Raises UnexpectedTypeError for any error."""
        try:
            yield from self._batches(bundle, schema)
        except DataError as error:  # read again one by one, because only then the place of the error is known
            raise UnexpectedTypeError from error
        for file in bundle.files[1:]:
            self.progress.end(file)

    def batches(self, file: SourceFile, schema: pa.Schema) -> Iterator[RowBatch]:
        """Yield the file's rows in batches, as they were read and as converted to the table's columns. Raise
        DataError with the place and the value for a row that does not fit and is not rejected."""
        return self._batches(open_reader(file, self.spec.source), schema)

    def _batches(self, reader: Reader, schema: pa.Schema) -> Iterator[RowBatch]:
        file = reader.file
        if isinstance(reader, JsonLinesReader):
            given = {*self.without_type, *self.spec.add}
            texts = (item.name for item in schema if item.type == pa.string() and item.name not in given)
            reader.texts = frozenset(self.layout.sources_of(texts))
            reader.integers, reader.floats = map(self.layout.declared, (ColumnType.INTEGER, ColumnType.FLOAT))
        names = reader.names()
        sources = self.layout.selected() if names is None else self.layout.sources(names, file.name)
        table_names = [self.layout.rename(name) for name in sources or ()]
        wanted = [name for name in schema.names if name not in self.spec.add]
        if names is not None:
            self._check_missing_columns(file, set(wanted) - set(table_names))
            if not set(table_names) <= set(wanted):
                raise _has_more(file, sorted(set(table_names) - set(wanted)))
        rules, row = self.rules(file), 0
        constants = {name: self._constant(name, rules) for name in self.spec.add}
        rules_by_name = {name: self.rules_of(rules, name) for name in schema.names}
        self.progress.begin(file)
        haste = self._haste(schema, sources or ()) if self.expect_types else None
        for batch in self._read(reader, sources, haste):
            raw = self.layout.renamed(batch)
            if names is None:
                self.layout.check_names(raw.column_names, file.name)
            misfits: dict[int, list[str]] = {}
            rows = self._typed(raw, schema, rules_by_name, constants, reader, row, misfits)
            yield RowBatch(raw=raw, rows=rows, first=row, misfits=misfits)
            row += batch.num_rows
        if isinstance(reader, ExcelReader):
            self.lost.update(reader.lost)
        self.progress.end(file)

    def _haste(self, schema: pa.Schema, sources: Sequence[str]) -> ExpectedTypes:
        """Return the columns that the CSV reader of Arrow may read directly, with their types. A type is
        allowed only if the result is the same as if the texts were converted."""
        fixed = self.spec.source.time_format
        types = {name: schema.field(self.layout.rename(name)).type for name in sources}
        inferred = (name for name in types if self.layout.rename(name) not in self.spec.columns)
        return ExpectedTypes(
            types={
                name: pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
                for name, kind in types.items()
                if not (pa.types.is_temporal(kind) and fixed(self.layout.rename(name)))
                and not is_nested(kind)
                and self.layout.rename(name) not in self.forms
                and self.layout.rename(name) not in self.zoned
            },
            inferred=frozenset(
                name
                for name in inferred
                if types[name] in (pa.int64(), pa.float64()) and self.layout.rename(name) not in self.forms
            ),
        )

    def _typed(
        self,
        batch: pa.Table,
        schema: pa.Schema,
        rules_by_name: Mapping[str, TextRules],
        constants: Mapping[str, pa.Scalar],
        reader: Reader,
        row: int,
        misfits: dict[int, list[str]],
    ) -> pa.Table:
        columns = []
        for item in schema:
            rules = rules_by_name[item.name]
            if item.name in constants:
                columns.append(pa.repeat(constants[item.name], batch.num_rows))
            elif item.name not in batch.column_names:
                columns.append(pa.nulls(batch.num_rows, item.type))
            elif item.name in self.without_type:
                columns.append(_nothing(batch[item.name], item, rules, reader))
            elif self.spec.on_misfit == OnMisfit.REJECT and item.name in self.spec.columns:
                columns.append(self._fitting(batch[item.name], item, rules, reader, row, misfits))
            else:
                columns.append(self._column(batch[item.name], item, rules, reader, row))
        surprises = sorted(set(batch.column_names) - set(schema.names))
        if surprises:
            raise _has_more(reader.file, surprises)
        items = (
            item.with_type(one.type) if is_coded(one.type) else item
            for item, one in zip(schema, columns, strict=True)
        )
        return pa.Table.from_arrays(columns, schema=pa.schema(items))

    def _column(
        self, column: pa.ChunkedArray, item: pa.Field, rules: TextRules, reader: Reader, row: int
    ) -> pa.ChunkedArray:
        if self.expect_types and is_coded(column.type) and item.type == pa.string():
            return column
        if self.expect_types and reader.file.format == Format.CSV and column.type == pa.float64():
            if is_beyond(column):  # read again as text, because only texts show whether digits are lost
                raise UnexpectedTypeError
            return column
        declared = item.name in self.spec.columns
        try:
            converted = convert(column, item.type, rules, exact=not declared)
        except MisfitError as error:
            # the files are read again, because the types of the first rows were wrong
            if self.expect_types and rules.time_format is None:
                raise UnexpectedTypeError from error
            raise misfit(item, error, place_of(reader, row + error.row), rules) from error
        self._note_reading(item, column, converted, rules)
        self._count_lost(item.name, *lost(column, item.type, rules))
        return converted

    def _fitting(
        self,
        column: pa.ChunkedArray,
        item: pa.Field,
        rules: TextRules,
        reader: Reader,
        row: int,
        misfits: dict[int, list[str]],
    ) -> pa.ChunkedArray:
        converted, bad = convert_fitting(column, item.type, rules)
        undecided = rules if item.name in self.kept else replace(rules, forms=None)
        if bad and not self.decided and may_fit(column.take(pa.array(bad)), item.type, undecided):
            # not rejected yet, because all values together may decide the form of the value
            error = MisfitError(bad[0], column[bad[0]].as_py())
            raise misfit(item, error, place_of(reader, row + bad[0]), rules)
        for number in bad:
            misfits.setdefault(number, []).append(f"{item.name}: not of type {TYPES[item.type]}")
        self._note_reading(item, column, converted, rules)
        if bad:
            column = column.filter(pa.array(np.isin(np.arange(len(column)), bad, invert=True)))
        self._count_lost(item.name, *lost(column, item.type, rules))
        return converted

    def _note_reading(
        self, item: pa.Field, column: pa.ChunkedArray, converted: pa.ChunkedArray, rules: TextRules
    ) -> None:
        """Store an example of a value that Arrow cannot read directly, and how the value is read."""
        if rules.forms is not None and item.name not in self.read_as:
            example_text = example(column, converted, rules)
            if example_text:
                self.read_as[item.name] = example_text

    def place_of_misfit(self, files: Sequence[SourceFile], item: pa.Field) -> str:
        """Return the place of the first value that does not have the type of its column, or an empty text
        if there is no such value. To find the place, this method reads the rows again."""
        old = {self.layout.rename(name): name for name in self.spec.rename}
        column = old.get(item.name, item.name)
        for file in files:
            reader, row = open_reader(file, self.spec.source), 0
            for batch in reader.batches(None, lambda count: None):
                try:
                    if column in batch.column_names:
                        convert(batch[column], item.type, self.rules_of(self.rules(file), item.name))
                except MisfitError as error:
                    return place_of(reader, row + error.row)
                row += batch.num_rows
        return ""

    def _count_lost(self, name: str, how: str, count: int) -> None:
        if count:
            self.lost[f"{name} {how}"] += count


def _nothing(column: pa.ChunkedArray, item: pa.Field, rules: TextRules, reader: Reader) -> pa.Array:
    """Return missing values for a column that has no value in the file and no value in the table. Raises
    DataError if the column has a value."""
    column = plain(column)
    blank = reader.file.format == Format.CSV and is_text(column.type) and is_missing(column, rules.nulls)
    if not blank and column.null_count < len(column):
        raise DataError(f"column {item.name!r} has its first values", place=reader.file.name)
    return pa.nulls(len(column), item.type)


def _no_columns(files: Sequence[SourceFile]) -> DataError:
    return DataError(
        "the source has no rows",
        hint="To make an empty table, declare the types of its columns, for example `columns: {NAME: "
        "float}`.",
        place=files[0].name,
    )


def open_reader(file: SourceFile, source: Source) -> Reader:
    """Return the reader for the format of the file."""
    return _READERS[file.format](file, source)


def _missing_columns_error(file: SourceFile, missing: Sequence[str]) -> DataError:
    return DataError(
        f"the file lacks {', '.join(missing)}, which the table has",
        hint="Files may add columns, but must not leave any out. Correct the file; or `select` the "
        "columns that all files have, which loads the table again from the beginning.",
        place=file.name,
    )


def _has_more(file: SourceFile, more: Sequence[str]) -> DataError:
    return DataError(
        f"the file also has {', '.join(more)}, which the table does not have",
        hint="`select` the columns that the table should have.",
        place=file.name,
    )
