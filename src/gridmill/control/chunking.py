"""Chunks of a kept pipeline: its text is read again for each, with the chunk's bounds as parameters."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from gridmill.errors import PipelineError
from gridmill.model.backfill import Backfill, Chunk
from gridmill.model.pipeline import Pipeline, Written
from gridmill.planning.backfills import check_bounds, spans


def chunks_of(pipeline: Pipeline, backfill: Backfill, values: Mapping[str, str]) -> tuple[Chunk, ...]:
    """The chunks of a backfill of it, oldest first, with `values` for other parameters. Its file is not
    looked at; its code is that of when it was applied.

    Raises PipelineError where the text is not kept or does not take the range, InputError.
    """
    written = pipeline.written
    if written is None:
        raise PipelineError(
            f"pipeline {pipeline.name!r} was kept without the text of its file, which a backfill needs",
            hint="Apply it again (`gridmill apply -f FILE`), or name its file.",
        )
    check_bounds(pipeline, written.file)
    return tuple(_chunk(pipeline, written, span, values) for span in spans(backfill))


def _chunk(pipeline: Pipeline, written: Written, span: tuple[str, str], values: Mapping[str, str]) -> Chunk:
    begins, ends = span
    declarations: Any = import_module("gridmill.declarations")  # knows YAML, which most nodes never need
    given = {**values, "from": begins, "to": ends}
    read: Pipeline = declarations.read_again(written, folder=pipeline.folder, set_values=given)
    return Chunk(pipeline=replace(read, bundle=pipeline.bundle), begins=begins, ends=ends)
