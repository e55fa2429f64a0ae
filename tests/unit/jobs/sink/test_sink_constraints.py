import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.sink_case import SinkCase

from gridmill.domain.artifact import Artifact, Input, Output
from gridmill.domain.sink import ColumnType, Constraint, OnMisfit
from gridmill.errors import DataError, InputError
from gridmill.jobs.sink import load_job, rejects, run, table

INTEGER, FLOAT, STRING = ColumnType.INTEGER, ColumnType.FLOAT, ColumnType.STRING


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def places(case: SinkCase, output: Output) -> list[tuple[object, ...]]:
    return [(row["source"], row["row"], row["line"], row["reasons"]) for row in case.rejects(output)]


def input_of(output: Output, name: str) -> Input:
    return Input(
        name=name,
        artifact=Artifact(id=f"p/{name}@1", name=f"p/{name}", number=1, output=output, fingerprint=""),
    )


# each kind


@pytest.mark.parametrize(
    ("constraint", "bad", "reason"),
    [
        (Constraint(column="a", required=True), 3, "a: missing"),
        (Constraint(column="a", min=2), 1, "a: less than 2"),
        (Constraint(column="a", max=2), 4, "a: more than 2"),
        (Constraint(column="b", allowed=("x", "y")), 4, "b: not one of x, y"),
        (Constraint(column="b", pattern="[xy]"), 4, "b: does not match [xy]"),
        (Constraint(column="t", min="2013-01-02"), 1, "t: less than 2013-01-02"),
        (Constraint(column="f", max=2), 4, "f: more than 2"),
        (Constraint(expression="a < 4 or b = 'q'"), 4, "not (a < 4 or b = 'q')"),
        (Constraint(expression="f <= a", name="f is the smaller"), 4, "f is the smaller"),
        (Constraint(unique=("u",)), 3, "u: not unique"),
    ],
)
def test_a_row_that_breaks_it_is_rejected(
    case: SinkCase, constraint: Constraint, bad: int, reason: str
) -> None:
    case.write(
        "a.csv",
        "a,b,t,f,u\n1,x,2013-01-01,0.5,1\n2,y,2013-01-02,1,2\n,x,2013-01-03,,1\n4,zz,2013-01-04,1e9,\n",
    )
    output = case.load(constraints=(constraint,))
    assert places(case, output) == [("a.csv", bad, bad + 1, [reason])]
    assert output.rows == 3
    assert output.details["rejects"]["reasons"] == {reason: 1}


def test_the_row_is_kept_as_it_was_read(case: SinkCase) -> None:
    case.write("a.csv", 'k,v\n007,"12,50"\n008,NA\n')
    output = case.load(
        rename={"k": "key"},
        columns={"key": INTEGER},
        constraints=(Constraint(column="v", required=True),),
    )
    (row,) = case.rejects(output)
    assert json.loads(str(row["record"])) == {"key": "008", "v": None}


def test_all_reasons_of_a_row_are_told(case: SinkCase) -> None:
    case.write("a.csv", "a,b\n1,x\n-1,\n")
    output = case.load(constraints=(Constraint(column="a", min=0), Constraint(column="b", required=True)))
    assert places(case, output) == [("a.csv", 2, 3, ["a: less than 0", "b: missing"])]


def test_lines_are_counted_where_values_have_lines(case: SinkCase) -> None:
    case.write("a.csv", 'a,b\n1,"x\ny"\n\n-1,z\n2,z\n-3,z\n')
    output = case.load(constraints=(Constraint(column="a", min=0),))
    assert [place[1:3] for place in places(case, output)] == [(2, 5), (4, 7)]


def test_rejects_of_json_lines_know_their_line(case: SinkCase) -> None:
    case.write("a.jsonl", '{"a": 1}\n\n{"a": -1, "b": [1]}\n')
    output = case.load("a.jsonl", constraints=(Constraint(column="a", min=0),))
    assert places(case, output) == [("a.jsonl", 2, 3, ["a: less than 0"])]


def test_rejects_of_parquet_know_their_row(case: SinkCase) -> None:
    pq.write_table(pa.table({"a": [1, -1]}), case.folder / "a.parquet")
    output = case.load("a.parquet", constraints=(Constraint(column="a", min=0),))
    assert places(case, output) == [("a.parquet", 2, None, ["a: less than 0"])]


def test_a_key_must_be_in_the_other_sink(case: SinkCase, tmp_path: Path) -> None:
    other = SinkCase(tmp_path)
    other.write("shops.csv", "id,city\n1,x\n2,y\n")
    shops = input_of(case.load("shops.csv"), "shops")
    sales = SinkCase(tmp_path)
    sales.write("sales.csv", "shop,n\n1,5\n3,5\n,5\n")
    constraint = Constraint(foreign_key=("shop",), references="shops", referenced=("id",))
    context = sales.context(
        replace(case.context_spec("sales.csv"), constraints=(constraint,)), inputs=(shops,)
    )
    context = replace(context, order=replace(context.order, table_uri="sinks/p/sales/table"))
    output = run.run(context).outputs[0]
    assert output.rows == 2
    assert places(sales, output) == [("sales.csv", 2, 3, ["shop: not in shops"])]


