"""A plan holds a pipeline against its data: what a run would fail with has file, line and cure before it."""

import gzip
import json
import random
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from gridmill.declarations import read_pipeline
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.preflight import PreflightResult, preflight_question, show_finding
from gridmill.errors import PipelineError, explained
from gridmill.jobs.preflight import sinks
from gridmill.jobs.preflight.run import check

ROWS = 400
BASE = """\
pipeline: p
jobs:
  w:
    sink:
      source: w.csv
  cities: {sink: {source: cities.csv}}
  d:
    dataset:
      basis: {table: w, time: time, entity: [city]}
      joins:
        - {table: cities, on: [city], columns: [height]}
      lags:
        - {column: temp, steps: [1, 2]}
      windows:
        - {column: rain, span: 6h, aggregates: [sum]}
      features:
        double: temp * 2
      label: {column: temp, horizon: 6h}
      split: {validation: 0.15, test: 0.15}
  totals:
    dataset:
      tables: [w]
      sql: |
        select city, sum(rain) as rain
        from w group by city
  trees:
    training: {dataset: d, model: gbdt}
  net:
    training: {dataset: d, model: lstm, sequence: 24}
  said:
    prediction: {dataset: d, models: [trees, net]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hourly rows of two cities, as CSV, packed CSV, JSON lines and Parquet; a table of cities."""
    made = tmp_path_factory.mktemp("preflight")
    draw = random.Random(1)
    at = datetime(2024, 1, 1)
    lines = ["time,city,temp,rain,kind"]
    for row in range(ROWS):
        moment = at + timedelta(hours=row // 2)
        cells = (moment.isoformat(), "ab"[row % 2], f"{draw.random() * 30:.2f}", f"{draw.random():.2f}")
        lines.append(",".join((*cells, draw.choice("xy"))))
    text = "\n".join(lines) + "\n"
    (made / "w.csv").write_text(text)
    (made / "cities.csv").write_text("city,height\na,10\nb,20\n")
    (made / "dated.csv").write_text("city,height,since\na,10,1900-01-01\nb,20,1950-01-01\n")
    with gzip.open(made / "w.csv.gz", "wt") as packed:
        packed.write(text)
    table = pc.read_csv(made / "w.csv")
    pq.write_table(table, made / "w.parquet")
    records = (json.dumps(record, default=str) for record in table.to_pylist())
    (made / "w.jsonl").write_text("\n".join(records) + "\n")
    return made


@pytest.fixture
def file(folder: Path) -> Iterator[Path]:
    path = folder / "p.yaml"
    yield path
    path.unlink(missing_ok=True)


def checked(path: Path, work: Path, patience_seconds: float = 60.0) -> tuple[Pipeline, PreflightResult]:
    pipeline = read_pipeline(path)
    question = preflight_question(pipeline)
    work.mkdir()
    return pipeline, check(question, work, patience_seconds) if question is not None else PreflightResult()


def told(path: Path, work: Path) -> list[str]:
    """What `plan` says is wrong, each with its place from the file's name on."""
    try:
        pipeline, found = checked(path, work)
    except PipelineError as error:
        return [explained(error).replace(f"{path.parent}/", "")]
    assert all("the check itself failed" not in one.why for one in found.unchecked), found.unchecked
    certain = (show_finding(pipeline, one) for one in found.findings if one.certain)
    return [text.replace(f"{path.parent}/", "") for text in certain]


WRONG: dict[str, tuple[str, str, str, str]] = {
    # name: what is replaced, by what, the place, what is said
    "no such file": ("w.csv\n", "ww.csv\n", "5: jobs.w.sink.source", "does not exist"),
    "type of a column": (
        "w.csv\n",
        "w.csv\n      columns: {city: float}\n",
        "6: jobs.w.sink.columns",
        "'a' is not of type float",
    ),
    "typed column": (
        "w.csv\n",
        "w.csv\n      columns: {tmp: float}\n",
        "6: jobs.w.sink.columns.tmp",
        "Did you mean `temp`?",
    ),
    "selected column": (
        "w.csv\n",
        "w.csv\n      select: [time, citi]\n",
        "6: jobs.w.sink.select[1]",
        "Did you mean `city`?",
    ),
    "renamed column": (
        "w.csv\n",
        "w.csv\n      rename: {tempp: t}\n",
        "6: jobs.w.sink.rename.tempp",
        "Did you mean `temp`?",
    ),
    "constrained column": (
        "w.csv\n",
        "w.csv\n      constraints: [{column: tmp, min: 0}]\n",
        "6: jobs.w.sink.constraints[0]",
        "no column 'tmp'",
    ),
    "bound of text": (
        "w.csv\n",
        "w.csv\n      constraints: [{column: city, min: 0}]\n",
        "6: jobs.w.sink.constraints[0]",
        "cannot be compared",
    ),
    "expression of a constraint": (
        "w.csv\n",
        "w.csv\n      constraints: [{expression: temp >}]\n",
        "6: jobs.w.sink.constraints[0].expression",
        "syntax error",
    ),
    "metric of a sink": (
        "w.csv\n",
        "w.csv\n      metrics: {hot: max(tmp)}\n",
        "6: jobs.w.sink.metrics.hot",
        "tmp",
    ),
    "time that retains": (
        "w.csv\n",
        "w.csv\n      retain: {time: city, keep: 1d}\n",
        "6: jobs.w.sink.retain.time",
        "holds no times",
    ),
    "key of another sink": (
        "w.csv\n",
        "w.csv\n      constraints: [{foreign_key: city, references: cities, referenced: name}]\n",
        "6: jobs.w.sink.constraints[0]",
        "no column 'name'",
    ),
    "format of a timestamp": (
        "w.csv\n",
        "{path: w.csv, timestamp_format: '%d.%m.%Y'}\n      columns: {time: timestamp}\n",
        "6: jobs.w.sink.columns",
        "is not of type timestamp",
    ),
    "delimiter": (
        "w.csv\n",
        "{path: w.csv, delimiter: ';'}\n",
        "9: jobs.d.dataset.basis.time",
        "It has time,city,temp",
    ),
    "basis time": ("time: time", "time: tme", "9: jobs.d.dataset.basis.time", "did you mean `time`?"),
    "basis time is text": ("time: time", "time: kind", "9: jobs.d.dataset.basis", "not timestamp"),
    "basis entity": (
        "entity: [city]",
        "entity: [town]",
        "9: jobs.d.dataset.basis.entity[0]",
        "no column 'town'",
    ),
    "joined on": (
        "on: [city], columns",
        "on: [town], columns",
        "11: jobs.d.dataset.joins[0].on[0]",
        "no column 'town'",
    ),
    "joined column": ("columns: [height]", "columns: [heigth]", "11: jobs.d.dataset.joins", "heigth"),
    "join of times": ("cities.csv", "dated.csv", "10: jobs.d.dataset.joins", "known_at: since"),
    "lagged column": (
        "{column: temp, steps",
        "{column: tmp, steps",
        "13: jobs.d.dataset.lags[0].column",
        "did you mean `temp`?",
    ),
    "window of text": (
        "{column: rain, span",
        "{column: kind, span",
        "15: jobs.d.dataset.windows[0].column",
        "needs numbers",
    ),
    "window column": (
        "{column: rain, span",
        "{column: rian, span",
        "15: jobs.d.dataset.windows[0].column",
        "did you mean `rain`?",
    ),
    "window of another table": (
        "span: 6h, agg",
        "table: cities, span: 6h, agg",
        "14: jobs.d.dataset.windows",
        "known_at",
    ),
    "column of a feature": (
        "temp * 2",
        "temmp * 2",
        "17: jobs.d.dataset.features.double",
        "Did you mean `temp`?",
    ),
    "syntax of a feature": ("temp * 2", "temp * (2", "17: jobs.d.dataset.features.double", "syntax error"),
    "function of a feature": ("temp * 2", "sinn(temp)", "17: jobs.d.dataset.features.double", "sinn"),
    "aggregate in a feature": ("temp * 2", "max(temp)", "17: jobs.d.dataset.features.double", "an aggregate"),
    "label in a feature": ("temp * 2", "label * 2", "17: jobs.d.dataset.features.double", "is the label"),
    "random feature": (
        "temp * 2",
        "random()",
        "17: jobs.d.dataset.features.double",
        "a different value each time",
    ),
    "label column": (
        "label: {column: temp",
        "label: {column: tmp",
        "18: jobs.d.dataset.label.column",
        "did you mean `temp`?",
    ),
    "horizon": ("horizon: 6h", "horizon: 3000d", "18: jobs.d.dataset.label", "no row is left"),
    "steps": ("horizon: 6h", "steps: 5000", "18: jobs.d.dataset.label", "no row is left"),
    "split after the data": (
        "{validation: 0.15, test: 0.15}",
        '{test_from: "2031-01-01"}',
        "19: jobs.d.dataset.split.test_from",
        "the data reaches from",
    ),
    "split of no row": (
        "{validation: 0.15, test: 0.15}",
        '{until: "2001-01-01"}',
        "19: jobs.d.dataset.split.until",
        "the data begins",
    ),
    "split column": (
        "test: 0.15}",
        "test: 0.15, by: random, on: [town]}",
        "19: jobs.d.dataset.split.on[0]",
        "no column 'town'",
    ),
    "required column": (
        "      label:",
        "      required: [tmp]\n      label:",
        "18: jobs.d.dataset.required[0]",
        "no column 'tmp'",
    ),
    "encoded column": (
        "      label:",
        "      encoders: [{columns: [tmp], method: standard}]\n      label:",
        "18: jobs.d.dataset.encoders",
        "tmp",
    ),
    "table of sql": ("from w group", "from ww group", "23: jobs.totals.dataset.sql", "ww"),
    "column of sql": ("sum(rain)", "sum(rian)", "23: jobs.totals.dataset.sql", "Did you mean `rain`?"),
    "syntax of sql": ("from w group", "form w group", "23: jobs.totals.dataset.sql", "syntax error"),
    "function of sql": ("sum(rain)", "summ(rain)", "23: jobs.totals.dataset.sql", "summ"),
    "type in sql": ("sum(rain)", "sum(kind)", "23: jobs.totals.dataset.sql", "sum(VARCHAR)"),
    "two statements of sql": (
        "group by city\n",
        "group by city; select 1\n",
        "23: jobs.totals.dataset.sql",
        "one SELECT",
    ),
    "time of sql": (
        "      tables: [w]",
        "      tables: [w]\n      time: at",
        "23: jobs.totals.dataset.time",
        "no column 'at'",
    ),
    "no label": (
        "      label: {column: temp, horizon: 6h}\n",
        "",
        "26: jobs.trees.training.dataset",
        "no label to predict",
    ),
    "no splits": (
        "      split: {validation: 0.15, test: 0.15}\n",
        "",
        "26: jobs.trees.training.dataset",
        "no splits",
    ),
    "unknown dataset": (
        "{dataset: d, model: gbdt}",
        "{dataset: dd, model: gbdt}",
        "27: jobs.trees.training.dataset",
        "did you mean `d`?",
    ),
    "sink as dataset": (
        "{dataset: d, model: gbdt}",
        "{dataset: w, model: gbdt}",
        "27: jobs.trees.training.dataset",
        "not a dataset job",
    ),
    "feature of a training": (
        "model: gbdt",
        "model: gbdt, features: [doubl]",
        "27: jobs.trees.training.features[0]",
        "Did you mean `double`?",
    ),
    "weight": ("model: gbdt", "model: gbdt, weight: wt", "27: jobs.trees.training.weight", "no column 'wt'"),
    "weight of text": (
        "model: gbdt",
        "model: gbdt, weight: kind",
        "27: jobs.trees.training.weight",
        "weights must be numbers",
    ),
    "threshold of numbers": (
        "model: gbdt",
        "model: gbdt, threshold: 0.5",
        "27: jobs.trees.training.threshold",
        "the label has numbers",
    ),
    "class weights of numbers": (
        "model: gbdt",
        "model: gbdt, class_weight: balanced",
        "27: jobs.trees.training.class_weight",
        "the label has numbers",
    ),
    "metric of a search": (
        "model: gbdt",
        "model: gbdt, search: {metric: accuracy, parameters: {trees: [50, 100]}}",
        "27: jobs.trees.training.search.metric",
        "no metric 'accuracy'",
    ),
    "range of a search": (
        "model: gbdt",
        "model: gbdt, search: {parameters: {trees: [0, 100]}}",
        "27: jobs.trees.training.search.parameters.trees",
        "at least 1",
    ),
    "setting of a search": (
        "model: gbdt",
        "model: gbdt, search: {parameters: {epochs: [1, 9]}}",
        "27: jobs.trees.training.search.parameters.epochs",
        "no option 'epochs' to search",
    ),
    "folds": ("model: gbdt", "model: gbdt, folds: 5000", "27: jobs.trees.training.folds", "too few"),
    "sequence": ("sequence: 24", "sequence: 5000", "29: jobs.net.training.sequence", "Use `sequence: "),
    "repeated feature": (
        "model: gbdt",
        "model: naive, repeat: tempp",
        "27: jobs.trees.training.repeat",
        "no numeric feature 'tempp'",
    ),
    "model of another library": (
        "model: gbdt",
        "model: xgboost",
        "27: jobs.trees.training.model",
        "use `gbdt`",
    ),
    "unknown model": (
        "models: [trees, net]",
        "models: [tree, net]",
        "31: jobs.said.prediction.models[0]",
        "did you mean `trees`?",
    ),
    "metric of a prediction": (
        "models: [trees, net]",
        "models: [trees, net], best_by: accuracy",
        "31: jobs.said.prediction.best_by",
        "no metric 'accuracy'",
    ),
    "split of a prediction": (
        "models: [trees, net]",
        "models: [trees, net], split: holdout",
        "31: jobs.said.prediction.split",
        "has no rows",
    ),
    "columns of a prediction": (
        "prediction: {dataset: d,",
        "prediction: {dataset: totals, split: null,",
        "31: jobs.said.prediction.models[0]",
        "needs column",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.long if at % 2 else ()) for at, one in enumerate(WRONG)]
)
def test_what_a_run_would_fail_with_is_said_before(name: str, file: Path, tmp_path: Path) -> None:
    old, new, place, words = WRONG[name]
    assert old in BASE
    file.write_text(BASE.replace(old, new, 1))
    said = told(file, tmp_path / "work")
    assert any(one.startswith(f"p.yaml:{place}") and words in one for one in said), said


