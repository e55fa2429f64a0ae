"""The rows of a large request have the values and the errors of HTTP requests, and need little memory."""

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.served_models import linear_model

from gridmill.errors import DataError, GridmillError, InputError
from gridmill.jobs.features import Encoding, encode
from gridmill.serving.answer_file import write_answer
from gridmill.serving.fields import RowReader
from gridmill.serving.open_request import open_request
from gridmill.serving.request_file import POSITION, CsvRows, LineRows, TableRows

ENCODINGS = (
    Encoding(column="temp", type="double"),
    Encoding(column="rain", type="bool"),
    Encoding(column="city", type="string", categories=("Ulm", "Köln"), others=True),
)
READER = RowReader(ENCODINGS, None)
GOOD = "note,temp,rain,city\na,1.5,true,Ulm\nb,,0,7\n"


def written(tmp_path: Path, content: str | bytes, name: str = "rows.csv") -> Path:
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def features_of(rows) -> pa.Table:
    return pa.concat_tables(rows.features())


def test_a_csv_file_keeps_texts_that_look_like_numbers_and_missing_values(tmp_path):
    table = features_of(CsvRows(written(tmp_path, GOOD), READER, ".csv"))
    assert table.to_pydict() == {"temp": [1.5, None], "rain": [1.0, 0.0], "city": ["Ulm", "7"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temp,city\n1,x\n", "rows.csv lacks the column `rain`"),
        ("city\nx\n", "rows.csv lacks the columns `temp`, `rain`"),
        ("temp,rain,city\n", "rows.csv has no rows"),
        ("", "rows.csv has no rows"),
        ("temp,temp,city\n1,1,1\n", "rows.csv: several columns have the same name: 'temp'"),
        (
            'temp,rain,city\n1,0,"two\nlines"\n\nwarm,0,x\n',
            "rows.csv, line 5, field 'temp': the value is a text, not a number or null",
        ),
        ("temp,rain,city\n1,0,x\nnan,0,x\n", "rows.csv, line 3, field 'temp': the value is a text, not"),
        ("temp,rain,city\ntrue,0,x\n", "rows.csv, line 2, field 'temp': the value is true, not a number"),
        ("temp,rain,city\n1e999,0,x\n", "line 2, field 'temp': the number is too large for a double"),
        ("temp,rain,city\n1,maybe,x\n", "line 2, field 'rain': the value is a text, not true, false or null"),
        ("temp,rain,city\n1,0,x\n1,0\n", "line 3: the line has 2 cells, but the first line has 3 names"),
        ("temp;rain;city\n1;0;x\n", "rows.csv: the names of the columns are separated by ';', not by ','"),
    ],
)
def test_a_wrong_csv_file_is_one_error_with_its_line_and_field(tmp_path, text, message):
    with pytest.raises(DataError) as refused:
        open_file(written(tmp_path, text)).write_features(tmp_path / "features.parquet")
    assert message in refused.value.message


def open_file(file: Path, ending: str = ".csv", reader: RowReader = READER):
    kinds = {".csv": CsvRows, ".jsonl": LineRows}
    if file.suffix in kinds:
        return kinds[file.suffix](file, reader, ending)
    return TableRows(str(file), reader, ending, lambda: pq_reader(file))


def pq_reader(file: Path) -> pa.RecordBatchReader:
    table = pq.read_table(file)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches())


def test_a_missing_file_and_another_format_are_refused(tmp_path):
    model = linear_model(tmp_path / "model")
    for name in ("no.csv", "no.jsonl", "no.parquet"):
        with pytest.raises(InputError, match=f"there is no file '.*{name}'"):
            open_request(tmp_path / name, name, model, ".csv").write_features(tmp_path / "to.parquet")
    with pytest.raises(InputError, match=r"is no \.csv, \.jsonl or \.parquet file"):
        open_request(tmp_path / "rows.xlsx", "rows.xlsx", model, ".csv")


@pytest.mark.parametrize("content", [b"temp,rain,city\n1,0,K\xf6ln\n", b"temp,rain,K\xf6ln\n1,0,x\n"])
def test_a_csv_file_that_is_not_utf_8_is_refused_with_a_command_that_converts_it(tmp_path, content):
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"rows\.csv is not UTF-8: byte 0xf6") as refused:
        open_file(file).write_features(tmp_path / "features.parquet")
    assert f"iconv -f latin1 -t utf-8 {file} > utf8.csv" in refused.value.hint


@pytest.mark.parametrize(("name", "text"), [("rows.csv", "id\n1\n"), ("rows.jsonl", '{"id": 1}\n')])
def test_rows_that_have_only_keys_are_refused_with_the_reason(tmp_path, name, text):
    model = linear_model(tmp_path / "model")
    rows = open_request(written(tmp_path, text, name), name, model, ".csv", "Send the rows to the service.")
    with pytest.raises(DataError) as refused:
        rows.write_features(tmp_path / "features.parquet")
    assert refused.value.hint == "Send the rows to the service."


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, "Ulm", "Köln", "", "x", "1.5", "true"]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=1),
)
ROWS = st.fixed_dictionaries({}, optional={"temp": VALUES, "rain": VALUES, "city": VALUES, "further": VALUES})
LINES = st.one_of(
    ROWS.map(json.dumps),
    ROWS.map(json.dumps),
    st.sampled_from(['{"temp": NaN, "rain": 0, "city": ""}', "{", "[1]", "3", '{"temp": 1e999, "rain": 0}']),
)


