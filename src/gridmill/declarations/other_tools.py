"""Recognises terms of other tools in a pipeline file and suggests the corresponding terms of Gridmill."""

from collections.abc import Mapping
from enum import StrEnum

from gridmill.domain.command import CommandSpec
from gridmill.domain.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Join, Label, Lag, Split, Window
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import Resource
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.domain.source import Compression, Format, Source
from gridmill.domain.training import ModelKind, Objective, TrainingSpec

_GPUS = (
    "use a resource: `gridmill configure resource NAME --type TYPE --gpus 1`, and `resource: NAME` in the job"
)
_IMAGE = "use `container: IMAGE` in a command or in a custom training"
_NEEDS = "use `needs: [JOB]`"
_ENV = "use `env: {NAME: value}` below `command`"
_PARAMETERS = "use `parameters: {NAME: value}` of the pipeline"
_COMMAND = "use `command: ...`"
_JOBS = "use `jobs`, with one entry per job: `NAME: {command: ...}`"
_SCHEDULE = "use `schedule: {cron: ...}` or `schedule: {every: 1h}`"
_LABEL = "use `label: {column: NAME}` of the dataset"
_BASIS = "use `basis: {table: JOB, time: COLUMN}`"
_SPLIT = "use `split: {validation: 0.15, test: 0.15}`"
_SEARCH = "use `search: {parameters: {NAME: [low, high]}}`"
_OPTIONS = "write settings as fields of the training; those of a custom model in `options`"
_STEPS = "use `steps`"


def _each(words: str, cure: str) -> dict[str, str]:
    return dict.fromkeys(words.split(), cure)


