"""The rows of a large request: which are accepted, and which error a wrong value gives."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridmill.errors import DataError, InputError
from gridmill.jobs.request_rows import POSITION, checked_request, read_request, write_answer, write_request

FEATURES = {"temp": "double", "count": "int64", "where": "string"}
GOOD = "note,temp,count,where\na,1.5,2,x\nb,,3,7\n"


def rows(tmp_path: Path, text: str, name: str = "rows.csv") -> pa.Table:
    file = tmp_path / name
    file.write_text(text)
    return checked_request(read_request(file, FEATURES), FEATURES, name)


def test_a_csv_file_keeps_texts_that_look_like_numbers_and_missing_values(tmp_path: Path) -> None:
    assert rows(tmp_path, GOOD).to_pydict() == {
        "note": ["a", "b"],
        "temp": [1.5, None],
        "count": [2.0, 3.0],
        "where": ["x", "7"],
    }


def test_json_lines_and_parquet_files_are_read_too(tmp_path: Path) -> None:
    lines = [{"temp": 1, "count": 2, "where": "x"}, {"temp": 2.5, "count": 3, "where": None}]
    table = rows(tmp_path, "\n".join(map(json.dumps, lines)), "rows.jsonl")
    assert table["temp"].to_pylist() == [1.0, 2.5]
    pq.write_table(table, tmp_path / "rows.parquet")
    assert read_request(tmp_path / "rows.parquet", FEATURES).equals(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temp,where\n1,x\n", "rows.csv lacks the column `count`"),
        ("where\nx\n", "rows.csv lacks the columns `temp`, `count`"),
        ("temp,count,where\n", "rows.csv has no rows"),
        (
            "temp,count,where\n1,2,x\nwarm,2,x\n",
            "rows.csv, row 2, line 3: column `temp` has 'warm', which is not a number",
        ),
    ],
)
def test_a_wrong_request_is_one_error_with_its_row_and_column(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(DataError) as refused:
        rows(tmp_path, text)
    assert refused.value.message == message


def test_a_missing_file_and_another_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_request(tmp_path / "no.csv", FEATURES)
    with pytest.raises(InputError, match=r"is no \.csv, \.jsonl or \.parquet file"):
        read_request(tmp_path / "rows.xlsx", FEATURES)


def test_the_answer_has_the_rows_in_their_order_with_their_predictions(tmp_path: Path) -> None:
    table = rows(tmp_path, GOOD)
    write_request(table, FEATURES, tmp_path / "request.parquet")
    assert pq.read_table(tmp_path / "request.parquet")[POSITION].to_pylist() == [0, 1]
    predictions = pa.table({"row": [1, 0], "prediction": [20.0, 10.0], "truth": [None, None]})
    file = io.BytesIO()
    assert write_answer(table, predictions, file, ".csv") == 2
    assert file.getvalue().decode().splitlines() == [
        '"note","temp","count","where","prediction"',
        '"a",1.5,2,"x",10',
        '"b",,3,"7",20',
    ]
    with pytest.raises(InputError, match="1 of 2 rows have a prediction"):
        write_answer(table, predictions.slice(1), io.BytesIO(), ".csv")