# values that are not of their type


def test_a_value_of_another_type_fails_the_load_or_rejects_its_row(case: SinkCase) -> None:
    case.write("a.csv", "a,b\n" + "".join(f"{n if n % 1000 else 'bad'},{n}\n" for n in range(5000)))
    with pytest.raises(DataError, match="'bad' is not of type integer") as caught:
        case.load(columns={"a": INTEGER})
    assert "on_misfit" in caught.value.hint
    output = case.load(columns={"a": INTEGER}, on_misfit=OnMisfit.REJECT)
    assert [place[1] for place in places(case, output)] == [1, 1001, 2001, 3001, 4001]
    assert json.loads(str(case.rejects(output)[0]["record"])) == {"a": "bad", "b": "0"}
    assert output.rows == 4995


def test_too_many_rejects_fail_the_load(case: SinkCase) -> None:
    case.write("a.csv", "a\n1\n-1\n-2\n")
    below = (Constraint(column="a", min=0),)
    for most in (0, 0.5, 1):
        with pytest.raises(InputError, match=r"2 of 3 rows break constraints, .*2 a: less than 0"):
            case.load(constraints=below, max_rejects=most)
    assert case.load(constraints=below, max_rejects=2).rows == 1


def test_a_load_of_nothing_but_rejects_says_why(case: SinkCase) -> None:
    case.write("a.csv", "a\n-1\n")
    with pytest.raises(DataError, match=r"all 1 break constraints \(1 a: less than 0\)"):
        case.load(constraints=(Constraint(column="a", min=0),))


# uniqueness


def test_unique_within_the_load_and_against_the_table(case: SinkCase) -> None:
    unique = (Constraint(unique=("a", "b")), Constraint(unique=("c",)))
    case.write("a.csv", "a,b,c\n1,x,1\n1,x,2\n1,y,2\n2,x,2\n,x,3\n,x,4\n")
    output = case.load(constraints=unique)
    assert places(case, output) == [
        ("a.csv", 2, 3, ["a, b: not unique"]),
        ("a.csv", 4, 5, ["c: not unique"]),  # row 3 has it; row 2, rejected, does not count
    ]
    case.write("b.csv", "a,b,c\n1,y,7\n9,z,3\n8,z,8\n")
    output = case.load(constraints=unique)
    assert [place[:2] for place in places(case, output)] == [
        ("a.csv", 2),
        ("a.csv", 4),
        ("b.csv", 1),
        ("b.csv", 2),
    ]
    assert output.details["rejects"]["added"] == 2


def test_a_file_may_repeat_its_own_rows_when_it_is_replaced(case: SinkCase) -> None:
    unique = (Constraint(unique=("a",)),)
    case.write("a.csv", "a,b\n1,x\n")
    case.write("b.csv", "a,b\n2,x\n1,y\n")
    case.load(constraints=unique)
    case.write("b.csv", "a,b\n2,z\n3,z\n")
    output = case.load(constraints=unique)
    assert case.rejects(output) == []
    assert output.rows == 3


def test_the_places_of_repeated_rows_behind_rejected_ones(case: SinkCase) -> None:
    case.write("a.csv", "a\n-1\n5\n-2\n-3\n5\n-4\n6\n5\n")
    output = case.load(constraints=(Constraint(column="a", min=0), Constraint(unique=("a",))))
    assert [place[1] for place in places(case, output)] == [1, 3, 4, 5, 6, 8]


# exactly once


def test_rejects_are_kept_once(case: SinkCase) -> None:
    below = (Constraint(column="a", min=0),)
    case.write("a.csv", "a\n1\n-1\n")
    first = case.load(constraints=below)
    assert case.load(constraints=below).table_version == first.table_version
    case.write("b.csv", "a\n-2\n")  # nothing but rejects
    second = case.load(constraints=below)
    assert len(case.rejects(second)) == 2
    third = case.load(constraints=below)
    assert third.table_version == second.table_version
    case.write("a.csv", "a\n1\n2\n")  # mended
    fourth = case.load(constraints=below)
    assert places(case, fourth) == [("b.csv", 1, 2, ["a: less than 0"])]
    assert len(case.rejects(first)) == 1  # earlier versions stay as they were


class KilledError(BaseException):
    pass


KILLS = ("commit_rejects", "commit", "after")