def http_result(lines: list[bytes], reader: RowReader = READER, place: str = "line {}", first: int = 1):
    """Return what the service computes from lines: the inputs of all rows, or the forms of the first
    error."""
    inputs = []
    for number, line in enumerate(lines, first):
        try:
            inputs.append(reader.read_line(line))
        except GridmillError as error:
            where, text = place.format(number), error.message.removeprefix("row 0")
            return {f"{where}{text}", f"{where}, {text}", f"{where}: {text}"}
    return np.concatenate(inputs)


def check_same(rows, expected, prefix: str, encodings=ENCODINGS) -> None:
    if isinstance(expected, set):
        with pytest.raises(DataError) as refused:
            features_of(rows)
        assert refused.value.message in {f"{prefix}, {one}" for one in expected}
    else:
        assert np.array_equal(encode(features_of(rows), encodings), expected, equal_nan=True)


@settings(max_examples=50)
@given(st.lists(LINES, min_size=1, max_size=4))
def test_lines_have_the_values_and_errors_of_http(tmp_path_factory, lines):
    file = written(tmp_path_factory.mktemp("lines"), "\n".join(lines) + "\n", "rows.jsonl")
    check_same(open_file(file), http_result([line.encode() for line in lines]), str(file))


@settings(max_examples=50)
@given(st.lists(st.lists(LINES, max_size=4).map(lambda rows: f"[{', '.join(rows)}]"), min_size=1, max_size=3))
def test_lines_of_sequences_have_the_values_and_errors_of_http(tmp_path_factory, lines):
    reader = RowReader(ENCODINGS, 3)
    file = written(tmp_path_factory.mktemp("lines"), "\n".join(lines) + "\n", "rows.jsonl")
    expected = http_result([line.encode() for line in lines], reader)
    if not isinstance(expected, set):
        expected = expected.reshape(-1, reader.width)
    check_same(open_file(file, reader=reader), expected, str(file))


