"""A sink in parts, on several machines: the rows, rejects and metrics of one, whatever happens between the
parts and the load."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from test_sink_constraints import input_of
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.domain.artifact import Output
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import JobPart
from gridmill.domain.sink import ColumnType, Constraint, OnMisfit, SinkSpec
from gridmill.domain.source import Source
from gridmill.errors import DataError, InputError
from gridmill.jobs.sink import load_job
from gridmill.jobs.sink.run import run, share_out
from gridmill.jobs.sink.write import WriteContext

NUMBERS = range(1, 6)


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def text(number: int, rows: int = 40) -> str:
    lines = (f"{number * 25 + row},{row % 7 / 2},{'xyz'[row % 3]}\n" for row in range(rows * number))
    return "a,b,c\n" + "".join(lines)


def digits(number: int) -> str:
    """With a column of which two thirds are numbers."""
    return text(number).replace("z\n", "3\n").replace("x\n", "4\n")


def spec_of(path: str = "*.csv", **more: object) -> SinkSpec:
    return SinkSpec(source=Source(path=path), **more)


def parts(case: SinkCase, spec: SinkSpec, count: int = 3, inputs: tuple = ()) -> tuple[str, ...]:
    """The folders of so many parts."""
    uris = []
    for number in range(count):
        context = case.context(spec, inputs=inputs)
        order = replace(context.order, part=JobPart(of="p-1/s", number=number, count=count))
        assert run(replace(context, order=order)).outputs == ()
        uris.append(order.output_uri)
    return tuple(uris)


def gather(case: SinkCase, spec: SinkSpec, uris: tuple[str, ...], inputs: tuple = ()) -> Output:
    context = case.context(spec, inputs=inputs)
    return run(replace(context, order=replace(context.order, parts=uris))).outputs[0]


def never(*_: object) -> None:
    raise AssertionError("it reads what parts have read")


def write_csv(case: SinkCase, name: str, content: str) -> None:
    case.write(f"{name}.csv", content)


def write_gzip(case: SinkCase, name: str, content: str) -> None:
    (case.folder / f"{name}.csv.gz").write_bytes(gzip.compress(content.encode()))


def write_parquet(case: SinkCase, name: str, content: str) -> None:
    table = pc.read_csv(case.write("draft", content))
    pq.write_table(table, case.folder / f"{name}.parquet")


def write_jsonl(case: SinkCase, name: str, content: str) -> None:
    rows = pc.read_csv(case.write("draft", content)).to_pylist()
    case.write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


WRITERS = {
    "*.csv": write_csv,
    "*.csv.gz": write_gzip,
    "*.parquet": write_parquet,
    "*.jsonl": write_jsonl,
}
SPECS = {
    "plain": {},
    "metrics": {"metrics": {"sum": "sum(a)", "middle": "median(b)"}, "add": {"origin": "here"}},
    "constraints": {
        "constraints": (Constraint(column="b", max=2), Constraint(column="c", allowed=("x", "y")))
    },
    "unique": {"constraints": (Constraint(column="b", max=2), Constraint(unique=("a",)))},
    "misfits": {
        "columns": {"c": ColumnType.INTEGER},
        "on_misfit": OnMisfit.REJECT,
        "constraints": (Constraint(column="b", min=1),),
    },
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("path", WRITERS)
def test_parts_make_what_one_machine_makes(
    tmp_path: Path, path: str, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = spec_of(path, **SPECS[spec])
    content = digits if spec == "misfits" else text
    cases = [SinkCase(tmp_path / name) for name in ("one", "parted")]
    for case in cases:
        case.folder.mkdir()
        for number in NUMBERS:
            WRITERS[path](case, f"f{number}", content(number))
    whole = run(cases[0].context(declared)).outputs[0]
    uris = parts(cases[1], declared)
    with monkeypatch.context() as patch:
        patch.setattr(WriteContext, "write", never)
        parted = gather(cases[1], declared, uris)
    assert cases[1].rows() == cases[0].rows() != []
    assert cases[1].rejects(parted) == cases[0].rejects(whole)
    assert bool(whole.details["rejects"]) == (spec in ("constraints", "unique", "misfits"))
    assert (parted.rows, parted.columns) == (whole.rows, whole.columns)
    assert alike(parted.details) == alike(whole.details)


def alike(details: object) -> object:
    """Without what is by chance: samples of rejects, and the last digits of means."""
    if isinstance(details, dict):
        return {name: alike(value) for name, value in details.items() if name != "sample"}
    return round(details, 9) if isinstance(details, float) else details


def test_foreign_keys_hold_in_parts_and_what_was_held_against_another_version_is_read_again(
    case: SinkCase,
) -> None:
    shops = [input_of(shops_table(case, number), "shops") for number in (60, 10)]
    newer = replace(shops[1], artifact=replace(shops[1].artifact, id="p/shops@2", number=2))
    spec = spec_of(
        "f*.csv", constraints=(Constraint(foreign_key=("a",), references="shops", referenced=("id",)),)
    )
    for number in NUMBERS:
        case.write(f"f{number}.csv", text(number))
    uris = parts(case, spec, inputs=(shops[0],))
    with pytest.raises(DataError, match="the source has no rows: all"):
        gather(case, spec, uris, (newer,))
    gather(case, spec, uris, (shops[0],))
    assert {row["a"] for row in case.rows()} == set(range(25, 60))


def shops_table(case: SinkCase, rows: int) -> Output:
    """A sink of that many shops, in the same root."""
    name = f"shops{rows}"
    case.write(f"{name}.txt", "id\n" + "".join(f"{number}\n" for number in range(rows)))
    context = case.context(spec_of(f"{name}.txt"))
    return run(replace(context, order=replace(context.order, table_uri=f"sinks/p/{name}/table"))).outputs[0]


def test_a_file_that_changes_or_comes_between_is_read_as_it_is(case: SinkCase) -> None:
    for number in NUMBERS:
        case.write(f"f{number}.csv", text(number))
    uris = parts(case, spec_of())
    case.write("f2.csv", "a,b,c\n-1,0.5,new\n")
    case.write("f9.csv", "a,b,c\n-2,0.5,late\n")
    (case.folder / "f5.csv").unlink()
    output = gather(case, spec_of(), uris)
    assert output.details["files"] == 5
    assert output.rows == 40 * (1 + 3 + 4) + 2
    assert {row["a"] for row in case.rows()} >= {-1, -2}


def test_parts_that_find_other_types_leave_them_to_the_load(case: SinkCase) -> None:
    case.write("f1.csv", "a,b\n1,\n2,\n")
    case.write("f2.csv", "a,b\n1.5,x\n")
    case.write("f3.csv", "a,b\n3,y\n")
    output = gather(case, spec_of(), parts(case, spec_of()))
    assert {column.name: column.type for column in output.columns} == {"a": "double", "b": "string"}
    assert [(row["a"], row["b"]) for row in case.rows()] == [(1.0, None), (1.5, "x"), (2.0, None), (3.0, "y")]


def test_what_comes_later_goes_in_parts_too_and_nothing_twice(
    case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in NUMBERS:
        case.write(f"f{number}.csv", text(number))
    gather(case, spec_of(), parts(case, spec_of()))
    for number in (6, 7, 8):
        case.write(f"f{number}.csv", text(number))
    case.write("f1.csv", text(2))
    uris = parts(case, spec_of())
    with monkeypatch.context() as patch:
        patch.setattr(WriteContext, "write", never)
        output = gather(case, spec_of(), uris)
        assert output.details["loaded"] == ["f1.csv", "f6.csv", "f7.csv", "f8.csv"]
        assert output.rows == 40 * (2 + 2 + 3 + 4 + 5 + 6 + 7 + 8)
        again = gather(case, spec_of(), parts(case, spec_of()))
    assert again.table_version == output.table_version


def test_new_columns_are_for_all_files_together_to_say(case: SinkCase) -> None:
    case.write("f1.csv", "a\n1\n")
    case.load()
    case.write("f2.csv", "a\n2\n")
    case.write("f3.csv", "a,b\n3,x\n")
    gather(case, spec_of(), parts(case, spec_of(), 2))
    assert case.rows() == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": "x"}]


def test_a_load_that_dies_in_its_commit_is_done_again_from_the_same_parts(
    case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in NUMBERS:
        case.write(f"f{number}.csv", text(number))
    uris = parts(case, spec_of())
    with monkeypatch.context() as patch:
        patch.setattr(load_job, "commit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            gather(case, spec_of(), uris)
    monkeypatch.setattr(WriteContext, "write", never)
    assert gather(case, spec_of(), uris).rows == 40 * sum(NUMBERS)
    assert gather(case, spec_of(), uris).rows == 40 * sum(NUMBERS)
    assert len(list((case.folder / "root" / TABLE).glob("*.parquet"))) == len(NUMBERS)


def test_a_part_that_is_not_there_costs_time_alone(case: SinkCase) -> None:
    for number in NUMBERS:
        case.write(f"f{number}.csv", text(number))
    uris = parts(case, spec_of())
    assert gather(case, spec_of(), (uris[0], "sinks/p/s/gone")).rows == 40 * sum(NUMBERS)


def test_another_declaration_takes_nothing_of_the_parts(case: SinkCase) -> None:
    for number in NUMBERS:
        case.write(f"f{number}.csv", text(number))
    output = gather(case, spec_of(select=("a",)), parts(case, spec_of()))
    assert [column.name for column in output.columns] == ["a"]


def test_a_value_of_the_wrong_type_fails_the_part(case: SinkCase) -> None:
    case.write("f1.csv", "a\n1\n")
    case.write("f2.csv", "a\nx\n")
    with pytest.raises(DataError, match="'x' is not of type integer"):
        parts(case, spec_of(columns={"a": ColumnType.INTEGER}), 2)


def test_too_many_rejects_over_all_parts_fail_the_load(case: SinkCase) -> None:
    for number in NUMBERS:
        case.write(f"f{number}.csv", text(number))
    spec = spec_of(constraints=(Constraint(column="b", max=2),), max_rejects=0.05)
    with pytest.raises(InputError, match="more than `max_rejects` allows"):
        gather(case, spec, parts(case, spec))


def test_shares_are_of_about_the_same_size_and_hold_each_file_once(case: SinkCase) -> None:
    for number, rows in enumerate((50, 1, 1, 1, 30, 20)):
        case.write(f"f{number}.csv", "a\n" + "1\n" * rows)
    files = load_job.open_bench(
        case.context(spec_of()), spec_of(), load_job.SinkTable(path=case.folder, delta=None)
    ).look(lambda stat, name: "")
    shares = share_out(files.files, 2)
    assert sorted(file.name for share in shares for file in share) == [f"f{n}.csv" for n in range(6)]
    assert [sum(file.size_bytes for file in share) for share in shares] == [110, 108]
    assert share_out(files.files[:1], 3)[1:] == [[], []]


def test_only_what_is_several_files_has_parts() -> None:
    spec = SinkSpec(source=Source(path="one.csv"), parts=4)
    with pytest.raises(InputError, match=r"one\.csv cannot be read in parts"):
        spec.check()
    with pytest.raises(InputError, match="1 or more"):
        replace(spec, parts=0).check()
    assert (
        Job(name="s", sink=replace(spec, source=Source(path=("a.csv", "s3://b/c.csv")))).spec.check() is None
    )
    assert not Source(path=("a.csv", "https://b/c.csv")).splits
