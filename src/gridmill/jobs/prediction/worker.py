"""A worker processes a shard: it reads the rows of the shard and the earlier rows that they need, predicts,
and writes a single file atomically."""

import os
import sys
import time
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.codec import to_builtins
from gridmill.domain.frozen import dataclass
from gridmill.jobs.apply_model import predict_span, predicted_table
from gridmill.jobs.child_processes import spent_so_far
from gridmill.jobs.dataset_reader import Fetch, Partitions, fetch_piece, open_partitions
from gridmill.jobs.features import count_unknown
from gridmill.jobs.model_files import ModelCard, Predictor, load_card, load_model
from gridmill.jobs.out_of_fold import OutOfFoldModel, load_held_out
from gridmill.jobs.prediction.shards import RowRange, of_split
from gridmill.jobs.prediction.swarm import ShardDone, ShardTiming
from gridmill.jobs.subprocess_model import CodePredictor


def part_name(shard: int) -> str:
    """Return the file name of a shard."""
    return f"part-{shard:05}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStartup:
    """The resource usage of a worker until it is ready. `helpers` are the process ids of the processes that
    the worker started."""

    helpers: tuple[int, ...]
    timing: ShardTiming


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """Processes shards in a worker process. The object that processes shards is created before the fork. The
    object opens the dataset and the model when the worker processes its first shard."""

    dataset: Path
    model: Path
    output: Path
    split: str | None
    shards: Sequence[Sequence[RowRange]]
    first: int = 0
    """The number of the first shard of this part among all shards of the job."""
    held_out: bool = False
    """Whether training rows get the predictions of models that were not trained on these rows."""
    threads: int = 1
    python: str = sys.executable

    @cached_property
    def _opened(self) -> WorkerStartup:
        """Load the dataset, the model and other data that a worker needs, once before its first shard."""
        begin, before = time.monotonic(), spent_so_far()
        predictor = self._predictor
        helpers = (predictor.open(),) if isinstance(predictor, CodePredictor) else ()
        _ = self._parts, self._held_out
        spent = spent_so_far(helpers).since(before)
        return WorkerStartup(
            helpers=helpers, timing=ShardTiming(seconds=time.monotonic() - begin, spent=spent)
        )

    @cached_property
    def _predictor(self) -> Predictor:
        card = load_card(self.model)
        if card.predict:
            return CodePredictor(card=card, folder=self.model, python=self.python)
        return load_model(self.model, self.threads)

    @cached_property
    def _held_out(self) -> OutOfFoldModel | None:
        return load_held_out(self.model) if self.held_out else None

    @cached_property
    def _parts(self) -> Partitions:
        return open_partitions(self.dataset)

    @cached_property
    def _fetch(self) -> Fetch:
        """Return a function that reads row groups and caches them.

        The cache helps because adjacent shards share row groups, and the earlier rows that a shard needs are
        at the end of the previous shard.
        """
        return lru_cache(maxsize=2)(fetch_piece)

    def __call__(self, shard: int) -> dict[str, Any]:
        """Predict the rows of a shard. If the call is repeated, it writes the same file."""
        first = "_opened" not in self.__dict__
        opened = self._opened
        begin, before = time.monotonic(), spent_so_far(opened.helpers)
        predicted = [self.predict(span) for span in self.shards[shard]]
        table = pa.concat_tables([table for table, _ in predicted])
        path = self.output / part_name(self.first + shard)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        pq.write_table(table, partial)
        partial.replace(path)
        spent = spent_so_far(opened.helpers).since(before)
        done = ShardDone(
            rows=table.num_rows,
            timing=ShardTiming(seconds=time.monotonic() - begin, spent=spent),
            opening=opened.timing if first else None,
            unknown=sum(unknown for _, unknown in predicted),
        )
        return {"done": to_builtins(done)}

    def predict(self, span: RowRange) -> tuple[pa.Table, int]:
        """Return the predictions, and the number of rows with a category that the training rows did not
        have."""
        card = self._predictor.card
        lead = min(span.start, (card.sequence or 1) - 1)
        columns = _columns(card, self._parts, self.split)
        table = self._parts.read(columns, span.start - lead, span.stop, fetch=self._fetch)
        kept = (
            np.flatnonzero(of_split(table["split"], self.split)) if self.split else np.arange(table.num_rows)
        )
        kept = kept[kept >= lead].astype(np.int64)
        predicted = predict_span(self._predictor, table, kept, before=span.start - lead)
        rows, unknown = kept + (span.start - lead), count_unknown(table, card.encodings, kept)
        if self._held_out is None:
            return predicted_table(table.take(kept), rows, predicted, card), unknown
        is_held_out, place = self._held_out.find(rows)
        predicted[is_held_out] = self._held_out.predicted[place]
        folds = np.full(len(rows), np.nan)
        folds[is_held_out] = self._held_out.folds[place]
        table_of_predictions = predicted_table(table.take(kept), rows, predicted, card)
        return table_of_predictions.append_column(
            "fold", pa.array(folds, from_pandas=True).cast(pa.int64())
        ), unknown


def _columns(card: ModelCard, parts: Partitions, split: str | None) -> list[str]:
    names = [*card.keys, *(encoding.column for encoding in card.encodings), *card.labels]
    names += ["split"] if split else []
    present = set(parts.schema.names)
    return [name for name in dict.fromkeys(names) if name in present]
