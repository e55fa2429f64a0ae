"""Pipelines large enough that their size matters, and the files that they read; for bench/sizing.py."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb

NUMBERS = "numbers"
TEXTS = "texts"
WIDE = "wide"
ROWS = {NUMBERS: 1_500_000, TEXTS: 800_000, WIDE: 60_000}
"""Rows of a file, times the share that a round asks for."""
_TIME = "i AS id, TIMESTAMP '2020-01-01' + to_seconds(i * 60) AS at"
_COLUMNS = {
    NUMBERS: f"{_TIME}, (hash(i) % 200)::INT AS entity, "
    + ", ".join(f"round((hash(i * {7 + k}) % 1000000) / 1e3, 3) AS x{k}" for k in range(9)),
    TEXTS: "i AS id, "
    + ", ".join(
        f"'text {k} of some length ' || hash(i * {k + 3})::VARCHAR || ' and ' || (hash(i) % 99) AS t{k}"
        for k in range(4)
    ),
    WIDE: f"{_TIME}, (hash(i) % 200)::INT AS entity, "
    + ", ".join(f"round((hash(i * {7 + k}) % 100000) / 1e2, 2) AS x{k}" for k in range(300)),
}
_FORMS = {
    "csv": "FORMAT csv, HEADER",
    "csv.gz": "FORMAT csv, HEADER, COMPRESSION gzip",
    "jsonl": "FORMAT json",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}
_SPLIT = "case when id % 10 < 7 then 'train' when id % 10 < 8 then 'validation' else 'test' end as split"


def write(folder: Path, kind: str, form: str, share: float = 1.0) -> str:
    """Write such a file and return its name; 20 to 200 MB."""
    name, rows = f"{kind}.{form}", int(ROWS[kind] * share)
    query = f"SELECT {_COLUMNS[kind]} FROM range({rows}) t(i)"
    duckdb.sql(f"COPY ({query}) TO '{folder / name}' ({_FORMS[form]})")
    return name


def sinks(folder: Path, share: float) -> Mapping[str, Any]:
    """Every form of file, narrow and wide, numbers and texts."""
    kinds = [(NUMBERS, "csv"), (NUMBERS, "csv.gz"), (NUMBERS, "parquet"), (TEXTS, "csv"), (TEXTS, "parquet")]
    kinds += [(WIDE, "csv"), (WIDE, "parquet")]
    jobs = {f"{kind}_{form.replace('.', '_')}": _sink(folder, kind, form, share) for kind, form in kinds}
    return {**jobs, "numbers_jsonl": _sink(folder, NUMBERS, "jsonl", share / 5)}


def _sink(folder: Path, kind: str, form: str, share: float) -> Mapping[str, Any]:
    return {"sink": {"source": {"path": write(folder, kind, form, share)}}}


def datasets(folder: Path, share: float) -> Mapping[str, Any]:
    """Windows, an aggregate, texts, and hundreds of columns."""
    days = (
        "select entity, date_trunc('day', \"at\") as d, avg(x0) as m, count(*) as n from numbers group by all"
    )
    windows = [
        {"column": "x0", "span": "1d", "aggregates": ["mean", "min", "max", "std"]},
        {"column": "x1", "span": "7d", "aggregates": ["sum", "count"]},
    ]
    return {
        **_tables(folder, share, NUMBERS, TEXTS, WIDE),
        "windows": {
            "dataset": {
                "basis": {"table": NUMBERS, "time": "at", "entity": ["entity"]},
                "lags": [{"column": "x0", "steps": [1, 2, 3]}],
                "windows": windows,
                "label": {"column": "x0", "steps": 1, "name": "ahead"},
                "split": {"validation": 0.15, "test": 0.15},
            }
        },
        "days": {"dataset": {"tables": [NUMBERS], "sql": days}},
        "words": {"dataset": {"tables": [TEXTS], "sql": "select * from texts"}},
        "broad": _labelled(WIDE),
    }


def trainings(folder: Path, share: float) -> Mapping[str, Any]:
    """Each kind of model on a million rows, and on hundreds of columns."""
    quick = {"epochs": 1, "batch_size": 4096}
    kinds = {
        "gbdt": {"trees": 10},
        "linear": {},
        "naive": {},
        "mlp": quick,
        "lstm": {**quick, "sequence": 6, "hidden": 8},
    }
    flat = {name: {"training": {"dataset": "flat", "model": name, **more}} for name, more in kinds.items()}
    broad = {
        f"{name}_broad": {"training": {"dataset": "broad", "model": name, **kinds[name]}}
        for name in ("gbdt", "linear", "mlp")
    }
    return {**_labelled_tables(folder, share), **flat, **broad}


def predictions(folder: Path, share: float) -> Mapping[str, Any]:
    """Swarms over millions of values with what is quick to learn."""
    return {
        **_labelled_tables(folder, share),
        "linear": {"training": {"dataset": "flat", "model": "linear"}},
        "gbdt": {"training": {"dataset": "flat", "model": "gbdt", "trees": 10}},
        "linear_broad": {"training": {"dataset": "broad", "model": "linear"}},
        "by_linear": {"prediction": {"dataset": "flat", "models": ["linear"], "split": None}},
        "by_gbdt": {"prediction": {"dataset": "flat", "models": ["gbdt"], "split": "test"}},
        "by_broad": {"prediction": {"dataset": "broad", "models": ["linear_broad"], "split": None}},
    }


def _tables(folder: Path, share: float, *kinds: str) -> Mapping[str, Any]:
    return {kind: _sink(folder, kind, "parquet", share) for kind in kinds}


def _labelled_tables(folder: Path, share: float) -> Mapping[str, Any]:
    tables = _tables(folder, share, NUMBERS, WIDE)
    return {**tables, "flat": _labelled(NUMBERS), "broad": _labelled(WIDE)}


def _labelled(table: str) -> Mapping[str, Any]:
    sql = f"select *, x0 * 2 + x1 as y, {_SPLIT} from {table}"
    return {"dataset": {"tables": [table], "sql": sql, "time": "at", "label": {"column": "y", "name": "aim"}}}


WORKLOADS: Mapping[str, Callable[[Path, float], Mapping[str, Any]]] = {
    "sinks": sinks,
    "datasets": datasets,
    "trainings": trainings,
    "predictions": predictions,
}
"""By name: the jobs, whose files are written into the folder with so many rows."""
