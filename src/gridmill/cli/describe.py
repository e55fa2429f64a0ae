"""The command `show` as text: it prints a record of any kind in a few lines and tables. The option `--json`
prints all fields.

The module also prints schedules, backfills (a list of all, or a single backfill with its chunks), and the
rows that a sink rejected: their number, the reasons, and the first rows.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gridmill.cli.backfill import backfill_summary
from gridmill.cli.farm_status import route_text, transfers_text
from gridmill.cli.format import amounts, budget_use, in_use, moment, scalar
from gridmill.cli.leases import show_lease
from gridmill.cli.render import details
from gridmill.cli.service_texts import describe_service, promotion_text
from gridmill.cli.session import emit, show
from gridmill.cli.tables import COLOURS, FittedTable, table
from gridmill.domain.amounts import show_bytes, show_period, show_seconds
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind, Column
from gridmill.domain.backfill import Backfill, BackfillView, ChunkState
from gridmill.domain.column_statistics import ColumnStatistics, column_lines, columns_left_out
from gridmill.domain.comparison import options_of
from gridmill.domain.deployment import Deployment
from gridmill.domain.job import When
from gridmill.domain.lease_cost import LeaseView
from gridmill.domain.metric_tables import breakdown_of
from gridmill.domain.metrics import judge, marked, metrics
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import DEFAULT, ProjectView
from gridmill.domain.remarks import remarks_of
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt
from gridmill.domain.secret import SecretView
from gridmill.domain.service import ServiceView
from gridmill.domain.sink_status import rejects_line, rejects_of
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.sql_statement import Given, worded
from gridmill.domain.states import JobState
from gridmill.domain.views import ControlView, JobView, PartView, ScheduleView, VersionView
from gridmill.errors import InputError


def schedule_facts(view: ScheduleView) -> Sequence[tuple[str, object]]:
    """Return facts about the schedule of a pipeline, and the numbers of runs that it started."""
    one = view.schedule
    return [
        ("when", one.spec.text),
        ("next", ", ".join(map(moment, view.next))),
        ("counts from", moment(one.since)),
        ("catch up", one.spec.catch_up),
        ("overlap", one.spec.overlap),
        ("runs", f"{one.runs}, unchanged {one.unchanged}, skipped {one.skipped}"),
        ("last run", one.last_run),
        ("why", view.why or one.message),
    ]


def show_rejects(found: object, *, as_json: bool) -> None:
    """Print the rejected rows of a sink. Raises InputError if the name is not the name of a sink."""
    if not isinstance(found, Artifact) or found.kind != ArtifactKind.SINK:
        raise InputError("only sinks have rejected rows", hint="gridmill show sink PIPELINE/JOB --rejects")
    rejects = rejects_of(found)
    if as_json:
        return emit(rejects)
    print(rejects_line(found) or f"{found.id}: no rejected rows")
    if rejects:
        show(table("place", "reasons", "record", rows=[_row(row) for row in rejects["sample"]]))
        rest = rejects["rows"] - len(rejects["sample"])
        more = f"and {rest:,} more, " if rest else ""
        print(
            f"{more}all rejected rows are in the Delta table {rejects['uri']} at version "
            f"{rejects['table_version']}"
        )


def _row(row: Mapping[str, Any]) -> tuple[object, ...]:
    place = f"{row['source']}:{row['line']}" if row["line"] else f"{row['source']}: row {row['row']}"
    return place, "; ".join(row["reasons"]), row["record"]


HEAD = ("backfill", "from", "to", "every", "done", "left", "running", "failed", "skipped", "")


def backfill_row(view: BackfillView) -> tuple[object, ...]:
    """Return the table cells of a backfill."""
    kept, counts = view.backfill, view.counts
    states = (ChunkState.DONE, ChunkState.LEFT, ChunkState.RUNNING, ChunkState.FAILED, ChunkState.SKIPPED)
    numbers = [counts.get(state, 0) for state in states]
    numbers[3] += counts.get(ChunkState.STOPPED, 0)
    why = "over" if view.over else "stopped" if kept.stopped else ""
    return view.name, kept.begins, kept.ends, _length(kept), *numbers, why


def _length(backfill: Backfill) -> str:
    if backfill.every_seconds is None and backfill.every_months is None:
        return "one chunk"
    return show_period(backfill.every_seconds, backfill.every_months)


def backfill_list(views: Sequence[BackfillView]) -> Table:
    """Return a table of backfills."""
    return table(*HEAD, rows=[backfill_row(view) for view in views])


def show_backfill(view: BackfillView) -> RenderableType:
    """Return a backfill and its chunks for printing."""
    return Group(*_parts(view))


def _parts(view: BackfillView) -> Iterator[RenderableType]:
    kept = view.backfill
    yield Text(f"{view.name}  {'stopped, ' if kept.stopped else ''}{backfill_summary(view)}")
    rows = [(chunk.begins, chunk.ends, chunk.state, chunk.run, chunk.message) for chunk in view.chunks]
    yield table("from", "to", "state", "run", "", rows=rows)
    if any(view.counts.get(state) for state in (ChunkState.FAILED, ChunkState.STOPPED)):
        yield Text(f"to repeat the failed chunks: gridmill start backfill {view.name}")


_SPLITS = ("train", "folds", "validation", "test")
_LISTED = 40
"""The largest number of columns that a list shows. The option `--json` prints all columns."""

Facts = Sequence[tuple[str, object]]


def describe(noun: object) -> RenderableType:
    """Return the text of a record of any kind for printing."""
    match noun:
        case VersionView():
            return Group(*_version(noun))
        case JobView():
            return Group(*_job(noun))
        case Attempt():
            return Group(_head(noun.id, noun.state), _facts(_attempt_facts(noun)))
        case Resource():
            return _facts([("resource", noun.name), *_resource_facts(noun)])
        case ProjectView():
            return _facts([("project", noun.name), *_project_facts(noun)])
        case Site():
            return Group(
                _head(noun.name, noun.kind),
                _facts([("address", noun.address), *sorted(noun.settings.items())]),
                table(
                    "node", "has", rows=[(node.name, amounts(node.capacity)) for node in noun.kinds_of_nodes]
                ),
                *([Text(route_text(noun.route))] if noun.kind == SiteKind.CLUSTER else []),
            )
        case Deployment():
            return Group(*_deployment(noun))
        case LeaseView():
            return show_lease(noun)
        case ServiceView():
            return Group(*describe_service(noun))
        case BackfillView():
            return show_backfill(noun)
        case ScheduleView():
            paused = "paused" if noun.schedule.paused else ""
            return Group(_head(noun.name, paused), _facts(schedule_facts(noun)))
        case SecretView():
            facts = [("secret", noun.name), ("version", noun.version), ("created", moment(noun.created))]
            facts += [("changed", moment(noun.changed)), ("used by", ", ".join(noun.used_by))]
            return _facts([*facts, ("problem", noun.problem)])
        case Alias():
            stands_for = f"version {noun.number}" if noun.number else f"the best by {noun.metric}"
            facts = [("stands for", stands_for), ("set", moment(noun.changed))]
            facts += [("last comparison", promotion_text(noun.id, noun.promotion))]
            facts += [("compared", moment(noun.promotion.created) if noun.promotion else "")]
            return Group(_head(noun.id), _facts(facts))
        case Pipeline():
            return Group(*_pipeline(noun))
        case ControlView():
            return _facts(_control_facts(noun))
        case _:
            return details(noun)


def _head(name: str, *words: object) -> Text:
    head = Text(name, style="bold")
    for word in words:
        if word:
            head.append(f"  {word}", style=COLOURS.get(str(word), "not bold"))
    return head


def _facts(facts: Facts) -> RenderableType:
    made = table("", "", rows=[(name, value) for name, value in facts if value not in (None, "", ())])
    made.show_header = False
    made.columns[1].overflow = "fold"
    return made


def _version(view: VersionView) -> Iterator[RenderableType]:
    one = view.artifact
    names = f"({', '.join(view.names)})" if view.names else ""
    yield _head(one.id, one.kind, names, "removed" if one.removed else "")
    yield _facts(_version_facts(view))
    if remarks := remarks_of(one):
        yield Text("\nremarks", style="bold")
        yield from (Text(f"{'warning: ' if remark.warning else ''}{remark.text}") for remark in remarks)
    if one.kind == ArtifactKind.MODEL:
        yield from _model(view)
    else:
        if one.output.columns:
            yield _columns(one)
        yield from _distributions(one)
        if one.output.metrics:
            yield _facts([("metrics", metrics(one.output.metrics))])
        yield from _breakdowns(one)
    if view.lineage or view.sources:
        yield Text("\nmade from", style="bold")
        lines = (one, *view.lineage) if one.id in view.sources else view.lineage
        yield table(
            "version",
            "kind",
            "rows",
            "made",
            "source",
            rows=[_ancestor(each, view.sources) for each in lines],
        )
    if view.used_by:
        yield _facts([("used by", ", ".join(view.used_by))])


def _version_facts(view: VersionView) -> Facts:
    one, output = view.artifact, view.artifact.output
    return [
        ("made", f"{moment(one.created)} by run {one.run_id}, attempt {one.attempt_id}"),
        ("parameters", ", ".join(f"{name}={_given(value)}" for name, value in view.parameters.items())),
        ("size", f"{show_bytes(output.size_bytes)} in {output.uri}" if output.uri else ""),
        ("rows", f"{output.rows:,}" if output.rows is not None else ""),
        ("table version", output.table_version),
        ("code", f"bundle {view.bundle[:12]}" if view.bundle else _built_in(one)),
        ("packages", ", ".join(f"{name} {is_}" for name, is_ in _mapping(one, "packages").items())),
        ("locked packages", ", ".join(output.details.get("locked") or ())),
        ("why", str(output.details.get("why") or "")),
    ]


def _given(value: Given) -> str:
    return ",".join(map(worded, value)) if isinstance(value, tuple) else worded(value)


def _built_in(one: Artifact) -> str:
    """Return a text about the code that made the version. The text is empty if the code is the pipeline's
    own code, or if the version does not record it."""
    gridmill = _mapping(one, "packages").get("gridmill")
    return f"built into Gridmill {gridmill}" if gridmill else ""


def _mapping(one: Artifact, name: str) -> Mapping[str, Any]:
    value = one.output.details.get(name)
    return value if isinstance(value, Mapping) else {}


def _model(view: VersionView) -> Iterator[RenderableType]:
    one, model_details = view.artifact, view.artifact.output.details
    options = {name: value for name, value in options_of(model_details).items() if value is not None}
    waited = options.pop("data_wait_share", None)
    settings = ", ".join(f"{name} {scalar(value)}" for name, value in options.items())
    rows, left_out = _mapping(one, "rows"), _mapping(one, "not_measured")
    counts = {split: rows.get(split, 0) - left_out.get(split, 0) for split in ("validation", "test")}
    measured = ", ".join(f"{count:,} {split}" for split, count in counts.items() if count)
    labels = ", ".join(model_details.get("labels") or filter(None, [str(model_details.get("label") or "")]))
    yield _facts(
        [
            ("model", model_details.get("model")),
            (
                "predicts",
                model_details.get("predicts") or f"{labels} ({model_details['objective']})"
                if model_details.get("objective")
                else labels,
            ),
            ("classes", ", ".join(map(str, model_details.get("classes") or ()))),
            (
                "sees",
                f"{model_details['sequence']} rows of the entity" if model_details.get("sequence") else "",
            ),
            ("settings", settings),
            ("waited for data", f"{waited:.1%} of the training time" if waited is not None else ""),
            ("seed", model_details.get("seed")),
            ("dataset", model_details.get("dataset")),
            ("learned from", f"{rows['train']:,} train rows" if rows.get("train") else ""),
            ("measured on", f"{measured} rows" if measured else ""),
            ("model.onnx", graph_words(model_details)),
            (
                "calibration",
                judge(model_details["calibration"]).text if model_details.get("calibration") else "",
            ),
        ]
    )
    takes = tuple(str(name) for name in model_details.get("features") or ())
    if takes:
        yield Text("\ntakes", style="bold")
        types = dict(_mapping(one, "feature_types"))
        types |= {column.name: column.type for each in view.lineage for column in each.output.columns}
        weights = _mapping(one, "importance")
        rows_ = [(name, types.get(name, ""), scalar(weights.get(name))) for name in takes[:_LISTED]]
        yield table("column", "type", "importance" if weights else "", rows=rows_)
        yield from _more(len(takes))
    if one.output.metrics:
        yield Text("\nmetrics", style="bold")
        yield metric_table(one.output.metrics)
    yield from _breakdowns(one)


def _breakdowns(one: Artifact) -> Iterator[RenderableType]:
    for tables in breakdown_of(one):
        yield Text(f"\n{tables.title}", style="bold")
        yield table(*tables.head, rows=tables.rows)
        if tables.note:
            yield Text(f"... {tables.note}", style="dim")


def graph_words(told: Mapping[str, Any]) -> str:
    """Return a text that states whether the model has an ONNX graph, and with which rows the graph was
    checked. The text is empty for models that were stored by older releases of Gridmill."""
    if "files" not in told:
        return ""
    if "model.onnx" not in told["files"]:
        own = "the model predicts with its own code" if told.get("predict") else ""
        return f"none: {own or 'this version of Gridmill did not create the graph of one of its models'}"
    check = told.get("file_check") or {}
    if "edge_rows" not in check:
        return "imported"
    rows = f"{check['rows']:,} training rows and {check['edge_rows']:,} rows of extreme values"
    return f"equals the trained model in {rows}"


def metric_table(values: Mapping[str, float]) -> RenderableType:
    """Return a table of metrics with a column for each split. Metrics without a split are in a column of
    their own."""
    splits = [split for split in _SPLITS if any(name.startswith(f"{split}_") for name in values)]
    plain = {name: value for name, value in values.items() if not name.startswith(tuple(_SPLITS))}
    names = dict.fromkeys(name.partition("_")[2] for name in values if name not in plain)
    rows = [(name, *(scalar(values.get(f"{split}_{name}")) for split in splits)) for name in names]
    rows += [(marked(name), scalar(value), *[""] * (len(splits) - 1)) for name, value in plain.items()]
    return table("metric", *(splits or [""]), rows=rows)


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?.*")
_WIDEST_VALUE = 40


def _in_cell(value: object) -> str:
    """Return the value in a short form: times are rounded to the minute, and long texts are cut."""
    text = _TIME.sub(r"\1 \2", scalar(value))
    return text if len(text) <= _WIDEST_VALUE else f"{text[: _WIDEST_VALUE - 1]}…"


def _columns(one: Artifact) -> RenderableType:
    """Return a table of columns with the statistics of their values."""
    facts = _mapping(one, "columns")
    rows = [_column_row(column, facts.get(column.name) or {}) for column in one.output.columns[:_LISTED]]
    head = ("column", "type", *(("missing", "distinct", "min", "mean", "max") if facts else ()))
    return Group(
        Text("\ncolumns", style="bold"),
        FittedTable(
            head, [row[: len(head)] for row in rows], folded=("type", "min", "max"), left_out=("distinct",)
        ),
        *_more(len(one.output.columns)),
    )


def _distributions(one: Artifact) -> Iterator[RenderableType]:
    lines = column_lines(one)
    if lines:
        yield Text("\ndistributions of the training rows", style="bold")
        head = (
            "column",
            "values",
            "missing",
            "5 %, 50 %, 95 %, or most frequent",
            "with the label",
        )
        yield FittedTable(head, [_distribution_row(line) for line in lines], folded=head[3:])
        left_out = columns_left_out(one)
        if left_out:
            yield Text(f"... and {left_out} more columns without statistics", style="dim")


def _distribution_row(line: ColumnStatistics) -> tuple[object, ...]:
    values = ", ".join(scalar(value) for value in line.values)
    values = f"not computed: {line.problem}" if line.problem else values
    return (line.name, line.bars, f"{line.missing:.1%}", values, scalar(line.with_label))


def _column_row(column: Column, known: Mapping[str, Any]) -> tuple[object, ...]:
    cells = (_in_cell(known.get(name)) for name in ("nulls", "distinct", "min", "mean", "max"))
    return (column.name, column.type, *cells)


def _more(count: int) -> Iterator[RenderableType]:
    if count > _LISTED:
        yield Text(f"... and {count - _LISTED} more", style="dim")


def _ancestor(one: Artifact, sources: Mapping[str, str]) -> tuple[object, ...]:
    rows = f"{one.output.rows:,}" if one.output.rows is not None else ""
    gone = " (removed)" if one.removed else ""
    return one.id + gone, one.kind, rows, moment(one.created), sources.get(one.id)


def _job(view: JobView) -> Iterator[RenderableType]:
    job = view.job
    carried = (one.transfers for one in reversed(view.attempts))
    yield _head(job.id, job.state, job.job.kind)
    yield _facts(
        [
            ("why", view.why or (job.message if job.message != job.state else "")),
            ("restored as" if job.state == JobState.UNCHANGED else "runs because", job.reason),
            ("needs", ", ".join(need.rpartition("/")[2] for need in job.needs)),
            ("when", "" if job.job.when == When.SUCCESS else job.job.when),
            ("reads", ", ".join(job.external)),
            ("resource", job.resource),
            ("project", job.project if job.project != DEFAULT else ""),
            ("size", f"{amounts(job.sizing.amounts)}{_each(job.sizing.workers)}"),
            ("", "; ".join(job.sizing.why)),
            ("ready", moment(job.ready)),
            ("started", moment(job.started)),
            ("ended", moment(job.ended)),
            ("made", ", ".join(one.id for one in view.artifacts)),
            ("carried", next((transfers_text(one) for one in carried if one is not None), "")),
        ]
    )
    if view.parts:
        yield Text("\nparts", style="bold")
        yield table(
            "part", "state", "node", "attempts", "time", "", rows=[_part_row(one) for one in view.parts]
        )
    if view.attempts:
        yield Text("\nattempts", style="bold")
        head = ("attempt", "state", "on", "given", "wall time in its pod", "cpu", "peak memory", "")
        yield table(*head, rows=[_attempt_row(one) for one in view.attempts])
    if view.ranks:
        yield Text("\nother ranks", style="bold")
        yield table(*head, rows=[_attempt_row(one) for one in view.ranks])
    if view.metrics:
        yield Text("\nmetrics", style="bold")
        yield metric_table(view.metrics)


def _part_row(one: PartView) -> tuple[object, ...]:
    took = "" if one.seconds is None else show_seconds(one.seconds)
    return one.job.id, one.job.state, one.node, len(one.attempts), took, one.job.message or one.why


def _each(workers: int) -> str:
    return f", {workers} workers" if workers > 1 else ""


def _attempt_row(one: Attempt) -> tuple[object, ...]:
    use = one.use
    return (
        one.id,
        one.state,
        one.pod_id,
        amounts(one.given),
        show_seconds(use.wall_seconds) if use else "",
        show_seconds(use.cpu_seconds) if use else "",
        show_bytes(use.peak_memory_bytes) if use else "",
        one.interrupted.why if one.interrupted is not None else one.message,
    )


def _attempt_facts(one: Attempt) -> Facts:
    use = one.use
    return [
        ("pod", f"{one.pod_id} of {one.deployment_id}"),
        ("given", amounts(one.given)),
        ("GPUs", ", ".join(map(str, one.gpu_indices))),
        ("placed", moment(one.placed)),
        ("started", moment(one.started)),
        ("ended", moment(one.ended)),
        (
            "used",
            f"{show_seconds(use.wall_seconds)}, CPU {show_seconds(use.cpu_seconds)}, peak memory "
            f"{show_bytes(use.peak_memory_bytes)}"
            if use
            else "",
        ),
        ("carried", transfers_text(one.transfers) if one.transfers is not None else ""),
        ("exit code", one.exit_code),
        ("cause", one.cause),
        ("interrupted", f"for {one.interrupted.whom}" if one.interrupted is not None else ""),
        ("message", one.message),
        ("hint", one.hint),
        ("metrics", metrics(one.metrics)),
    ]


def _resource_facts(one: Resource) -> Facts:
    size = one.size
    return [
        ("for", f"{one.type} jobs at {one.site}"),
        ("rows", f"{size.rows:,}" if size and size.rows else ""),
        ("columns", size.columns if size else ""),
        ("CPUs", one.cpus),
        ("memory", show_bytes(one.memory_bytes) if one.memory_bytes else ""),
        ("GPUs", one.gpus or ""),
        ("workers", one.workers),
        ("kept up", _kept_up(one.keep_seconds)),
        ("staging", one.staging or ""),
        ("settings", ", ".join(f"{name}={value}" for name, value in one.settings.items())),
        ("jobs", ", ".join(one.jobs)),
        ("made by", "Gridmill, as a default" if one.default else ""),
    ]


def _project_facts(one: ProjectView) -> Facts:
    cpus, memory, gpus = in_use(one)
    used = f"{one.used_share:.0%} of the usage of all projects, {show_seconds(one.used_seconds)} of job time"
    return [
        ("share", f"{one.project.share:g}"),
        ("used", used),
        ("CPUs", cpus),
        ("memory", memory),
        ("GPUs", gpus),
        ("rented machines this month", budget_use(one)),
    ]


def _kept_up(seconds: float | None) -> str:
    return "" if seconds is None else f"{show_seconds(seconds)} after the last job"


def _deployment(one: Deployment) -> Iterator[RenderableType]:
    yield _head(one.id, one.state, f"of {one.resource} at {one.site}", one.message)
    yield _facts(
        [
            ("size", f"{amounts(one.sizing.amounts)}{_each(one.sizing.workers)}"),
            ("made", moment(one.created)),
            ("idle since", moment(one.idle_since)),
            ("kept up", _kept_up(one.keep_seconds)),
        ]
    )
    rows = [(pod.id, pod.state, pod.node, amounts(pod.capacity), pod.message) for pod in one.pods]
    yield table("pod", "state", "node", "has", "", rows=rows)


def _pipeline(one: Pipeline) -> Iterator[RenderableType]:
    yield _head(one.name, one.description)
    parameters = ", ".join(f"{name}={_given(value)}" for name, value in one.parameters.items())
    yield _facts(
        [
            ("file", "" if one.path is None else one.path),
            ("folder", one.folder if one.path is None else ""),
            ("known from", "`gridmill apply`" if one.applied else "its last run"),
            ("code", f"bundle {one.bundle[:12]}" if one.bundle else ""),
            ("parameters", parameters),
            ("resources", ", ".join(resource.name for resource in one.resources)),
        ]
    )
    rows = [
        (job.name, job.kind, ", ".join(job.spec.references() or job.needs), job.resource) for job in one.jobs
    ]
    yield table("job", "kind", "reads", "resource", rows=rows)


def _control_facts(one: ControlView) -> Facts:
    return [
        ("version", one.version),
        ("process", one.pid),
        ("address", one.address),
        ("home", one.home),
        ("storage root", one.root),
        ("started", moment(one.started)),
        ("active runs", one.active_runs),
        ("jobs", f"{one.running_jobs} running, {one.waiting_jobs} waiting"),
        ("deployments", one.deployments),
    ]
