"""Requests to a view: statuses, defaults, unknown keys, wrong values, and views that are old or broken."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.kit.dataset_case import DatasetCase
from tests.kit.online_case import OnlineCase
from tests.oracles.dataset_cases import note_version

from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Lag, Window
from gridmill.domain.service_features import FeatureRule, OnlinePolicy, OnTrouble
from gridmill.errors import InputError, StorageError, UnavailableError
from gridmill.online import build
from gridmill.online.build import ViewLimits
from gridmill.online.features import Status
from gridmill.online.view import current_file

START = datetime(2024, 1, 1)
SPEC = DatasetSpec(
    basis=Basis(table="temps", time="at", entity=("id",)),
    windows=(Window(column="x", aggregates=(Aggregate.MEAN, Aggregate.COUNT), span_seconds=600.0),),
    lags=(Lag(column="x", steps=(1,)),),
)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def rows(*given: tuple[int, float, float | None]) -> pa.Table:
    ids, minutes, values = zip(*given, strict=True)
    times = pa.array([at(one) for one in minutes], pa.timestamp("us", "UTC"))
    return pa.table({"id": list(ids), "at": times, "x": pa.array(values, pa.float64())})


@pytest.fixture
def case(tmp_path: Path) -> OnlineCase:
    tables = DatasetCase(tmp_path)
    tables.give("temps", rows((1, 0, 1.0), (1, 5, 3.0), (2, 5, None)))
    note_version(tables, "temps")
    made = OnlineCase(tables, SPEC)
    set_minute(made, 8)
    made.build()
    return made


def set_minute(case: OnlineCase, minutes: float) -> None:
    case.now = (at(minutes) - datetime(1970, 1, 1)).total_seconds()


def ask(case: OnlineCase, *given: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    features = case.features(**options)
    made = features.features_for([{"x": 0.0, **one} for one in given])
    features.close()
    names = [name for name in made.columns.column_names if name != "x"]
    return [
        {name: (made.columns[name][n].as_py(), made.statuses[name][n]) for name in names}
        for n in range(len(given))
    ]


def append(case: OnlineCase, table: pa.Table) -> None:
    path = case.tables.folder / "root" / case.tables.tables["temps"].uri
    write_deltalake(path, table, mode="append")
    note_version(case.tables, "temps")


def test_windows_slide_although_no_row_arrives(case: OnlineCase):
    assert ask(case, {"id": 1})[0]["x_mean_10m"] == (2.0, Status.PRESENT)
    set_minute(case, 12)
    assert ask(case, {"id": 1})[0]["x_mean_10m"] == (3.0, Status.PRESENT)
    set_minute(case, 16)
    assert ask(case, {"id": 1})[0]["x_mean_10m"] == (None, Status.MISSING)


def test_the_as_of_time_of_a_row_may_have_any_zone(case: OnlineCase):
    made = ask(case, {"id": 1, "at": "2024-01-01T02:04:00+02:00"}, {"id": 1, "at": "2024-01-01T00:05:00Z"})
    assert [one["x_count_10m"][0] for one in made] == [1, 1], "a row at the as-of time itself is not known"


def test_a_value_is_stale_defaulted_or_missing(case: OnlineCase):
    rules = {
        "x_mean_10m": FeatureRule(default=-1.0),
        "x_lag_1": FeatureRule(max_age_seconds=120.0),
        "x_count_10m": FeatureRule(max_age_seconds=300.0),
    }
    known, empty, unknown = ask(case, {"id": 1}, {"id": 2}, {"id": 3}, rules=rules)
    assert known["x_lag_1"] == (3.0, Status.STALE)
    assert known["x_count_10m"] == (2, Status.PRESENT)
    assert empty["x_mean_10m"] == unknown["x_mean_10m"] == (-1.0, Status.DEFAULTED)
    assert unknown["x_lag_1"] == (None, Status.MISSING)
    assert unknown["x_count_10m"] == (0, Status.PRESENT)


def test_a_rule_for_an_unknown_feature_or_with_another_type_is_refused(case: OnlineCase):
    with pytest.raises(InputError, match=r"'x_mean_1m' is not a feature .*; did you mean `x_mean_10m`\?"):
        ask(case, {"id": 1}, rules={"x_mean_1m": FeatureRule(default=1.0)})
    with pytest.raises(InputError, match="'warm' cannot be the default of 'x_mean_10m'") as refused:
        ask(case, {"id": 1}, rules={"x_mean_10m": FeatureRule(default="warm")})
    assert refused.value.place == "features.rules.x_mean_10m.default"


def test_an_unknown_key_is_refused_if_the_policy_says_so(case: OnlineCase):
    policy = OnlinePolicy(on_unknown_key=OnTrouble.REFUSE)
    with pytest.raises(InputError, match=r"rows\[1\]: table 'temps' has no row with id=3 before"):
        ask(case, {"id": 1}, {"id": 3}, policy=policy)
    rules = {name: FeatureRule(default=0) for name in ("x_mean_10m", "x_count_10m", "x_lag_1")}
    made = ask(case, {"id": 3}, policy=policy, rules=rules)[0]
    assert {status for _, status in made.values()} == {Status.DEFAULTED}


def test_a_request_may_send_a_computed_feature(case: OnlineCase):
    made = ask(case, {"id": 1, "x_mean_10m": 9.5}, {"id": 1})
    assert [one["x_mean_10m"] for one in made] == [(9.5, Status.PRESENT), (2.0, Status.PRESENT)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "one"}, "rows[0].id: 'one' is not a whole number"),
        ({"id": 1.5}, "rows[0].id: 1.5 is not a whole number"),
        ({"id": float("nan")}, "rows[0].id: nan is not a whole number"),
        ({"id": float("inf")}, "rows[0].id: inf is not a whole number"),
        ({"id": 2**63}, "is not a whole number from"),
        ({"id": True}, "rows[0].id: True is not a whole number"),
        ({"x": 1.0}, "rows[0].id: the field is missing"),
        ({"id": 1, "x": 10**400}, "is not a number that a double can hold"),
        ({"id": 1, "at": "0001-01-01T00:00+02:00"}, "is not a time from the year 1"),
        ({"id": 1, "x": "warm"}, "rows[0].x: 'warm' is not a number"),
        ({"id": 1, "at": "noon"}, "rows[0].at: 'noon' is not a time"),
        ({"id": 1, "at": 12}, "rows[0].at: 12 is not a time"),
        ({"id": 1, "x_mean_10m": "much"}, "rows[0].x_mean_10m: 'much' is not a number"),
    ],
)
def test_a_wrong_value_is_refused_by_row_and_field(case: OnlineCase, row: dict[str, Any], message: str):
    with pytest.raises(InputError) as caught:
        ask(case, row)
    assert message in str(caught.value)


def test_new_rows_and_their_version_become_visible_together(case: OnlineCase):
    features = case.features()
    assert features.features_for([{"id": 1, "x": 0.0}]).held["temps"].number == 0
    append(case, rows((1, 7, 8.0), (1, 2, 4.0)))
    case.refresh()
    made = features.features_for([{"id": 1, "x": 0.0}])
    features.close()
    assert made.held["temps"].number == 1
    assert made.columns.to_pylist() == [{"x": 0.0, "x_mean_10m": 4.0, "x_count_10m": 4, "x_lag_1": 8.0}]


def test_an_older_value_in_the_same_load_does_not_win(case: OnlineCase):
    append(case, rows((1, 7, 8.0), (1, 6, 7.0)))
    append(case, rows((1, 6.5, 7.5)))
    case.refresh()
    assert ask(case, {"id": 1})[0]["x_lag_1"] == (8.0, Status.PRESENT)


def test_a_view_keeps_only_rows_that_a_request_can_need(tmp_path: Path):
    tables = DatasetCase(tmp_path)
    tables.give("temps", rows(*((1, minute, float(minute)) for minute in range(0, 100))))
    note_version(tables, "temps")
    case = OnlineCase(tables, SPEC, limits=ViewLimits(reach_back_seconds=60.0))
    set_minute(case, 100)
    case.build()
    assert stored(case) == [12, 12], "11 minutes, and one row for the lag"
    with pytest.raises(InputError, match=r"before 2024-01-01T01:39:00\.000000Z, the oldest time"):
        ask(case, {"id": 1, "at": "2024-01-01T01:38:59Z"})
    assert ask(case, {"id": 1, "at": "2024-01-01T01:39:00Z"})[0]["x_count_10m"][0] == 10
    append(case, rows((1, 130, 1.0)))
    set_minute(case, 131)
    case.refresh()
    assert stored(case) == [2, 2]


def stored(case: OnlineCase) -> list[int]:
    with sqlite3.connect(current_file(case.folder)) as db:
        counts = [db.execute(f"SELECT sum(n) FROM feed_{n}").fetchone()[0] for n in range(1)]
    db.close()
    return counts * 2


def test_a_row_that_was_left_out_returns_if_newer_rows_are_deleted(tmp_path: Path):
    tables = DatasetCase(tmp_path)
    tables.give("temps", rows((1, 0, 1.0), (1, 10, 2.0), (2, 0, 5.0)))
    note_version(tables, "temps")
    case = OnlineCase(tables, SPEC, limits=ViewLimits(reach_back_seconds=60.0))
    set_minute(case, 500)
    case.build()
    assert ask(case, {"id": 1})[0]["x_lag_1"] == (2.0, Status.PRESENT)
    path = case.tables.folder / "root" / case.tables.tables["temps"].uri
    DeltaTable(path).delete("x = 2.0")
    note_version(tables, "temps")
    case.refresh()
    assert ask(case, {"id": 1})[0]["x_lag_1"] == (1.0, Status.PRESENT)
    assert ask(case, {"id": 2})[0]["x_lag_1"] == (5.0, Status.PRESENT)


def test_an_old_view_is_served_as_stale_or_refused(case: OnlineCase):
    set_minute(case, 12)
    policy = OnlinePolicy(stale_after_seconds=60.0)
    assert ask(case, {"id": 1}, policy=policy)[0]["x_mean_10m"] == (3.0, Status.STALE)
    refusing = OnlinePolicy(stale_after_seconds=60.0, on_stale=OnTrouble.REFUSE, on_broken=OnTrouble.SERVE)
    with pytest.raises(UnavailableError, match="last updated 240 s ago, and the limit is 60 s"):
        ask(case, {"id": 1}, policy=refusing)
    case.refresh()
    assert ask(case, {"id": 1}, policy=refusing)[0]["x_mean_10m"] == (3.0, Status.PRESENT)


def test_rows_of_a_new_outage_leave_the_view(case: OnlineCase):
    outage = {"time": "at", "begins": "2024-01-01T00:04", "ends": "2024-01-01T00:06", "reason": "broken"}
    output = case.tables.tables["temps"]
    case.tables.tables["temps"] = replace(output, details={**output.details, "outages": [outage]})
    features = case.features()
    assert features.features_for([{"id": 1, "x": 0.0}]).columns["x_mean_10m"].to_pylist() == [2.0]
    case.refresh()
    assert features.features_for([{"id": 1, "x": 0.0}]).columns["x_mean_10m"].to_pylist() == [1.0]
    features.close()


def test_requests_during_a_refresh_see_one_version(case: OnlineCase):
    """Each answer is that of the version that it names, while another thread loads rows."""
    expected = {0: 2}
    for number in range(1, 6):
        append(case, rows(*((1, 7 + place / 100, 1.0) for place in range(number))))
        expected[number] = expected[number - 1] + number
    newest = case.tables.tables["temps"]

    def follow() -> None:
        for number in range(1, 6):
            case.tables.tables["temps"] = replace(newest, table_version=number)
            case.refresh()

    features, seen = case.features(), set()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(follow)
        while 5 not in seen:
            made = features.features_for([{"id": 1, "x": 0.0}])
            number = made.held["temps"].number
            assert made.columns["x_count_10m"].to_pylist() == [expected[number]]
            seen.add(number)
            assert not (done.done() and done.exception())
        done.result()
    features.close()


SERVE = OnlinePolicy(on_broken=OnTrouble.SERVE)


def check_broken(case: OnlineCase, message: str) -> None:
    """Such a view refuses, or serves statuses; a view that is built again serves."""
    with pytest.raises(UnavailableError, match=message):
        ask(case, {"id": 1})
    rules = {"x_mean_10m": FeatureRule(default=20.0)}
    made = ask(case, {"id": 1, "x_count_10m": 3}, policy=SERVE, rules=rules)[0]
    assert made == {
        "x_mean_10m": (20.0, Status.DEFAULTED),
        "x_count_10m": (3, Status.PRESENT),
        "x_lag_1": (None, Status.MISSING),
    }
    case.build()
    assert ask(case, {"id": 1})[0]["x_mean_10m"] == (2.0, Status.PRESENT)


def test_a_missing_view(case: OnlineCase):
    current_file(case.folder).unlink()
    check_broken(case, "of the view is missing")


def test_a_view_that_was_never_built(case: OnlineCase):
    (case.folder / "current").unlink()
    check_broken(case, "there is no view in")


def test_a_view_that_is_no_database(case: OnlineCase):
    current_file(case.folder).write_bytes(b"nothing" * 4096)
    check_broken(case, "cannot be used")


def test_a_view_that_was_cut(case: OnlineCase):
    with current_file(case.folder).open("r+b") as file:
        file.truncate(5000)
    check_broken(case, "cannot be used")


def test_a_row_with_a_wrong_bit(case: OnlineCase):
    path = current_file(case.folder)
    with sqlite3.connect(path) as db:
        row = bytearray(db.execute("SELECT row FROM feed_0 WHERE key = 1 ORDER BY known DESC").fetchone()[0])
        row[3] ^= 4
        db.execute(
            "UPDATE feed_0 SET row = ? WHERE key = 1 AND known = (SELECT max(known) FROM feed_0)",
            (bytes(row),),
        )
    db.close()
    check_broken(case, "the checksum of a row is wrong")


def test_a_view_of_other_features(case: OnlineCase):
    spec = replace(SPEC, windows=(replace(SPEC.windows[0], column="x", span_seconds=1200.0),))
    other = OnlineCase(case.tables, spec, now=case.now)
    with pytest.raises(UnavailableError, match="built for other features"):
        ask(other, {"id": 1})


def test_an_interrupted_build_continues_and_the_old_view_serves(
    case: OnlineCase, monkeypatch: pytest.MonkeyPatch
):
    append(case, rows(*((key, minute / 100, 1.0) for key in range(50) for minute in range(20))))
    written: list[int] = []
    encoded_rows = build.encoded_rows

    def failing(feed: Any, table: pa.Table) -> Any:
        if len(written) == 12:
            raise OSError("no more")
        written.append(table.num_rows)
        return encoded_rows(feed, table)

    monkeypatch.setattr(build, "COMMIT_ROWS", 100)
    monkeypatch.setattr(build, "BATCH_ROWS", 30)
    monkeypatch.setattr(build, "encoded_rows", failing)
    with pytest.raises(StorageError, match="no more"):
        case.build()
    assert ask(case, {"id": 1})[0]["x_count_10m"] == (2, Status.PRESENT)
    monkeypatch.setattr(build, "encoded_rows", encoded_rows)
    before = sum(written)
    written.clear()
    counted: list[int] = []
    monkeypatch.setattr(
        build, "encoded_rows", lambda feed, table: counted.append(table.num_rows) or encoded_rows(feed, table)
    )
    case.build()
    assert 0 < sum(counted) < 1003
    assert before > 0
    assert ask(case, {"id": 1})[0]["x_count_10m"] == (22, Status.PRESENT)
    assert ask(case, {"id": 49})[0]["x_count_10m"] == (20, Status.PRESENT)
