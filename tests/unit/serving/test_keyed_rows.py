"""A large request with keys has the features, statuses and errors that HTTP requests have row by row."""

import asyncio
import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.dataset_case import DatasetCase
from tests.kit.keyed_service import keyed_order
from tests.kit.online_case import OnlineCase
from tests.oracles.dataset_cases import note_version

from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Join, Lag, Method, Window
from gridmill.domain.frozen import replace
from gridmill.domain.service_features import FeatureDefinition, FeatureRule, OnlinePolicy, OnTrouble
from gridmill.errors import DataError, UnavailableError
from gridmill.jobs.dataset.encoders import FittedEncoder
from gridmill.online.definition import load_definition
from gridmill.online.view import current_file
from gridmill.serving.answer_file import write_answer
from gridmill.serving.batching import BatchLimits
from gridmill.serving.bulk_features import BulkFeatures
from gridmill.serving.errors import FieldsError
from gridmill.serving.keyed_features import keyed_of, read_keyed
from gridmill.serving.keyed_rows import KeyedCsvRows, KeyedRows
from gridmill.serving.open_request import open_request
from gridmill.serving.request_file import RequestRows
from gridmill.serving.served_model import load_version

START = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
SPEC = DatasetSpec(
    basis=Basis(table="temps", time="at", entity=("id",)),
    windows=(Window(column="x", aggregates=(Aggregate.MEAN, Aggregate.COUNT), span_seconds=600.0),),
    lags=(Lag(column="x", steps=(1, 2)),),
    joins=(Join(table="places", on=("city",)),),
    features={"twice": "2 * x"},
)
RULES = {"x_lag_1": FeatureRule(max_age_seconds=300.0), "height": FeatureRule(default=7.0)}


def new_case(folder: Path, *, sequence: int | None = None) -> OnlineCase:
    tables = DatasetCase(folder)
    minutes, ids = (0, 4, 5, 5, 9, 14), ("a", "b", "a", "b", "a", "a")
    times = pa.array([START + timedelta(minutes=one) for one in minutes], pa.timestamp("us", "UTC"))
    columns = {"id": ids, "at": times, "x": [1.0, None, 3.0, 4.0, 5.5, -2.0], "city": ["Ulm"] * 6}
    tables.give("temps", pa.table(columns))
    tables.give("places", pa.table({"city": ["Ulm", "Köln"], "height": [100.0, 50.0]}))
    for name in ("temps", "places"):
        note_version(tables, name)
    case = OnlineCase(tables, SPEC, sequence=sequence)
    case.now = START.timestamp() + 7200.0
    case.build()
    return case


def opened(
    case: OnlineCase, file: Path, wish: str = "values", ending: str = ".jsonl", view_rows: int | None = None
) -> RequestRows:
    """The rows of a file for the service of a case. Its definition was saved by `keyed_order`."""
    definition = FeatureDefinition(folder="view", view="view", tables={}, request={})
    root = case.tables.folder
    rows = open_request(file, "rows", root / "model", ending, root=root, definition=definition, wish=wish)
    if view_rows is not None:
        assert isinstance(rows, KeyedRows)
        rows.by_key = BulkFeatures(replace(rows.by_key.order, view_rows=view_rows))
    return rows


Answer = dict[str, Any]
LIMITS = BatchLimits(
    max_rows=256, max_requests=256, queue_limit=256, max_wait_seconds=0.0, timeout_seconds=60.0
)


def http_answers(case: OnlineCase, rows: Sequence[Mapping[str, Any]], **about: Any) -> list[Answer]:
    """Compute each row alone, as the service does for `POST /predict?features=values`."""
    model = load_version(keyed_order(case, **about).versions[0], "1", 1)
    keyed = keyed_of(model, LIMITS)
    assert keyed is not None

    async def answers() -> list[Answer]:
        return [await answer_of(row) for row in rows]

    async def answer_of(row: Mapping[str, Any]) -> Answer:
        try:
            request = read_keyed(json.dumps({"rows": [row]}).encode(), has_sequences=False)
            assert request is not None
            made = await keyed.inputs_of(request)
        except FieldsError as error:
            return {"error": error.problems[0]}
        return {"prediction": float(model.predict(made.inputs)[0]), "features": made.about("values")}

    try:
        return asyncio.run(answers())
    finally:
        keyed.close()


def statuses_of(answer: Mapping[str, Any], computed: Sequence[str]) -> dict[str, str]:
    marked = {
        name: status
        for status in ("stale", "defaulted", "missing")
        for name in answer["features"].get(status, {})
    }
    return {f"{name}_status": marked.get(name, "present") for name in computed}


