"""The work of `pipeline.yaml` by hand, with the same libraries: what the pipeline is measured against.

    python examples/flights/by_hand.py FOLDER

Two files into Delta tables, two tables derived from them, two datasets by DuckDB - one as published, one with
nothing that is not known at the scheduled departure -, encoders fitted on their training rows, three models
as ONNX files, measured on the validation and test rows. It uses nothing of Gridmill, and has nothing of it
either: no sizes, no retries, no restart, no statistics, no report.
"""

import json
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

# Libraries are imported where they are used: scikit-learn alone takes a second, and half does without.

# The pipeline's settings
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "nycflights13"
TREES, LEAVES, TREE_RATE, TREE_PATIENCE = 300, 31, 0.1, 20
REGULARIZATION, MOST_STEPS, SEED = 1.0, 1000, 0
VALIDATION_FROM, TEST_FROM = "2013-09-01", "2013-11-01"
SMOOTHING = 20  # rows that the mean of all weighs in a target encoding
WORKERS = 2  # jobs side by side
TABLE_THREADS, DATASET_THREADS, TRAINING_THREADS = 2, 1, 2  # each of them
MODELS = {"published": ("published_linear",), "honest": ("honest_linear", "honest_gbdt")}

WEATHER = """
    select origin, year, month, day, hour, temp, humid, wind_speed, precip, pressure, visib,
           make_timestamp(year, month, day, hour, 0, 0) + interval 5 hour as observed_at
    from observed
    qualify row_number() over (partition by origin, observed_at order by time_hour) = 1
    order by origin, observed_at
"""

FLIGHTS = """
    with timed as (
        select *, (cast(hour * 60 + minute - dep_delay as bigint) + 2880) % 1440 as minutes from raw
    )
    select year, month, day, minutes // 60 as hour, carrier, flight, tailnum, origin, dest, distance,
           dep_time, air_time, dep_delay, arr_delay, arr_delay >= 30 as late,
           make_timestamp(year, month, day, 0, 0, 0) + to_minutes(minutes) + interval 5 hour as scheduled,
           scheduled + to_minutes(cast(dep_delay as bigint)) as left_at,
           left_at + to_minutes(cast(air_time as bigint) + 60) as landed_at
    from timed order by scheduled, carrier, flight
"""

PUBLISHED = """
    with drawn as (
        select *, md5_number_lower(concat_ws(chr(31), '1', scheduled, carrier, flight))
                  / 18446744073709551616.0 as share
        from flights
        where scheduled is not null and late is not null and air_time is not null and dep_time is not null
    )
    select scheduled, dep_time, air_time, distance, carrier, origin, dest, observed_at,
           dayname(scheduled - interval 5 hour) as weekday,
           monthname(scheduled - interval 5 hour) as in_month,
           late as label,
           case when share < 0.25 then 'test' when share < 0.3 then 'validation' else 'train' end as split
    from drawn join weather using (origin, year, month, day, hour)
    order by scheduled, year, month, day, hour, carrier, flight
"""

# keys, value, when it is known, how far back, features
WINDOWS = (
    (
        ("carrier",), "arr_delay", "landed_at", "1 day",
        {"carrier_mean": "avg(value)", "carrier_count": "count(value)"},
    ),
    (
        ("origin", "dest"), "arr_delay", "landed_at", "30 days",
        {"route_mean": "avg(value)", "route_std": "stddev(value)"},
    ),
    (
        ("dest",), "arr_delay", "landed_at", "6 hours",
        {"dest_mean": "avg(value)", "dest_max": "max(value)"},
    ),
    (
        ("tailnum",), "arr_delay", "landed_at", "12 hours",
        {"plane_last": "last_value(value ignore nulls)", "plane_count": "count(value)"},
    ),
    (
        ("origin",), "dep_delay", "left_at", "2 hours",
        {"origin_mean": "avg(value)", "origin_max": "max(value)", "origin_count": "count(value)"},
    ),
    (("carrier", "origin"), "dep_delay", "left_at", "4 hours", {"desk_mean": "avg(value)"}),
)  # fmt: skip
WINDOW = """
    window_{number} as (
        select id, {features}
        from (
            select id, {keys}, scheduled as moment, null as value from numbered
            union all
            select null, {keys}, {known}, {value} from numbered where {known} is not null
        )
        window past as (partition by {keys} order by moment
                        range between interval {span} preceding and interval 1 microsecond preceding)
        qualify id is not null
    )"""