@st.composite
def tables(draw) -> list[dict]:
    """Rows whose columns have one type each, so that Parquet and CSV can store them."""
    size = draw(st.integers(1, 5))
    kinds = st.sampled_from(
        [
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.sampled_from(["Ulm", "Köln", "x", "warm"]),
        ]
    )
    columns = {
        name: draw(st.lists(st.one_of(st.none(), draw(kinds)), min_size=size, max_size=size))
        for name in ("temp", "rain", "city")
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@settings(max_examples=50)
@given(tables())
def test_parquet_files_have_the_values_and_errors_of_http(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("tables") / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    expected = http_result([json.dumps(row).encode() for row in rows], place="row {}")
    check_same(open_file(file), expected, str(file))


@settings(max_examples=50)
@given(tables())
def test_csv_files_have_the_values_and_errors_of_http(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("tables") / "rows.csv"
    cells = io.StringIO()
    writer = csv.DictWriter(cells, ["temp", "rain", "city"])
    writer.writeheader()
    for row in rows:
        row["city"] = None if row["city"] is None else f"{row['city']}"  # a cell of a text is a text
        writer.writerow(
            {
                name: {True: "true", False: "false"}.get(one, one) if isinstance(one, bool) else one
                for name, one in row.items()
            }
        )
    file.write_text(cells.getvalue())
    expected = http_result([json.dumps(row).encode() for row in rows], first=2)
    check_same(open_file(file), expected, str(file))


def answer(rows, ending: str, values: list[float], length: int = 1) -> bytes:
    numbers = range(length - 1, length * len(values), length)
    batches = pa.table({"row": list(numbers), "prediction": values}).to_batches(max_chunksize=1)
    file = io.BytesIO()
    assert write_answer(rows, len(values), iter(batches), file) == len(values)
    return file.getvalue()


def test_the_answer_of_a_csv_file_has_its_cells_and_the_predictions(tmp_path):
    text = (
        "note,temp,rain,city,day,code,prediction\na,1.5,true,Ulm,2024-01-31,007,old\nb,,0,7,2024-02-30,1,x\n"
    )
    rows = open_file(written(tmp_path, text))
    assert rows.write_features(tmp_path / "features.parquet") == 2
    assert pq.read_table(tmp_path / "features.parquet")[POSITION].to_pylist() == [0, 1]
    assert answer(rows, ".csv", [10.0, 20.5]).decode().splitlines() == [
        '"note","temp","rain","city","day","code","prediction"',
        '"a",1.5,"true","Ulm","2024-01-31","007",10',
        '"b",,"0","7","2024-02-30","1",20.5',
    ]


def test_lines_keep_their_text_and_get_predictions(tmp_path):
    lines = [
        '{"id": 12345678901234567890,  "temp":1,"rain":null,"city":"Ulm"}',
        "",
        '{"temp":1,"rain":null,"city":"Ulm", "prediction": [1], "x": {"prediction": 2}}',
    ]
    rows = open_file(written(tmp_path, "\r\n".join(lines), "rows.jsonl"), ".jsonl")
    assert rows.write_features(tmp_path / "features.parquet") == 2
    assert answer(rows, ".jsonl", [1.5, math.nan]).decode().splitlines() == [
        '{"id": 12345678901234567890,  "temp":1,"rain":null,"city":"Ulm", "prediction":1.5}',
        '{"temp":1,"rain":null,"city":"Ulm","x":{"prediction":2}, "prediction":null}',
    ]


def test_lines_become_columns_and_several_types_are_refused_before_the_workers_start(tmp_path):
    lines = [{"temp": 1, "rain": 0, "city": None, "at": 1}, {"temp": 1.5, "rain": 0, "city": "x", "tag": "a"}]
    file = written(tmp_path, "\n".join(map(json.dumps, lines)), "rows.jsonl")
    rows = open_file(file, ".csv")
    rows.write_features(tmp_path / "features.parquet")
    assert answer(rows, ".csv", [1.0, 2.0]).decode().splitlines()[1:] == ["1,0,,1,,1", '1.5,0,"x",,"a",2']
    file.write_text(file.read_text().replace('"x"', '"x", "at": "noon"'))
    with pytest.raises(DataError, match="'at': the values of a column must have the same type"):
        open_file(file, ".csv").write_features(tmp_path / "features.parquet")


def test_a_sequence_has_all_its_rows_and_the_last_of_them_is_predicted(tmp_path):
    one = {"temp": 1, "rain": False, "city": "Ulm"}
    lines = [[one], [one, {**one, "temp": 2}, {**one, "temp": 3}]]
    file = written(tmp_path, "\n".join(map(json.dumps, lines)), "rows.jsonl")
    rows = open_file(file, ".csv", RowReader(ENCODINGS, 2))
    assert rows.write_features(tmp_path / "features.parquet") == 2
    assert pq.read_table(tmp_path / "features.parquet")["temp"].to_pylist() == [1, 1, 2, 3]
    assert answer(rows, ".csv", [5.0, 6.0], length=2).decode().splitlines() == ['"prediction"', "5", "6"]


def test_a_table_cannot_carry_sequences(tmp_path):
    model = linear_model(tmp_path / "model", sequence=3)
    with pytest.raises(InputError, match=r"the model reads sequences of up to 3 rows") as refused:
        open_request(written(tmp_path, GOOD), "rows.csv", model, ".csv")
    assert "Use a .jsonl file" in refused.value.hint


@pytest.mark.parametrize(
    "change", [lambda text: text + "c,1,0,x\n", lambda text: "".join(text.splitlines(True)[:-1])]
)
def test_a_file_that_changes_while_its_rows_are_predicted_is_refused(tmp_path, change):
    file = written(tmp_path, GOOD)
    rows = open_file(file)
    rows.write_features(tmp_path / "features.parquet")
    file.write_text(change(GOOD))
    with pytest.raises(InputError, match="the rows have changed while they were predicted"):
        answer(rows, ".csv", [1.0, 2.0])


MEMORY = """
import sys
from pathlib import Path
import pyarrow as pa
from gridmill.jobs.features import Encoding
from gridmill.serving.answer_file import write_answer
from gridmill.serving.fields import RowReader
from gridmill.serving.request_file import CsvRows, LineRows

reader = RowReader((Encoding(column="temp", type="double"),), None)
folder = Path(sys.argv[1])

def peak(name, kind, line, many):
    file = folder / name
    with file.open("wb") as out:
        if kind is CsvRows:
            out.write(b"temp,text\\n")
        for _ in range(many // 1000):
            out.write(line * 1000)
    rows = kind(file, reader, file.suffix)
    count = rows.write_features(folder / "features.parquet")
    batches = (pa.record_batch({"row": pa.array(range(at, at + 1000)), "prediction": pa.array([1.0] * 1000)})
               for at in range(0, count, 1000))
    with (folder / "answer").open("wb") as out:
        assert write_answer(rows, count, batches, out) == count == many
    status = Path("/proc/self/status").read_text()
    file.unlink()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024

text = b"x" * 4000
for rows in (8_000, 32_000):
    print(peak(f"{rows}.csv", CsvRows, b"1.5," + text + b"\\n", rows))
    print(peak(f"{rows}.jsonl", LineRows, b'{"temp": 1, "t": "' + text + b'"}\\n', rows))
"""


def test_a_file_of_any_size_needs_little_memory(tmp_path):
    """The first two files have 32 MB, the others 128 MB. The peaks are the largest memory so far, in MiB."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks = list(map(int, done.stdout.split()))
    assert peaks[-1] - peaks[1] < 64, peaks