FIELDS: Mapping[type, Mapping[str, str]] = {
    Pipeline: {
        "name": "use `pipeline: NAME`",
        "version": "leave it out",
        "defaults": "use YAML's anchors: `<<: *name`",
        **_each("steps stages tasks nodes ops assets flow dag workflow", _JOBS),
        **_each("params vars variables config configs inputs args arguments", _PARAMETERS),
        **_each("on cron trigger triggers interval", _SCHEDULE),
        **_each("env environment", _ENV),
        **_each("image container docker", _IMAGE),
        **_each("gpus gpu accelerators", _GPUS),
    },
    Job: {
        "name": "leave it out: the job's name is its key below `jobs`",
        "type": "leave it out: the job's kind is a field (sink, dataset, training, prediction, command)",
        "kind": "leave it out: the job's kind is a field (sink, dataset, training, prediction, command)",
        "model": "use `training: {dataset: JOB, model: gbdt}`",
        "source": "use `sink: {source: PATH}`",
        "sql": "use `dataset: {sql: ..., tables: [JOB]}`",
        "steps": _COMMAND,
        "folder": "use `folder` below `command`",
        **_each("cwd workdir working_directory", "use `folder` below `command`"),
        **_each("depends_on depends dependencies after upstream requires deps", _NEEDS),
        **_each("env environment", _ENV),
        **_each("gpus gpu accelerators accelerator", _GPUS),
        **_each("image container docker uses", _IMAGE),
        **_each("cmd run script bash shell exec executable python entrypoint args", _COMMAND),
        **_each("outs outputs artifacts", "use `outputs` below `command`"),
        **_each("params vars variables with", _PARAMETERS),
        **_each("if condition trigger_rule", "use `when: failure` or `when: always`"),
        **_each("strategy foreach for_each map expand", "use `matrix: {NAME: [value, value]}`"),
        **_each("cron interval", _SCHEDULE),
        **_each("mem ram", "use `memory: 2GiB`"),
        **_each("cpu cores", "use `cpus`"),
        **_each("retry max_retries", "use `retries`"),
        **_each("instances parallelism num_nodes nnodes", "use `workers` below `command` or `training`"),
    },
    CommandSpec: {
        "needs": "write `needs` in the job, beside `command`",
        **_each("depends_on depends dependencies deps", "write `needs: [JOB]` in the job, beside `command`"),
        **_each("command cmd script bash exec args entrypoint", "use `run`"),
        **_each("gpus gpu accelerators", _GPUS),
        **_each("image docker", _IMAGE),
        **_each("outs artifacts", "use `outputs`"),
        **_each("cwd workdir working_directory", "use `folder`"),
        **_each("requirements pip conda packages dependencies_file", "use `environment: requirements.txt`"),
        **_each("environ variables vars", "use `env`"),
        **_each(
            "timeout retries memory cpus disk disk_files resource at cache",
            "write it in the job, beside `command`",
        ),
    },
    SinkSpec: {
        **_each("path file files url uri table query location", "use `source`"),
        **_each("schema types dtypes dtype", "use `columns: {NAME: TYPE}`"),
        **_each("checks tests expectations validations rules", "use `constraints`"),
        **_each("primary_key unique key", "use `constraints: [{unique: [COLUMN]}]`"),
        **_each("format delimiter sep encoding nulls", "write it below `source`: `source: {path: ...}`"),
    },
    Source: {
        **_each("file files url uri location", "use `path`"),
        **_each("sep separator", "use `delimiter`"),
        **_each("na_values null_values nan missing", "use `nulls`"),
        **_each("date_format time_format datetime_format", "use `timestamp_format`"),
        **_each("database db connection query table", "use `sql: {url: ..., table: ...}`"),
        **_each("type file_format", "use `format`"),
    },
    DatasetSpec: {
        "source": _BASIS,
        "from": _BASIS,
        "table": _BASIS,
        "input": _BASIS,
        "query": "use `sql`",
        "select": "use `sql`, or `columns` of the basis",
        **_each("target y label_column", "use `label: {column: NAME}`"),
        **_each("test_size train_test_split splits validation test", _SPLIT),
        **_each("horizon steps next_rows", "write it below `label`"),
        **_each("index timestamp time_column date", "use `time` below `basis`"),
        **_each("group_by groupby id key keys", "use `entity` below `basis`"),
        **_each("join merge", "use `joins`"),
        **_each("rolling window", "use `windows`"),
        **_each("lag shift", "use `lags`"),
        **_each("transforms transformers preprocessing scaler scalers", "use `encoders`"),
    },
    Basis: {
        **_each("source from input", "use `table`"),
        **_each("timestamp time_column date index", "use `time`"),
        **_each("id key keys group_by groupby", "use `entity`"),
    },
    Join: {
        **_each("how type", "leave it out: every row of the basis is kept (a left join)"),
        **_each("keys key left_on right_on using", "use `on`"),
    },
    AsOfJoin: {
        **_each("by keys key", "use `on`"),
        **_each("tolerance max_age", "use `within`"),
        **_each("time timestamp", "use `known_at`"),
    },
    Window: {
        **_each("agg aggs func function functions aggregate aggregations", "use `aggregates`"),
        **_each("window size period length", "use `span`"),
        **_each("columns on_column", "use `column`"),
        "name": "use `prefix`; the feature is called COLUMN_AGGREGATE_SPAN",
    },
    Lag: {
        **_each("lag lags shift n rows periods", _STEPS),
        **_each("columns", "use `column`"),
        **_each("by span", "use `back`"),
    },
    Label: {
        **_each("target", "use `column`"),
        **_each("shift ahead periods", _STEPS),
        **_each("within window", "use `horizon`"),
    },
    Split: {
        **_each("train train_size", "leave it out: the training rows are those of no other split"),
        **_each("test_size holdout", "use `test`"),
        **_each("val valid val_size validation_size eval", "use `validation`"),
        **_each("shuffle method strategy type", "use `by: time`, `by: random` or `by: entity`"),
        **_each("random_state", "use `seed`"),
    },
    TrainingSpec: {
        **_each("target label y target_column label_column", _LABEL),
        **_each("split test_size validation_split", "write `split` in the dataset"),
        **_each("algorithm estimator learner type kind", "use `model`"),
        **_each("n_estimators num_trees num_boost_round max_iter iterations", "use `trees`"),
        **_each("max_depth num_leaves max_leaf_nodes depth", "use `max_leaves`"),
        **_each("lr eta", "use `learning_rate`"),
        **_each("random_state", "use `seed`"),
        **_each("batch batchsize", "use `batch_size`"),
        **_each("hidden_size units", "use `hidden`"),
        **_each("num_layers", "use `layers`"),
        **_each("alpha c l2 lambda", "use `regularization`"),
        **_each("seq_len sequence_length window lookback", "use `sequence`"),
        **_each("early_stopping early_stopping_rounds", "use `patience`"),
        **_each("grid param_grid tune tuning hpo", _SEARCH),
        **_each("params hyperparameters hyper_parameters parameters", _OPTIONS),
        **_each("cv cross_validation", "use `folds`"),
        **_each("sample_weight weights", "use `weight`"),
        **_each("code file_name train", "use `script`"),
        **_each("mlflow tracking tracking_uri", "use `track`"),
        **_each("task problem", "use `objective`"),
        **_each("gpus gpu device accelerators", _GPUS),
        **_each("image docker", _IMAGE),
        **_each("data input from", "use `dataset`"),
        **_each("env", "use `options` for settings of the script"),
        **_each("requirements pip packages", "use `environment: requirements.txt`"),
    },
    PredictionSpec: {
        **_each("model", "use `models: [JOB]`"),
        **_each("data input from table", "use `dataset`"),
        **_each("metric", "use `best_by`"),
        **_each("alias champion margin", "use `promote: {alias: PIPELINE/JOB@ALIAS}`"),
        **_each("batch_size chunks", "use `shards`"),
        **_each("gpus gpu", _GPUS),
    },
    Resource: {
        **_each("cpu cores", "use `cpus`"),
        **_each("gpu accelerators", "use `gpus`"),
        **_each("mem ram", "use `memory`"),
        **_each("image container docker", _IMAGE),
        "kind": "use `type`",
    },
    ScheduleSpec: {
        **_each("interval", "use `every`"),
        **_each("at time", "use `cron`"),
    },
}
"""For each record class, the field names of other tools, and the message that names the field of
Gridmill."""