TARGETS = {"published": (), "honest": ("carrier", "dest")}
MEASURED = ("temp", "humid", "wind_speed", "precip", "pressure", "visib")
HONEST = """
    with numbered as (
        select *, row_number() over (order by scheduled, carrier, tailnum, origin, dest, landed_at) as id
        from flights where scheduled is not null
    ),
    kept as (
        select *, case when scheduled >= timestamp '{test}' then 'test'
                       when scheduled >= timestamp '{validation}' then 'validation' else 'train' end as split
        from numbered
        where late is not null and landed_at is not null
          and not (scheduled < timestamp '{validation}' and landed_at >= timestamp '{validation}')
          and not (scheduled < timestamp '{test}' and landed_at >= timestamp '{test}')
    ),
    known as (select *, observed_at + interval 1 hour as known_at from weather),
    {parts}
    select scheduled, distance, carrier, kept.origin, dest, {measured}, {features},
           hour(scheduled - interval 5 hour) + minute(scheduled) / 60 as clock,
           isodow(scheduled - interval 5 hour) as weekday,
           dayofyear(scheduled - interval 5 hour) as day_of_year,
           landed_at, late as label, split
    from kept {joins}
    asof left join known on kept.origin = known.origin and kept.scheduled > known.known_at
    order by id
"""
ONE_HOT = {"published": ("carrier", "origin", "dest", "weekday", "in_month"), "honest": ("origin",)}
NOT_INPUTS = ("scheduled", "landed_at", "observed_at", "label", "split")


def load_flights(folder: Path) -> None:
    """The flights as a Delta table."""
    import pyarrow.parquet as pq
    from deltalake import write_deltalake

    write_deltalake(folder / "raw", pq.read_table(DATA / "flights.parquet"))


def load_weather(folder: Path) -> None:
    """The hourly weather as a Delta table."""
    import pyarrow as pa
    from deltalake import write_deltalake
    from pyarrow import csv

    numbers = ("temp", "wind_dir", "wind_speed", "precip", "pressure", "visib")
    types = {name: pa.float64() for name in numbers} | {"time_hour": pa.timestamp("us", tz="UTC")}
    options = csv.ConvertOptions(column_types=types, null_values=["", "NA"])
    write_deltalake(folder / "observed", csv.read_csv(DATA / "weather.csv", convert_options=options))


def query(sql: str, threads: int, tables: dict):
    """What DuckDB answers, as an Arrow table."""
    import duckdb

    with duckdb.connect(config={"threads": threads, "asof_loop_join_threshold": 0}) as connection:
        connection.execute("set TimeZone = 'UTC'")
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table()


def derive(folder: Path, name: str, source: str, sql: str, threads: int) -> None:
    """A Parquet file derived from one Delta table."""
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    made = query(sql, threads, {source: DeltaTable(folder / source).to_pyarrow_dataset()})
    pq.write_table(made, folder / f"{name}.parquet", compression="zstd")


def make_dataset(folder: Path, name: str) -> int:
    """Inputs, label and split as one Parquet file; returns its rows."""
    import pyarrow.parquet as pq

    tables = {table: pq.read_table(folder / f"{table}.parquet") for table in ("flights", "weather")}
    made = query(PUBLISHED if name == "published" else honest_sql(), DATASET_THREADS, tables)
    for column in ONE_HOT[name]:
        made = one_hot(made, column)
    for column in TARGETS[name]:
        made = target_means(made, column)
    pq.write_table(made, folder / f"{name}.parquet", compression="zstd")
    return made.num_rows


def honest_sql() -> str:
    """One query with a part for each window."""
    parts = [
        WINDOW.format(
            number=number, keys=", ".join(keys), value=value, known=known, span=span,
            features=", ".join(f"{sql} over past as {name}" for name, sql in features.items()),
        )
        for number, (keys, value, known, span, features) in enumerate(WINDOWS)
    ]  # fmt: skip
    return HONEST.format(
        validation=VALIDATION_FROM,
        test=TEST_FROM,
        parts=",".join(parts),
        measured=", ".join(
            f"case when known_at >= scheduled - interval 6 hours then {name} end as {name}"
            for name in MEASURED
        ),
        features=", ".join(name for window in WINDOWS for name in window[4]),
        joins=" ".join(f"join window_{number} using (id)" for number in range(len(WINDOWS))),
    )


