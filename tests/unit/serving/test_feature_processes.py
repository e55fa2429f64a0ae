"""Several processes compute the features of a large request bit by bit as one process does, from one state of
the view, and leave nothing behind."""

import json
import os
import random
import signal
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.kit.dataset_case import DatasetCase
from tests.kit.keyed_service import keyed_order
from tests.kit.online_case import OnlineCase
from tests.oracles.dataset_cases import note_version

from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Join, Lag, Window
from gridmill.domain.service_features import FeatureDefinition, FeatureRule
from gridmill.errors import DataError, GridmillError, JobError, UnavailableError
from gridmill.online.definition import open_features
from gridmill.serving import feature_processes, request_file
from gridmill.serving.bulk_features import FIRST_ROWS, GROUP_ROWS, BulkFeatures, BulkOrder, ComputedRows
from gridmill.serving.feature_processes import FeatureProcesses, lines_work
from gridmill.serving.keyed_rows import KeyedRows
from gridmill.serving.open_request import open_request

START = datetime.now(UTC).replace(microsecond=0) - timedelta(days=2)
IDS = ("a", "b", "c", "d")
SPEC = DatasetSpec(
    basis=Basis(table="temps", time="at", entity=("id",)),
    windows=(
        Window(
            column="x",
            aggregates=(
                Aggregate.MEAN,
                Aggregate.STD,
                Aggregate.SUM,
                Aggregate.MAX,
                Aggregate.DISTINCT,
            ),
            span_seconds=3600.0,
        ),
        Window(column="x", aggregates=(Aggregate.MEAN,), span_rows=5),
    ),
    lags=(Lag(column="x", steps=(1, 2)),),
    joins=(Join(table="places", on=("city",)),),
    features={"twice": "2 * x"},
)
RULES = {"x_lag_1": FeatureRule(max_age_seconds=300.0), "height": FeatureRule(default=7.0)}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> OnlineCase:
    """A view with many rows of each key, whose sums depend on the order in which they are added."""
    draw = random.Random(5)
    tables = DatasetCase(tmp_path_factory.mktemp("case"))
    count = 400
    minutes = sorted(draw.randrange(600) for _ in range(count))
    columns = {
        "id": [draw.choice(IDS) for _ in range(count)],
        "at": pa.array([START + timedelta(minutes=one) for one in minutes], pa.timestamp("us", "UTC")),
        "x": [draw.choice([None, draw.uniform(-1e6, 1e6), draw.uniform(-1, 1)]) for _ in range(count)],
        "city": ["Ulm"] * count,
    }
    tables.give("temps", pa.table(columns))
    tables.give("places", pa.table({"city": ["Ulm", "Köln"], "height": [100.0, 50.0]}))
    for name in ("temps", "places"):
        note_version(tables, name)
    made = OnlineCase(tables, SPEC)
    made.now = START.timestamp() + 86_400.0
    made.build()
    keyed_order(made, rules=RULES)
    return made


NO_SHRINKING = [Phase.explicit, Phase.generate]
"""A smaller example says no more here, and each one takes long."""


def bits(table: pa.Table) -> list[Any]:
    """The rows of a table, with each double as its bytes."""
    return [
        [struct.pack("<d", value) if isinstance(value, float) else value for value in row.values()]
        for row in table.to_pylist()
    ]


def joined(parts: Sequence[ComputedRows]) -> tuple[list[Any], list[Any], dict[str, dict[str, int]]]:
    counts: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, counted in part.not_present.items():
            for status, number in counted.items():
                of_name = counts.setdefault(name, {})
                of_name[status] = of_name.get(status, 0) + number
    shown = [row for part in parts if part.shown is not None for row in bits(part.shown)]
    return [row for part in parts for row in bits(part.features)], shown, counts


def order_of(case: OnlineCase, view_rows: int = 1000) -> BulkOrder:
    by_key = rows_of(case, case.tables.folder / "no.jsonl").by_key
    return BulkOrder(
        folder=by_key.order.folder,
        encodings=by_key.order.encodings,
        sequence=None,
        began=case.now,
        wish="values",
        view_rows=view_rows,
    )


def rows_of(case: OnlineCase, file: Path, processes: int = 1) -> KeyedRows:
    definition = FeatureDefinition(folder="view", view="view", tables={}, request={})
    root = case.tables.folder
    if not file.exists():
        file.write_text('{"id": "a", "x": 1.0, "city": "Ulm"}\n')
    rows = open_request(
        file,
        "rows",
        root / "model",
        ".jsonl",
        root=root,
        definition=definition,
        wish="values",
        processes=processes,
    )
    assert isinstance(rows, KeyedRows)
    return rows