def test_there_are_enough_of_them() -> None:
    assert len(WRONG) >= 60


TRAINED = BASE.partition("  trees:\n")[0]
RIGHT: dict[str, str] = {
    "base": BASE,
    "packed": BASE.replace("w.csv\n", "w.csv.gz\n"),
    "parquet": BASE.replace("w.csv\n", "w.parquet\n"),
    "lines of JSON": BASE.replace("w.csv\n", "w.jsonl\n"),
    "a glob": BASE.replace("w.csv\n", "w*.csv\n"),
    "columns of a sink": BASE.replace(
        "source: w.csv\n",
        "source: w.csv\n      select: [time, city, temp, wet, kind]\n"
        "      rename: {rain: wet}\n      add: {by: me}\n"
        "      columns: {wet: float}\n      constraints: [{column: temp, min: -90, required: true}]\n"
        "      metrics: {hot: max(temp)}\n",
    )
    .replace("column: rain", "column: wet")
    .replace("sum(rain)", "sum(wet)"),
    "a label of classes": TRAINED.replace("column: temp, horizon: 6h", "column: kind, steps: 1")
    + "  trees: {training: {dataset: d, model: gbdt, class_weight: balanced, threshold: 0.4}}\n"
    + "  said: {prediction: {dataset: d, models: [trees], best_by: accuracy}}\n",
    "encoders": TRAINED.replace(
        "      label:",
        "      encoders:\n        - {columns: [kind], method: onehot}\n"
        "        - {columns: [temp], method: standard}\n      label:",
    )
    + "  trees: {training: {dataset: d, model: linear, features: [kind_x, temp]}}\n",
    "several models": TRAINED + "  one:\n    training:\n      {dataset: d, model: gbdt, folds: 3, "
    "search: {trials: 2, parameters: {trees: [20, 40]}}}\n"
    "  two: {training: {dataset: d, model: naive}}\n"
    "  both: {training: {dataset: d, model: ensemble, models: [one, two]}}\n"
    "  said: {prediction: {dataset: d, models: [one, both], best_by: rmse, split: null}}\n",
    "sql with a time": TRAINED.replace(
        "      basis: {table: w, time: time, entity: [city]}\n",
        "      tables: [w]\n      time: time\n      entity: [city]\n      sql: select * from w\n",
    )
    + "  net: {training: {dataset: d, model: lstm, sequence: 12}}\n",
    "labels ahead": TRAINED.replace("column: temp, horizon: 6h", "columns: [temp, rain], next_rows: 2")
    + "  net: {training: {dataset: d, model: mlp}}\n",
    "rows as they are": "pipeline: p\njobs:\n  w: {sink: {source: w.csv}}\n"
    "  d: {dataset: {tables: [w], sql: from w}}\n",
    "files": "pipeline: p\njobs:\n  f: {sink: {source: {path: '*.csv', format: files}}}\n"
    "  d: {dataset: {tables: [f], sql: 'select path, size, text from f'}}\n",
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param(name, rows, marks=pytest.mark.long if number % 2 == (rows == "all rows") else ())
        for number, name in enumerate(RIGHT)
        for rows in ("all rows", "some rows")
    ],
)
def test_nothing_is_said_of_what_runs(
    name: str, rows: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows == "some rows":
        monkeypatch.setattr(sinks, "WHOLE_BYTES", 0)
        monkeypatch.setattr(sinks, "SAMPLE_ROWS", 50)
    file.write_text(RIGHT[name])
    _, found = checked(file, tmp_path / "work")
    assert found == PreflightResult()


def test_what_later_rows_may_decide_is_a_doubt(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of whole numbers in the first rows may be of text in later ones; a name that is not in the
    header is in no row."""
    monkeypatch.setattr(sinks, "WHOLE_BYTES", 0)
    monkeypatch.setattr(sinks, "SAMPLE_ROWS", 50)
    file.write_text(BASE.replace("temp * 2", "upper(temp[1:2] || kind) + 1"))
    _, found = checked(file, tmp_path / "one")
    assert [(one.job, one.certain) for one in found.findings] == [("d", False)]
    file.write_text(BASE.replace("temp * 2", "tempp * 2"))
    _, found = checked(file, tmp_path / "two")
    assert [(one.job, one.certain) for one in found.findings] == [("d", True)]


def test_what_cannot_be_known_is_listed(file: Path, tmp_path: Path) -> None:
    file.write_text(
        "pipeline: p\njobs:\n"
        "  get: {command: 'cp a b.csv'}\n"
        "  late: {needs: [get], sink: {source: b.csv}}\n"
        "  far: {sink: {source: {stream: {url: 'redis://127.0.0.1:1', key: clicks}}}}\n"
        "  d: {dataset: {tables: [far], sql: select * from far}}\n"
        "  e: {dataset: {tables: [late], sql: selct * from late}}\n"
    )
    _, found = checked(file, tmp_path / "work")
    assert {one.job: one.why for one in found.unchecked} == {
        "late": "job get may write the files of the sink before they are loaded",
        "far": "its source is a stream: clicks",
        "d": "the job reads far, which is not known before the run",
    }
    assert [(one.job, one.path) for one in found.findings] == [("e", "dataset.sql")]


EXAMPLES = Path(__file__).parents[4] / "examples"
NEEDS_DATA = {"digits", "ett", "flights", "retrain", "sql"}
"""Their data is made by a script, or is not in the repository."""


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("pipeline.yaml")), ids=lambda path: path.parent.name)
def test_nothing_is_said_of_the_examples(path: Path, tmp_path: Path) -> None:
    _, found = checked(path, tmp_path / "work")
    wrong = [one for one in found.findings if path.parent.name not in NEEDS_DATA]
    assert wrong == []
    assert all("the check itself failed" not in one.why for one in found.unchecked)


SQL = """\
pipeline: p
jobs:
  sales: {sink: {source: {sql: {url: "sqlite:///shop.db", table: sales}}}}
  d: {dataset: {tables: [sales], sql: "select day, sum(price) as price from sales group by day"}}
"""


@pytest.fixture
def shop(folder: Path) -> Iterator[Path]:
    path = folder / "shop.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table sales (day text, price real)")
        database.execute("insert into sales values ('2024-01-01', 1.5)")
        database.commit()
    yield path
    path.unlink()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ""),
        ("table: sales", "table: sale", "p.yaml:3: jobs.sales.sink.source"),
        ("sum(price)", "sum(prize)", 'p.yaml:4: jobs.d.dataset.sql: Referenced column "prize" not found'),
    ],
)
def test_the_columns_of_a_database_are_looked_at(
    old: str, new: str, said: str, shop: Path, file: Path, tmp_path: Path
) -> None:
    file.write_text(SQL.replace(old, new))
    found = told(file, tmp_path / "work")
    assert [one.startswith(said) for one in found] == ([True] if said else []), found


def test_a_server_is_not_waited_for(file: Path, tmp_path: Path) -> None:
    """It takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/w.csv"
        file.write_text(f"pipeline: p\njobs:\n  far: {{sink: {{source: '{url}'}}}}\n")
        begin = time.monotonic()
        _, found = checked(file, tmp_path / "work", 0.2)
        took = time.monotonic() - begin
    assert [one.why for one in found.unchecked] == ["its source did not answer within 0.2 s"]
    assert took < 2


NUMBERED = """\
pipeline: p
jobs:
  w: {sink: {source: numbered.csv}}
  d: {dataset: {basis: {table: w, time: ts}}}
"""


@pytest.mark.parametrize("first", [1704067200, 1704067200000])
def test_a_unit_that_numbers_show_is_printed_and_mixed_ones_are_refused(tmp_path: Path, first: int) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(NUMBERED)
    (tmp_path / "numbered.csv").write_text(f"ts,x\n{first},1\n1704067200,2\n")
    _, found = checked(file, tmp_path / "work")
    if first == 1704067200:
        said = "'ts' of 'w' is read as seconds since 1970 (unix_s): 1704067200 is 1 January 2024"
        assert found.inferred == {"d": (said,)}
        assert not found.findings
    else:
        assert not found.inferred
        assert "its numbers do not show one unit" in found.findings[0].message
        assert "`timestamp_format: {ts: unix_s}`" in found.findings[0].hint


def test_all_columns_that_no_table_has_are_found_at_once(file: Path, tmp_path: Path):
    text = BASE.replace("time: time", "time: tim").replace("{column: rain,", "{column: raim,")
    file.write_text(text.replace("label: {column: temp,", "label: {column: temperature,"))
    pipeline, found = checked(file, tmp_path / "work")
    assert [(one.job, one.path) for one in found.findings] == [
        ("d", "dataset.basis.time"),
        ("d", "dataset.windows[0].column"),
        ("d", "dataset.label.column"),
    ]
    shown = [show_finding(pipeline, one) for one in found.findings]
    assert "has no column 'raim'; did you mean `rain`? It has time, city, temp, rain, kind." in shown[1]