def check_equal(
    case: OnlineCase, rows: RequestRows, answers: list[Answer], place: str, first: int = 1
) -> None:
    """Compare the rows of a file with the answers of the service to each row alone."""
    target = case.tables.folder / "features.parquet"
    wrong = [number for number, one in enumerate(answers) if "error" in one]
    if wrong:
        problem = answers[wrong[0]]["error"]
        named = f", field {problem.field!r}" if problem.field is not None else ""
        with pytest.raises(DataError) as refused:
            rows.write_features(target)
        expected = f"{rows.label}, {place} {wrong[0] + first}{named}: {problem.problem}"
        assert refused.value.message.partition(" shows ")[0] == expected.partition(" shows ")[0]
        return
    assert isinstance(rows, KeyedRows)
    assert rows.write_features(target) == len(answers)
    shown, features = pa.Table.from_batches(list(rows.shown())).to_pylist(), pq.read_table(target).to_pylist()
    plan, length = case.plan(), rows.reader.sequence or 1
    for number, answer in enumerate(answers):
        about = answer["features"]
        assert about["view"] == rows.table_versions
        values = about["values"][0] if length == 1 else about["values"][0][-1]
        made = features[number * length + length - 1] | shown[number]
        assert made.items() >= {name: values[name] for name in plan.computed}.items()
        assert made.items() >= statuses_of(answer, plan.computed).items()
        every = features[number * length : number * length + length]
        inputs = [one[encoding.column] for one in every for encoding in rows.by_key.order.encodings]
        expected = math.nan if None in inputs else sum(inputs)  # the model adds its inputs
        assert answer["prediction"] == pytest.approx(expected, nan_ok=True)


TIMES = st.sampled_from([0, 1, 5, 6, 9, 14, 15, 40]).map(lambda one: START + timedelta(minutes=one))
GOOD = {
    "id": st.sampled_from(["a", "b", "new", None]),
    "x": st.sampled_from([10.0, -1.5, 3, None]),
    "city": st.sampled_from(["Ulm", "Rom", None]),
}
FREE = {
    "at": st.one_of(st.none(), TIMES.map(datetime.isoformat)),
    "x_lag_1": st.sampled_from([1.0, None]),
    "note": st.just("further"),
}
BAD = st.sampled_from(
    [
        {"id": 3},
        {"x": "warm"},
        {"at": "noon"},
        {"at": "2124-01-01T00:00:00Z"},
        {"at": "1999-01-01"},
        {"x": []},
    ]
)
ROW = st.fixed_dictionaries(GOOD, optional=FREE)
ROWS = st.lists(st.one_of(ROW, ROW, ROW, st.tuples(ROW, BAD).map(lambda two: two[0] | two[1])), min_size=1)
POLICIES = st.sampled_from([OnlinePolicy(), OnlinePolicy(), OnlinePolicy(on_unknown_key=OnTrouble.REFUSE)])


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> OnlineCase:
    return new_case(tmp_path_factory.mktemp("case"))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS, policy=POLICIES, view_rows=st.sampled_from([1, 1000]))
def test_lines_have_the_features_statuses_and_errors_of_http(
    case: OnlineCase, rows: list[dict[str, Any]], policy: OnlinePolicy, view_rows: int
) -> None:
    answers = http_answers(case, rows, rules=RULES, policy=policy)
    file = case.tables.folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    check_equal(case, opened(case, file, view_rows=view_rows), answers, "line")


TABLES = st.lists(st.fixed_dictionaries({**GOOD, "at": st.one_of(st.none(), TIMES)}), min_size=1)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=TABLES, policy=POLICIES, ending=st.sampled_from([".csv", ".parquet"]))
def test_tables_have_the_features_statuses_and_errors_of_http(
    case: OnlineCase, rows: list[dict[str, Any]], policy: OnlinePolicy, ending: str
) -> None:
    sent = [{**row, "at": row["at"] and row["at"].isoformat()} for row in rows]
    answers = http_answers(case, sent, rules=RULES, policy=policy)
    file = case.tables.folder / f"rows{ending}"
    if ending == ".parquet":
        kinds = pa.schema(
            [
                ("id", pa.string()),
                ("x", pa.float64()),
                ("city", pa.string()),
                ("at", pa.timestamp("ns", "UTC")),
            ]
        )
        pq.write_table(pa.Table.from_pylist(rows, kinds), file)
    else:
        cells = io.StringIO()
        writer = csv.DictWriter(cells, [*GOOD, "at"])
        writer.writeheader()
        writer.writerows(sent)
        file.write_text(cells.getvalue())
    place, first = ("line", 2) if ending == ".csv" else ("row", 1)
    check_equal(case, opened(case, file), answers, place, first)