def one_after_another(case: OnlineCase, pieces: Sequence[Sequence[dict[str, Any]]]) -> list[list[Any]]:
    """The features of all pieces, computed in groups whose size doubles."""
    order, size = order_of(case), 64
    features = open_features(Path(order.folder), lambda: order.began)
    made: list[list[Any]] = []
    for piece in pieces:
        start = 0
        while start < len(piece):
            columns = features.features_for(piece[start : start + size]).columns
            start, size = start + size, min(size * 2, GROUP_ROWS)
            numbers = {one.column: columns[one.column].cast(pa.float64()) for one in order.encodings}
            made += bits(pa.table(numbers))
    features.close()
    return made


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=NO_SHRINKING)
@given(seed=st.integers(0, 10**6), borders=st.sets(st.integers(1, 599)), order=st.randoms())
def test_features_do_not_depend_on_which_process_computes_a_piece_and_when(
    case: OnlineCase, seed: int, borders: set[int], order: random.Random
) -> None:
    rows = drawn_rows(order.randrange(1, 600), seed)
    ends = [0, *sorted(one for one in borders if one < len(rows)), len(rows)]
    pieces = [rows[low:high] for low, high in pairwise(ends)]
    group, works = FIRST_ROWS, []
    with BulkFeatures(order_of(case)) as one, BulkFeatures(order_of(case)) as other:
        for number, piece in enumerate(pieces):
            works.append((number, piece, group, order.choice([one, other])))
            group = one.order.group_after(group, len(piece))
        order.shuffle(works)
        made = {number: by_key.computed(piece, group) for number, piece, group, by_key in works}
        features, shown, counts = joined([made[number] for number in range(len(pieces))])
        assert features == one_after_another(case, pieces)
        whole = joined([one.computed(rows, FIRST_ROWS)])
        assert counts == whole[2]
        assert [row[-len(one.plan.computed) :] for row in shown] == [
            row[-len(one.plan.computed) :] for row in whole[1]
        ]


def test_rows_that_need_too_many_rows_of_the_view_are_computed_in_smaller_groups(case: OnlineCase) -> None:
    rows = drawn_rows(200, 4)
    with BulkFeatures(order_of(case)) as whole, BulkFeatures(order_of(case, view_rows=20)) as small:
        expected, made = whole.computed(rows, 64), small.computed(rows, 64)
    assert made.not_present == expected.not_present
    for name in made.features.column_names:
        one, other = (table[name].combine_chunks() for table in (made.features, expected.features))
        assert one.is_null().equals(other.is_null())
        assert one.drop_null().to_pylist() == pytest.approx(other.drop_null().to_pylist(), rel=1e-6, abs=1e-2)


