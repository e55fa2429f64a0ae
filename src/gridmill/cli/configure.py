"""The commands `configure` and `alter` for resources, aliases of models and sinks, and the command `status
sink`.

The size of a resource is computed from the size of a job, or is set by hand. `configure model NAME --alias
prod=3` sets an alias of a version. `alter sink` changes a sink until the change is removed.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from gridmill.cli.completion import complete_names
from gridmill.cli.describe import describe
from gridmill.cli.format import amounts, moment
from gridmill.cli.parameters import finite
from gridmill.cli.rental_options import (
    AcceptNoSelfEnd,
    AcceptNoSelfEndOrNot,
    DeadMan,
    Disk,
    GpuMemory,
    Image,
    InstanceType,
    KeepOnFailure,
    MaxCost,
    MaxHours,
    MaxPrice,
    RentalRegion,
    Spot,
    SpotOrNot,
    altered_settings,
    rental_settings,
)
from gridmill.cli.secrets import rotate_key
from gridmill.cli.service_texts import plan_lines
from gridmill.cli.session import Json, emit, session, show
from gridmill.cli.sites import (
    Address,
    Endpoint,
    ExportBucket,
    Setting,
    SharedBucket,
    bucket_settings,
    print_site,
    read_settings,
    warn_unreachable,
)
from gridmill.cli.tables import table
from gridmill.declarations.read import read_constraint, read_outage
from gridmill.domain.amounts import show_seconds
from gridmill.domain.artifact import BEST, Alias, split_reference
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.route import Staging
from gridmill.domain.service_size import ServicePlan
from gridmill.domain.sink_overrides import AlterVerb, SinkChange, SinkPart
from gridmill.domain.sink_status import LoadTask
from gridmill.errors import InputError
from gridmill.sdk.client import Client, change_of
from gridmill.sdk.lookup import Noun, find_noun


def set_aliases(
    context: typer.Context,
    name: str,
    aliases: list[str],
    best_by: str | None,
    expected: int | None,
    as_json: bool,
) -> None:
    """Set all given aliases in order. If an alias cannot be set, the function raises an error and sets no
    further alias."""
    if not aliases and best_by is None:
        raise InputError(
            "no alias and no metric is given",
            hint="Pass an alias (`--alias prod=3`) or a metric (`--best-by validation_auc`).",
        )
    wanted = [(alias, number, "") for alias, number in (read_alias(name, text) for text in aliases)]
    wanted += [(BEST, None, best_by)] if best_by is not None else []
    with session(context) as client:
        kept = [
            client.set_alias(name, alias, number, best_by=metric, expected=expected)
            for alias, number, metric in wanted
        ]
    if as_json:
        return emit(kept)
    for one in kept:
        print(f"{one.id} is {alias_target(one)}")


def read_alias(name: str, text: str) -> tuple[str, int | None]:
    """Parse `prod=3` (or `prod=PIPELINE/JOB@3`) as alias and version number. Raises InputError."""
    alias, _, version = text.partition("=")
    of, number = split_reference(version)
    number = number if of == name else version
    if not number.isdecimal():
        raise InputError(
            f"{text!r} is not of the form NAME=NUMBER",
            hint=f"Write NAME=NUMBER, for example: --alias {alias}=3",
        )
    return alias, int(number)


def alias_target(alias: Alias) -> str:
    """Return a text for the target of an alias, such as `version 3` or `the best by rmse`."""
    return f"version {alias.number}" if alias.number is not None else f"the best by {alias.metric}"


_USAGE = "gridmill alter sink PIPELINE/JOB add|remove source|constraint|metric|outage_window VALUE"


def read_change(words: Sequence[str]) -> SinkChange:
    """Parse a change of a sink from the words that come after its name. The kind of the changed part may be
    in the plural, as in pipeline files. Raises InputError with the usage of the command."""
    named = words[1].removesuffix("s") if len(words) == 3 else ""
    if words[:1] not in [[verb] for verb in AlterVerb] or named not in list(SinkPart):
        raise InputError(f"{' '.join(words) or 'nothing'!r} is not a change of a sink", hint=_USAGE)
    verb, part, text = AlterVerb(words[0]), SinkPart(named), words[2]
    if verb == AlterVerb.REMOVE and not text.lstrip().startswith("{"):
        return SinkChange(verb=verb, part=part, key=text)
    match part:
        case SinkPart.CONSTRAINT:
            return change_of(verb, read_constraint(text))
        case SinkPart.OUTAGE_WINDOW:
            return change_of(verb, read_outage(text))
        case SinkPart.METRIC:
            name, equals, sql = text.partition("=")
            if not (name.strip() and equals and sql.strip()):
                raise InputError(
                    f"{text!r} is not of the form NAME=SQL",
                    hint="Write NAME=SQL, for example: revenue=sum(price)",
                )
            return change_of(verb, sql.strip(), metric=name.strip())
    return change_of(verb, text)


def alter_sink(client: Client, name: str, words: Sequence[str], *, as_json: bool) -> None:
    """Change the sink, and print all parts of the sink that are altered."""
    after = client.grid.alter_sink(name, read_change(words))
    if as_json:
        return emit(after)
    print(f"{name}: altered for all runs that start from now on")
    print_alterations(client, name)


def print_alterations(client: Client, name: str) -> None:
    """Print the altered parts of a sink, each in a line of its own."""
    for one in client.list_alterations(name):
        for change in one.changes:
            print(f"altered: {change}")


def status_sinks(client: Client, name: str | None, *, as_json: bool) -> None:
    """Print a line for each source of each sink, or for each source of the named sink. Raises
    NotFoundError."""
    tasks = client.list_load_tasks(name)
    if as_json:
        return emit(tasks)
    head = (
        "sink", "source", "state", "last load", "rows", "added", "rejects", "position", "lag", "next",
        "drift", "altered", "why",
    )  # fmt: skip
    show(table(*head, rows=[_row(task) for task in tasks]))


def _row(task: LoadTask) -> tuple[object, ...]:
    return (
        task.sink,
        task.source,
        task.state or "never run",
        moment(task.loaded),
        f"{task.rows:,}",
        f"{task.rows_added:,}",
        f"{task.rejects:,}",
        task.position,
        "" if task.lag_seconds is None else show_seconds(task.lag_seconds),
        moment(task.following),
        ", ".join(task.drifted),
        task.alterations or "",
        task.why,
    )


class Configurable(StrEnum):
    """The kinds of records that `configure` can change."""

    RESOURCE = "resource"
    MODEL = "model"
    DATASET = "dataset"
    SINK = "sink"
    SITE = "site"
    PROJECT = "project"
    SECRET_KEY = "secret-key"


What = Annotated[
    Configurable,
    typer.Argument(
        metavar="NOUN",
        help="Resource, site, project, or a model or dataset whose aliases to change.",
        show_default=False,
    ),
]
Altered = Annotated[
    Configurable, typer.Argument(metavar="NOUN", help="resource or sink.", show_default=False)
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the noun. For a model, dataset or sink: PIPELINE/JOB.",
        show_default=False,
        autocompletion=complete_names,
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        help="Rows that the jobs of the resource read, for example 250k or 1M. Gridmill computes the size "
        "of the resource from this number."
    ),
]
Columns = Annotated[int | None, typer.Option(min=1, help="Columns that the jobs of the resource read.")]
Cpus = Annotated[
    float | None,
    typer.Option(callback=finite, min=0.01, help="CPUs of each worker. Default: chosen from the data."),
]
Memory = Annotated[
    str | None, typer.Option(help="Memory of each worker, for example 512MiB. Default: chosen from the data.")
]
Gpus = Annotated[int | None, typer.Option(min=0, help="GPUs of each worker. Default: 0.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of workers. Each worker is a pod. "
        "Default: pods are added while jobs wait and CPUs are free.",
    ),
]
Keep = Annotated[
    str | None, typer.Option(help="Time that a deployment stays up after its last job, for example 10m.")
]
Site = Annotated[
    str | None,
    typer.Option("--site", "--at", help="Site where the pods of the resource start. Default: local."),
]
How = Annotated[
    Staging | None,
    typer.Option(
        "--staging",
        help="For a site of kind cluster: how data is transferred. Default: direct.",
        show_default=False,
    ),
]
ServedModel = Annotated[
    str,
    typer.Option(
        metavar="PIPELINE/JOB@VERSION",
        help="For a resource of type service: the model whose size is shown.",
        show_default=False,
    ),
]
MeasureAgain = Annotated[
    bool,
    typer.Option(
        "--measure-again",
        help="With --model: replace the stored measurement of the version.",
        show_default=False,
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="With --model: the measurement may run the code of a version that predicts with its own code.",
        show_default=False,
    ),
]
ServedRate = Annotated[
    float | None,
    typer.Option(
        callback=finite,
        min=0.0,
        metavar="REQUESTS/S",
        help="With --model: the expected requests per second.",
        show_default=False,
    ),
]
Jobs = Annotated[
    list[str] | None,
    typer.Option("--job", metavar="JOB", help="Assign a job (JOB or PIPELINE/JOB). Repeatable."),
]


def configure(
    context: typer.Context,
    what: What,
    name: Name,
    type: Annotated[
        JobKind | None, typer.Option("--type", help="For a resource: the kind of its jobs.")
    ] = None,
    rows: Rows = None,
    columns: Columns = None,
    cpus: Cpus = None,
    memory: Memory = None,
    gpus: Gpus = None,
    workers: Workers = None,
    keep: Keep = None,
    site: Site = None,
    staging: How = None,
    job: Jobs = None,
    model: ServedModel = "",
    rate: ServedRate = None,
    measure_again: MeasureAgain = False,
    trust: TrustCode = False,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VERSION", help="Set an alias, for example prod=3. Repeatable."),
    ] = None,
    best_by: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC", help="Metric that chooses @best: validation_auc, max:NAME or min:NAME."
        ),
    ] = None,
    expect: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Set the alias only if it names this version now. 0: only if the alias does not exist.",
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            callback=finite,
            help="For a project: its share of the resources, relative to other projects. Default: 1.",
        ),
    ] = None,
    address: Address = None,
    export: ExportBucket = None,
    shared: SharedBucket = None,
    endpoint: Endpoint = None,
    instance_type: InstanceType = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="For a project: the highest cost of its rented machines in one month, for example 200;"
            " `none` removes the budget. If the budget is used up, jobs that need a rented machine wait.",
            show_default=False,
        ),
    ] = None,
    currency: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="The currency of --budget. Default: USD.", show_default=False),
    ] = None,
    gpu_memory: GpuMemory = None,
    region: RentalRegion = None,
    spot: Spot = False,
    max_price: MaxPrice = None,
    max_cost: MaxCost = None,
    max_hours: MaxHours = None,
    dead_man: DeadMan = None,
    keep_on_failure: KeepOnFailure = None,
    accept_no_self_end: AcceptNoSelfEnd = False,
    image: Image = None,
    disk: Disk = None,
    set: Setting = None,
    json: Json = False,
) -> None:
    """Create or replace a resource and show its size with the reason; or change a site, a project or an
    alias.

    Give the size of the data (--rows, --columns) and Gridmill chooses the amounts; --cpus, --memory, --gpus
    and --workers take precedence. For a model or dataset, --alias sets an alias and --best-by sets the metric
    of PIPELINE/JOB@best. For a site, --address and --set change a setting and `--set NAME=` removes it. For a
    resource at a Slurm site, --set gives options of sbatch (partition=gpu, account=physics, time_limit=8h).
    For a project, --share sets its share, --cpus, --memory and --gpus set its quota, and --budget limits the
    cost of rented machines in a month. `gridmill configure secret-key new` encrypts all secrets with a new
    key.

    For a resource of type service, --model and --rate show the replicas, the CPUs, the memory and the latency
    of a service before it starts. They follow from a measurement of a few seconds on the resource.
    """
    if what == Configurable.SECRET_KEY:
        return rotate_key(context, name, json)
    rental = rental_settings(
        instance_type=instance_type,
        gpu_memory=gpu_memory,
        region=region,
        spot=spot,
        max_price=max_price,
        max_cost=max_cost,
        max_hours=max_hours,
        dead_man=dead_man,
        keep_on_failure=keep_on_failure,
        accept_no_self_end=accept_no_self_end,
        image=image,
        disk=disk,
    )
    check_no_rental(what, rental)
    if what != Configurable.PROJECT and (budget is not None or currency):
        raise InputError(
            f"a {what} has no --budget; only a project has it", hint="For a resource: --set budget=200"
        )
    if currency and budget is None:
        raise InputError("--currency is given without --budget", hint="Pass both, such as --budget 200.")
    if what == Configurable.PROJECT:
        with session(context) as client:
            given = 1.0 if share is None else share
            view = client.configure_project(
                name,
                share=given,
                cpus=cpus,
                memory=memory,
                gpus=gpus,
                budget=budget,
                currency=currency or "USD",
            )
        return emit(view) if json else show(describe(view))
    if what == Configurable.SITE:
        with session(context) as client:
            settings = {**read_settings(set or ()), **bucket_settings(export, shared, endpoint)}
            print_site(client.configure_site(name, address=address, settings=settings), json)
            return warn_unreachable(client, name)
    if what != Configurable.RESOURCE:
        return set_aliases(context, name, alias or [], best_by, expect, json)
    if (
        bool(model) != (rate is not None)
        or ((measure_again or trust) and not model)
        or (model and type != JobKind.SERVICE)
    ):
        raise InputError(
            "--model and --rate must be given together, with --type service",
            hint=f"gridmill configure resource {name} --type service --model PIPELINE/JOB@3 --rate 200",
        )
    if type is None:
        raise InputError(
            "the type of the resource's jobs is not given",
            hint=f"Pass --type with one of: {', '.join(JobKind)}.",
        )
    with session(context) as client:
        done = client.configure_resource(
            name,
            type,
            rows=rows,
            columns=columns,
            cpus=cpus,
            memory=memory,
            gpus=gpus or 0,
            workers=workers,
            keep=keep,
            site=site or "local",
            jobs=tuple(job or ()),
            settings={**read_settings(set or ()), **rental},
            staging=staging,
        )
        plan = None
        if rate is not None:
            plan = client.plan_service(model, rate=rate, resource=name, again=measure_again, trust=trust)
    return _print_resource(done, json, plan)


def alter(
    context: typer.Context,
    what: Altered,
    name: Name,
    change: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[add|remove PART VALUE]",
            help="For a sink: source PATH, constraint YAML, outage_window YAML or metric NAME=SQL.",
        ),
    ] = None,
    rows: Rows = None,
    columns: Columns = None,
    cpus: Cpus = None,
    memory: Memory = None,
    gpus: Gpus = None,
    workers: Workers = None,
    keep: Keep = None,
    site: Site = None,
    staging: How = None,
    job: Jobs = None,
    instance_type: InstanceType = None,
    gpu_memory: GpuMemory = None,
    region: RentalRegion = None,
    spot: SpotOrNot = None,
    max_price: MaxPrice = None,
    max_cost: MaxCost = None,
    max_hours: MaxHours = None,
    dead_man: DeadMan = None,
    keep_on_failure: KeepOnFailure = None,
    accept_no_self_end: AcceptNoSelfEndOrNot = None,
    image: Image = None,
    disk: Disk = None,
    set: Setting = None,
    json: Json = False,
) -> None:
    """Change settings of a resource; or add parts to a sink or remove them, for all runs that follow.

    Parts of a sink are sources, constraints, metrics and outage windows. For a resource, `--set NAME=`
    removes a setting. An option for a cloud provider with an empty value (`--region ""`) also removes a
    setting.
    """
    rental = {
        "instance_type": instance_type,
        "gpu_memory": gpu_memory,
        "region": region,
        "spot": spot,
        "max_price": max_price,
        "max_cost": max_cost,
        "max_hours": max_hours,
        "dead_man": dead_man,
        "keep_on_failure": keep_on_failure,
        "accept_no_self_end": accept_no_self_end,
        "image": image,
        "disk": disk,
    }
    check_no_rental(what, rental)
    if what == Configurable.SINK:
        with session(context) as client:
            return alter_sink(client, name, change or [], as_json=json)
    if what in (Configurable.MODEL, Configurable.DATASET):
        raise InputError(
            f"a version of a {what} cannot be altered",
            hint=f"Versions never change. To set an alias: gridmill configure {what} NAME --alias prod=3",
        )
    if what != Configurable.RESOURCE:
        raise InputError(
            f"a {what} cannot be altered", hint=f"To change it: gridmill configure {what} {name} ..."
        )
    if change:
        raise InputError(
            f"nothing can be {'removed from' if change[0] == 'remove' else 'added to'} a resource",
            hint=f"Change its settings with options: gridmill alter resource {name} --memory 12GiB",
        )
    given: dict[str, Any] = {
        "cpus": cpus,
        "memory": memory,
        "gpus": gpus,
        "workers": workers,
        "keep": keep,
        "site": site,
        "staging": staging,
        "jobs": None if job is None else tuple(job),
        "rows": rows,
        "columns": columns,
    }
    with session(context) as client:
        given["settings"] = _settings(client, name, set, rental)
        changes = {field: value for field, value in given.items() if value is not None}
        if not changes:
            raise InputError(
                "no setting to change is given", hint="`gridmill alter --help` lists the options."
            )
        done = client.alter_resource(name, **changes)
    return _print_resource(done, json)


def check_no_rental(what: Configurable, rental: Mapping[str, str | bool | None]) -> None:
    """Raise InputError if an option for rented machines is given for a noun other than a resource."""
    given = next((name for name, value in rental.items() if value is not None), None)
    if given is not None and what != Configurable.RESOURCE:
        option = "--" + given.replace("_", "-")
        raise InputError(f"a {what} has no {option}; only a resource has it", place=option)


def _settings(
    client: Client, name: str, words: list[str] | None, rental: Mapping[str, str | bool | None]
) -> dict[str, str] | None:
    """Return the current settings of a resource, updated with the new settings. A new setting with an empty
    value is removed."""
    if not words and all(value is None for value in rental.values()):
        return None
    before: Resource = find_noun(client.grid, Noun.RESOURCE, name)
    return altered_settings({**before.settings, **read_settings(words or ())}, **rental)


def _print_resource(done: tuple[Resource, Sizing], as_json: bool, plan: ServicePlan | None = None) -> None:
    if as_json:
        planned = {} if plan is None else {"service": plan}
        return emit({"resource": done[0], "sizing": done[1], **planned})
    resource, sizing = done
    workers = f"{sizing.workers} workers, each " if sizing.workers > 1 else ""
    print(f"resource {resource.name} ({resource.type}): {workers}{amounts(sizing.amounts)}")
    for why in sizing.why:
        print(f"  {why}")
    for line in plan_lines(plan) if plan is not None else ():
        print(line)