def one_hot(table, column: str):
    """A 0/1 column for each value of the training rows, in place of the column."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    values = table[column]
    seen = sorted(pc.unique(values.filter(pc.equal(table["split"], "train"))).drop_null().to_pylist())
    codes = pc.fill_null(pc.index_in(values, pa.array(seen)), -1).to_numpy()
    at = table.column_names.index(column)
    table = table.drop_columns([column])
    for number, value in enumerate(seen):
        flags = pa.array((codes == number).astype(np.int8))
        table = table.add_column(at + number, f"{column}_{value}", flags)
    return table


def target_means(table, column: str):
    """The smoothed mean label of the training flights of the same value that had landed before."""
    import numpy as np
    import pyarrow as pa

    scheduled, landed = table["scheduled"].to_numpy(), table["landed_at"].to_numpy()
    label = table["label"].to_numpy().astype(float)
    train, values = table["split"].to_numpy() == "train", table[column].to_numpy()

    def before(learned, rows) -> tuple:
        """Sum and number of the labels of `learned` rows that were known before each of `rows`."""
        order = learned[np.argsort(landed[learned], kind="stable")]
        at = np.searchsorted(landed[order], scheduled[rows], "left")
        return np.concatenate([[0.0], np.cumsum(label[order])])[at], at

    total, number = before(np.flatnonzero(train), np.arange(len(label)))
    overall = np.divide(total, number, out=np.full(len(label), np.nan), where=number > 0)
    means = np.empty(len(label))
    for value in np.unique(values):
        rows = np.flatnonzero(values == value)
        total, number = before(rows[train[rows]], rows)
        means[rows] = (total + SMOOTHING * overall[rows]) / (number + SMOOTHING)
    return table.set_column(table.column_names.index(column), f"{column}_target", pa.array(means))


def read_arrays(folder: Path, dataset: str) -> tuple:
    """Inputs [rows, inputs], labels, and the splits' names."""
    import numpy as np
    import pyarrow.parquet as pq

    table = pq.read_table(folder / f"{dataset}.parquet")
    names = [name for name in table.column_names if name not in NOT_INPUTS]
    inputs = np.empty((table.num_rows, len(names)))
    for number, name in enumerate(names):
        inputs[:, number] = table[name].to_numpy()
    return inputs, table["label"].to_numpy().astype(int), table["split"].to_numpy()


def train(folder: Path, dataset: str, name: str) -> dict[str, float]:
    """Fit a model, write it as ONNX, and measure what was written on the validation and test rows."""
    from threadpoolctl import threadpool_limits

    inputs, label, split = read_arrays(folder, dataset)
    rows = {each: split == each for each in ("train", "validation", "test")}
    with threadpool_limits(TRAINING_THREADS):
        fit = fit_trees if name.endswith("gbdt") else fit_linear
        graph = fit(inputs, label, rows["train"], rows["validation"])
    (folder / f"{name}.onnx").write_bytes(graph)
    return {
        f"{each}_{metric}": value
        for each in ("validation", "test")
        for metric, value in measure(graph, inputs[rows[each]], label[rows[each]]).items()
    }