def drawn_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows in which neighbors often have the same key and time."""
    draw = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        at = (START + timedelta(minutes=draw.randrange(700))).isoformat()
        key = draw.choice([*IDS, "new", None])
        for _ in range(draw.randrange(1, 9)):
            row = {"id": key, "x": draw.choice([0.1, None]), "city": draw.choice(["Ulm", "Rom", None])}
            rows.append(row | draw.choice([{}, {"at": at}, {"at": at}, {"at": None}]))
    return rows[:count]


def written(rows: KeyedRows, folder: Path) -> tuple[list[Any], list[Any], Any, Any]:
    folder.mkdir(exist_ok=True)
    rows.write_features(folder / "features.parquet")
    shown = rows.shown()
    assert shown is not None
    features = bits(pq.read_table(folder / "features.parquet"))
    return features, bits(pa.Table.from_batches(list(shown))), rows.not_present, rows.table_versions


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_a_file_has_the_same_features_with_several_processes(
    case: OnlineCase, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridmill.serving.open_request.time", lambda: case.now)
    monkeypatch.setattr(request_file, "PIECE_ROWS", 7)
    monkeypatch.setattr("gridmill.serving.open_request.PIECE_ROWS", 7)
    rows, file = drawn_rows(150, 3), tmp_path / f"rows{ending}"
    table = pa.Table.from_pylist([{**dict.fromkeys(("id", "x", "city", "at")), **row} for row in rows])
    if ending == ".parquet":
        pq.write_table(table, file)
    elif ending == ".csv":
        notes = pa.array(["x" * 2**15] * len(rows))  # the file has several batches
        pa.csv.write_csv(
            table.append_column("note", notes), file, pa.csv.WriteOptions(quoting_style="needed")
        )
    else:
        file.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    alone = written(rows_of(case, file), tmp_path / "alone")
    started: list[int] = []
    monkeypatch.setattr(
        FeatureProcesses,
        "__enter__",
        lambda self, enter=FeatureProcesses.__enter__: started.append(self._count) or enter(self),
    )
    together = written(rows_of(case, file, 3), tmp_path / "together")
    assert started == [3]
    assert together == alone
    assert len(alone[0]) == 150


def test_the_first_wrong_row_is_named_although_a_later_one_is_found_earlier(
    case: OnlineCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_file, "PIECE_ROWS", 10)
    monkeypatch.setattr(request_file, "LINE_BYTES", 400)
    lines = [json.dumps(row) for row in drawn_rows(100, 9)]
    lines[44] = '{"id": "a", "x": "warm", "city": "Ulm"}'
    lines[51] = "{"
    lines[70] = '{"id": "a", "note": "' + "x" * 500 + '"}'
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines))
    messages = []
    for processes in (1, 3):
        with pytest.raises(DataError) as refused:
            rows_of(case, file, processes).write_features(tmp_path / "features.parquet")
        messages.append((refused.value.message, refused.value.hint))
    assert messages[0] == messages[1]
    assert "rows.jsonl, line 45, field 'x': " in messages[0][0]
    lines[44] = lines[51] = lines[0]
    file.write_text("\n".join(lines))
    with pytest.raises(DataError, match="line 71: the line has more than 400 bytes"):
        rows_of(case, file, 3).write_features(tmp_path / "features.parquet")


def pieces_of(rows: Sequence[dict[str, Any]], size: int) -> Iterator[list[bytes]]:
    lines = [json.dumps(row).encode() for row in rows]
    for at in range(0, len(lines), size):
        yield lines[at : at + size]


def sent(lines: Sequence[bytes]) -> bytes:
    return lines_work(lines, 64)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_dies_is_an_error_and_all_processes_end(case: OnlineCase) -> None:
    with BulkFeatures(order_of(case)) as by_key, FeatureProcesses(by_key, "rows", 2) as workers:
        pids = [process.pid for process in workers._processes.values()]
        results = workers.in_order(pieces_of(drawn_rows(60, 1), 5), sent)
        assert next(results)[1]().features.num_rows == 5
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(JobError, match=r"has ended early \(killed by SIGKILL\)"):
            list(results)
    assert not any(map(is_running, pids))


def test_all_processes_read_the_state_with_which_the_request_began(tmp_path: Path) -> None:
    tables = DatasetCase(tmp_path)
    times = pa.array([START], pa.timestamp("us", "UTC"))
    tables.give("temps", pa.table({"id": ["a"], "at": times, "x": [1.0], "city": ["Ulm"]}))
    tables.give("places", pa.table({"city": ["Ulm"], "height": [100.0]}))
    note_version(tables, "places")
    case = OnlineCase(tables, SPEC)
    case.now = START.timestamp() + 86_400.0
    case.build()
    keyed_order(case)

    def load(height: float) -> None:
        tables.give("places", pa.table({"city": ["Ulm"], "height": [height]}))
        note_version(tables, "places")
        case.now += 1.0
        case.refresh()

    row = [{"id": "a", "x": 1.0, "city": "Ulm"}]
    with BulkFeatures(order_of(case)) as by_key:
        load(200.0)  # the processes see it, and the request has not yet begun
        with FeatureProcesses(by_key, "rows", 2) as workers:
            results = workers.in_order(pieces_of(row * 8, 1), sent)
            made = [next(results)[1]()]
            load(300.0)
            made += [result() for _, result in results]
            heights = {one.features["height"][0].as_py() for one in made}
            assert heights == {by_key.computed(row, 64).features["height"][0].as_py()} == {200.0}


def test_a_view_that_changes_all_the_time_is_refused(
    case: OnlineCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_processes, "TRIES", 3)
    monkeypatch.setattr(feature_processes, "_text_of", lambda by_key: "another state")
    with (
        BulkFeatures(order_of(case)) as by_key,
        pytest.raises(UnavailableError, match="has changed 3 times while 2 processes opened it"),
        FeatureProcesses(by_key, "rows", 2),
    ):
        pass


def test_an_error_of_a_process_is_the_error_of_the_request(case: OnlineCase) -> None:
    with BulkFeatures(order_of(case)) as by_key:
        definition = Path(by_key.order.folder) / "features.json"
        content = definition.read_bytes()
        try:
            definition.unlink()
            with pytest.raises(GridmillError, match="cannot be read"), FeatureProcesses(by_key, "rows", 2):
                pass
        finally:
            definition.write_bytes(content)