UNREADABLE = {
    "more than microseconds hold": pa.array([2**60], pa.timestamp("ms")),
    "year above 9999": pa.array([2**62], pa.timestamp("us")),
    "unknown time zone": pa.array([0], pa.timestamp("us", "Nowhere/City")),
    "day": pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_time_that_a_request_cannot_have_is_refused(case: OnlineCase, name: str) -> None:
    keyed_order(case)
    file = case.tables.folder / "rows.parquet"
    columns = {"id": ["a"], "x": [1.0], "city": ["Ulm"], "at": UNREADABLE[name]}
    pq.write_table(pa.table(columns), file)
    rows = opened(case, file)
    with pytest.raises(DataError, match=r"rows: the column `at` of the type .* has a value out of range"):
        rows.write_features(case.tables.folder / "features.parquet")


def test_sequences_are_read_from_the_view_by_key(tmp_path: Path) -> None:
    case = new_case(tmp_path, sequence=3)
    minutes = (0, 6, 20)
    asked = [
        {"id": name, "x": 10.0, "city": "Rom", "at": (START + timedelta(minutes=one)).isoformat()}
        for name in ("a", "b", "new")
        for one in minutes
    ]
    answers = http_answers(case, asked, rules=RULES)
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, asked)))
    check_equal(case, opened(case, file), answers, "line")


def test_the_answer_has_a_column_for_each_status(case: OnlineCase) -> None:
    keyed_order(case, rules=RULES)
    file = case.tables.folder / "rows.csv"
    at = (START + timedelta(minutes=6)).isoformat()
    file.write_text(f"id,x,city,at\na,10,Ulm,{at}\nnew,1,Rom,{at}\n")
    rows = opened(case, file, "status", ".csv")
    count = rows.write_features(case.tables.folder / "features.parquet")
    answer, found = io.BytesIO(), pa.table({"row": [0, 1], "prediction": [1.0, 2.0]}).to_batches()
    assert write_answer(rows, count, iter(found), answer) == 2
    read = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert list(read[0]) == [
        "id",
        "x",
        "city",
        "at",
        "prediction",
        *statuses_of({"features": {}}, case.plan().computed),
    ]
    assert (read[0]["x_mean_10m_status"], read[1]["x_mean_10m_status"]) == ("present", "missing")
    assert (read[0]["height_status"], read[1]["height_status"]) == ("present", "defaulted")
    assert rows.not_present["height"] == {"defaulted": 1}


def test_all_rows_read_one_state_of_the_view_although_it_is_refreshed(tmp_path: Path) -> None:
    case = new_case(tmp_path)
    keyed_order(case)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "a", "x": 1.0, "city": "Ulm"}\n')
    rows = opened(case, file)
    assert isinstance(rows, KeyedRows)
    with rows.by_key as by_key:
        before = dict(by_key.table_versions)
        first = by_key.computed([{"id": "a", "x": 1.0, "city": "Ulm"}], 1).features
        case.tables.give("places", pa.table({"city": ["Ulm"], "height": [900.0]}))
        note_version(case.tables, "places")
        case.now += 1.0
        case.refresh()
        assert by_key.computed([{"id": "a", "x": 1.0, "city": "Ulm"}], 1).features.equals(first)
    with rows.by_key as by_key:
        assert by_key.table_versions["places"] > before["places"]
        assert by_key.computed([{"id": "a", "x": 1.0, "city": "Ulm"}], 1).features["height"].to_pylist() == [
            900.0
        ]


def test_a_large_request_is_refused_without_a_view_whatever_the_policy_says(tmp_path: Path) -> None:
    case = new_case(tmp_path)
    keyed_order(case, policy=OnlinePolicy(on_broken=OnTrouble.SERVE))
    current_file(case.folder).unlink()
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "a", "x": 1.0, "city": "Ulm"}\n')
    with pytest.raises(UnavailableError, match="is missing"):
        opened(case, file).write_features(tmp_path / "features.parquet")


def test_rows_with_all_features_are_used_as_they_are_unless_the_dataset_encodes(case: OnlineCase) -> None:
    keyed_order(case)
    folder = case.tables.folder
    complete = "twice,height,x,x_mean_10m,x_count_10m,x_lag_1,x_lag_2\n1,2,3,4,5,6,7\n"
    (folder / "complete.csv").write_text(complete)
    assert not isinstance(opened(case, folder / "complete.csv", ""), KeyedRows)
    assert isinstance(opened(case, folder / "complete.csv", "status"), KeyedCsvRows)
    made = load_definition(case.folder)
    scaler = FittedEncoder(column="x", method=Method.STANDARD, center=1.0, scale=2.0)
    replace(made, encoders=(scaler,)).save(case.folder)
    assert isinstance(opened(case, folder / "complete.csv", ""), KeyedCsvRows)
    (folder / "lines.jsonl").write_text('{"id": "a", "x": 5.0, "city": "Ulm"}\n')
    rows = opened(case, folder / "lines.jsonl", "")
    rows.write_features(folder / "features.parquet")
    assert pq.read_table(folder / "features.parquet")["x"].to_pylist() == [2.0]


def test_a_table_without_a_key_is_refused_by_its_columns(case: OnlineCase) -> None:
    keyed_order(case)
    file = case.tables.folder / "short.csv"
    file.write_text("x,city\n1,Ulm\n")
    with pytest.raises(DataError, match=r"short\.csv lacks the column `id`"):
        opened(case, file).write_features(case.tables.folder / "features.parquet")