def fit_linear(inputs, label, train_rows, validation_rows) -> bytes:
    """Logistic regression on standardised inputs: missing ones 0, with a flag of their own."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    learned = inputs[train_rows]
    mean, deviation = np.nanmean(learned, axis=0), np.nanstd(learned, axis=0)
    deviation = np.where(deviation > 1e-12, deviation, 1.0)
    scaled = (learned - mean) / deviation
    missing = np.isnan(scaled)
    flagged = np.flatnonzero(missing.any(axis=0))
    scaled = np.concatenate([np.where(missing, 0.0, scaled), missing[:, flagged]], axis=1)
    model = LogisticRegression(C=1 / REGULARIZATION, max_iter=MOST_STEPS, random_state=SEED)
    model.fit(scaled, label[train_rows])
    return linear_graph(mean, deviation, flagged, model)


def linear_graph(mean, deviation, flagged, model) -> bytes:
    """Scaling and logistic regression as an ONNX graph over raw inputs."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    constants = {
        "mean": mean, "deviation": deviation, "zero": np.array(0.0), "flagged": flagged.astype(np.int64),
        "weights": model.coef_.T.copy(), "bias": model.intercept_,
    }  # fmt: skip
    nodes = [
        helper.make_node("Sub", ["inputs", "mean"], ["moved"]),
        helper.make_node("Div", ["moved", "deviation"], ["scaled"]),
        helper.make_node("IsNaN", ["scaled"], ["missing"]),
        helper.make_node("Where", ["missing", "zero", "scaled"], ["filled"]),
        helper.make_node("Gather", ["missing", "flagged"], ["chosen"], axis=-1),
        helper.make_node("Cast", ["chosen"], ["flags"], to=TensorProto.DOUBLE),
        helper.make_node("Concat", ["filled", "flags"], ["whole"], axis=-1),
        helper.make_node("MatMul", ["whole", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["output"]),
    ]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return finish(nodes, tensors, len(mean), TensorProto.DOUBLE)


def fit_trees(inputs, label, train_rows, validation_rows) -> bytes:
    """Boosted trees, stopped early on the validation rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        max_iter=TREES,
        max_leaf_nodes=LEAVES,
        learning_rate=TREE_RATE,
        early_stopping=True,
        n_iter_no_change=TREE_PATIENCE,
        random_state=SEED,
    )
    held = {"X_val": inputs[validation_rows], "y_val": label[validation_rows]}
    return tree_graph(model.fit(inputs[train_rows], label[train_rows], **held), inputs.shape[1])


def tree_graph(model, width: int) -> bytes:
    """The trees as an ONNX tree ensemble in doubles."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    trees = [step[0].nodes for step in model._predictors]
    nodes = np.concatenate(trees)
    sizes = [len(tree) for tree in trees]
    tree = np.repeat(np.arange(len(trees)), sizes)
    node = np.concatenate([np.arange(size) for size in sizes])
    leaf = nodes["is_leaf"].astype(bool)
    ensemble = helper.make_node(
        "TreeEnsembleRegressor", ["inputs"], ["single"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=tree.tolist(), nodes_nodeids=node.tolist(),
        nodes_featureids=nodes["feature_idx"].tolist(),
        nodes_modes=["LEAF" if last else "BRANCH_LEQ" for last in leaf],
        nodes_values_as_tensor=numpy_helper.from_array(np.where(leaf, 0.0, nodes["num_threshold"])),
        nodes_truenodeids=nodes["left"].tolist(), nodes_falsenodeids=nodes["right"].tolist(),
        nodes_missing_value_tracks_true=nodes["missing_go_to_left"].tolist(),
        target_treeids=tree[leaf].tolist(), target_nodeids=node[leaf].tolist(),
        target_ids=[0] * int(leaf.sum()),
        target_weights_as_tensor=numpy_helper.from_array(nodes["value"][leaf].astype(float)),
        base_values_as_tensor=numpy_helper.from_array(
            np.asarray(model._baseline_prediction, float).reshape(-1)
        ),
    )  # fmt: skip
    return finish(
        [ensemble, helper.make_node("Sigmoid", ["single"], ["output"])], [], width, TensorProto.FLOAT
    )


def finish(nodes: list, tensors: list, width: int, kind: int) -> bytes:
    """The model as bytes: doubles [rows, inputs] to chances [rows, 1]."""
    from onnx import TensorProto, helper

    taken = helper.make_tensor_value_info("inputs", TensorProto.DOUBLE, ["rows", width])
    given = helper.make_tensor_value_info("output", kind, ["rows", 1])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "model", [taken], [given], initializer=tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def measure(graph: bytes, inputs, label) -> dict[str, float]:
    """How good the model that was written is on these rows."""
    import numpy as np
    import onnxruntime
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = TRAINING_THREADS
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    parts = np.array_split(inputs, max(1, inputs.size // 200_000))
    chance = np.concatenate([session.run(None, {"inputs": part})[0][:, 0] for part in parts])
    return {
        "log_loss": float(log_loss(label, chance)),
        "accuracy": float(accuracy_score(label, chance > 0.5)),
        "auc": float(roc_auc_score(label, chance)),
    }


def main(folder: Path) -> None:
    """All steps, with a summary at the end."""
    begin = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ |= {"OMP_NUM_THREADS": str(TRAINING_THREADS)}  # before the processes start
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        loads = [pool.submit(load, folder) for load in (load_flights, load_weather)]
        loads[0].result()
        flights = pool.submit(derive, folder, "flights", "raw", FLIGHTS, TABLE_THREADS)
        loads[1].result()
        weather = pool.submit(derive, folder, "weather", "observed", WEATHER, DATASET_THREADS)
        flights.result(), weather.result()
        datasets = {pool.submit(make_dataset, folder, name): name for name in MODELS}
        trainings = {
            model: pool.submit(train, folder, datasets[done], model)
            for done in as_completed(datasets)
            for model in MODELS[datasets[done]]
        }
        metrics = {model: training.result() for model, training in trainings.items()}
        rows = {name: done.result() for done, name in datasets.items()}
    summary = {"rows": rows, "metrics": metrics, "seconds": round(time.perf_counter() - begin, 1)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "flights-by-hand"))