def kill(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Die before the rejects are committed, between both commits, or after both."""

    def die(*_: object, **__: object) -> None:
        raise KilledError

    if at == "after":
        monkeypatch.setattr(run, "_result", die)
    else:
        monkeypatch.setattr(load_job, at, die)


ROW = st.tuples(st.integers(-2, 3), st.sampled_from(["", "x", "y", "long"]))


@pytest.mark.long
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.lists(ROW, min_size=1, max_size=6), min_size=1, max_size=4),
    kills=st.lists(st.sampled_from(KILLS), max_size=3),
    changed=st.lists(ROW, min_size=1, max_size=4),
)
def test_every_source_row_is_in_the_table_or_rejected_once_whatever_is_killed(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[tuple[int, str]]],
    kills: list[str],
    changed: list[tuple[int, str]],
) -> None:
    case = SinkCase(tmp_path_factory.mktemp("killed"))
    constraints = (
        Constraint(column="a", min=0),
        Constraint(column="b", pattern="."),
        Constraint(unique=("a",)),
    )

    def load_all() -> Output:
        for at in kills:
            with pytest.MonkeyPatch.context() as patch:
                kill(patch, at)
                with suppress(KilledError):  # some have nothing to commit any more
                    case.load(constraints=constraints, columns={"b": STRING}, nulls=())
        return case.load(constraints=constraints, columns={"b": STRING}, nulls=())

    def check(output: Output, there: dict[str, list[tuple[int, str]]]) -> None:
        kept = [(row["a"], row["b"]) for row in case.rows(output.table_version)]
        rejected = [json.loads(str(row["record"])) for row in case.rejects(output)]
        refused = [(int(row["a"]), row["b"]) for row in rejected]
        assert sorted(kept + refused) == sorted(row for rows in there.values() for row in rows)
        where = [(row["source"], row["row"]) for row in case.rejects(output)]
        assert len(set(where)) == len(where)
        assert len({a for a, _ in kept}) == len(kept)

    there = {"0.csv": [(9, "z")]}
    case.write("0.csv", "a,b\n9,z\n")
    for number, rows in enumerate(files, start=1):
        there[f"{number}.csv"] = rows
        case.write(f"{number}.csv", "a,b\n" + "".join(f"{a},{b}\n" for a, b in rows))
        check(load_all(), there)
    there["1.csv"] = changed
    case.write("1.csv", "a,b\n" + "".join(f"{a},{b}\n" for a, b in changed))
    check(load_all(), there)


def test_what_a_killed_attempt_left_is_no_reject(case: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    below = (Constraint(column="a", min=0),)
    case.write("a.csv", "a\n1\n-1\n")
    first = case.load(constraints=below)
    case.write("b.csv", "a\n2\n-2\n")
    with monkeypatch.context() as patch:
        kill(patch, "commit")
        with pytest.raises(KilledError):
            case.load(constraints=below)
    path = case.folder / "root/sinks/p/s/rejects"
    assert rejects.open_sink_table(path).delta.version() > first.details["rejects"]["table_version"]
    assert table.open_sink_table(case.folder / "root/sinks/p/s/table").rejects == 1
    case.write("b.csv", "a\n2\n3\n")
    assert len(case.rejects(case.load(constraints=below))) == 1


# constraints that do not fit


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Constraint(column="c", required=True), "there is no column 'c'"),
        (Constraint(column="b", min=0), "column 'b' has type string, but 0 cannot be compared with it"),
        (
            Constraint(column="a", pattern="x"),
            "a pattern needs a column of text, but column 'a' has type int64",
        ),
        (Constraint(column="a", allowed=("x",)), "(?i)could not convert"),
        (Constraint(column="b", pattern="(?=x)"), "(?i)invalid perl operator"),
        (
            Constraint(expression="a + 1"),
            "'a \\+ 1' has type INTEGER|BIGINT, but a constraint must be true or false",
        ),
        (Constraint(expression="a > (select 1)"), "has a query inside"),
        (Constraint(expression="c > 1"), '"c" not found'),
    ],
)
def test_a_constraint_that_does_not_fit_the_columns(
    case: SinkCase, constraint: Constraint, message: str
) -> None:
    case.write("a.csv", "a,b\n1,x\n")
    with pytest.raises(InputError, match=message) as caught:
        case.load(constraints=(constraint,))
    assert caught.value.place.startswith("sink.constraints[0]")


def test_all_constraints_that_do_not_fit_are_reported_together(case: SinkCase) -> None:
    case.write("a.csv", "a,b\n1,x\n")
    wrong = (
        Constraint(column="aa", min=0),
        Constraint(column="a", max=5),
        Constraint(column="b", min=0),
        Constraint(expression="a + 1"),
    )
    with pytest.raises(InputError) as caught:
        case.load(constraints=wrong)
    assert caught.value.message.startswith("3 problems\n  sink.constraints[0]: there is no column 'aa'")
    places = [place for place, _, _ in caught.value.problems]
    assert places == ["sink.constraints[0]", "sink.constraints[2]", "sink.constraints[3].expression"]
    assert caught.value.place == "sink.constraints"