_GBDT = "use `gbdt` (gradient-boosted trees), or a `custom` model with `script: train.py`"
_CUSTOM = "use `custom` with `script: train.py`"
_LINEAR = "use `linear`"

VALUES: Mapping[type[StrEnum], Mapping[str, str]] = {
    ModelKind: {
        **_each("xgboost xgb lightgbm lgbm lgb catboost gbm gradient_boosting boosted_trees hgb", _GBDT),
        **_each("random_forest randomforest rf extra_trees decision_tree tree forest", _GBDT),
        **_each("logistic logistic_regression linear_regression regression ridge lasso", _LINEAR),
        **_each("elastic_net elasticnet ols glm sgd", _LINEAR),
        **_each("nn neural_network neural_net dnn ann perceptron dense", "use `mlp`"),
        **_each("rnn gru recurrent", "use `lstm`"),
        **_each("baseline persistence dummy last", "use `naive`"),
        **_each("stacking voting bagging average blend", "use `ensemble`"),
        **_each("svm svr svc knn kmeans naive_bayes gaussian_process isolation_forest", _CUSTOM),
        **_each("prophet arima sarima ets tft nbeats", _CUSTOM),
        **_each("transformer cnn resnet bert pytorch torch tensorflow keras sklearn scikit-learn", _CUSTOM),
    },
    ColumnType: {
        **_each("int int32 int64 bigint long smallint", "use `integer`"),
        **_each("double float32 float64 number numeric decimal real money", "use `float`"),
        **_each("str text varchar char object category categorical uuid", "use `string`"),
        **_each("bool flag", "use `boolean`"),
        **_each("datetime time datetime64 timestamptz timestamp_ntz instant", "use `timestamp`"),
    },
    Aggregate: {
        **_each("avg average", "use `mean`"),
        **_each("total", "use `sum`"),
        **_each("stddev stdev var variance", "use `std`"),
        **_each("nunique unique count_distinct", "use `distinct`"),
        **_each("n size len", "use `count`"),
        **_each("newest latest", "use `last`"),
        **_each("median quantile first", "use plain `sql`"),
    },
    Format: {
        **_each("tsv txt text", "use `csv` with a `delimiter`"),
        **_each("json ndjson", "use `jsonl`: one JSON object a line"),
        **_each("image images binary", "use `files`: each file is one row"),
        **_each("pq", "use `parquet`"),
        **_each("feather arrow orc avro hdf5 pickle", "write it as Parquet first"),
    },
    Compression: {
        **_each("gz", "use `gzip`"),
        **_each("zst", "use `zstd`"),
        **_each("bz2", "use `bzip2`"),
    },
    Objective: {
        **_each("regressor reg mse rmse mae forecast forecasting", "use `regression`"),
        **_each("classifier classify binary multiclass logloss log_loss", "use `classification`"),
    },
}
"""For each enum, the values of other tools, and the message that names the value of Gridmill."""


def pointer(noun: type, word: str) -> str:
    """Returns the advice for a field of another tool, or an empty text if the field is unknown."""
    return FIELDS.get(noun, {}).get(word.lower(), "")


def value_pointer(enum: type[StrEnum], word: str) -> str:
    """Returns the advice for a value of another tool, or an empty text if the value is unknown."""
    pointers = VALUES.get(enum, {})
    return pointers.get(word.lower().replace(" ", "_"), "") or pointers.get(
        word.lower().replace("-", "_"), ""
    )
