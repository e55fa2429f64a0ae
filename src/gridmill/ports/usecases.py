"""The table of use cases: the HTTP request, the OpenAPI tag and the required role of each method of `Grid`.

The types of arguments and answers, the default values and the help text come from the method in `ports.grid`.
The REST routes with their OpenAPI document (api/routes.py), the HTTP client (sdk/grid_http.py) and the calls
over the Unix socket (rpc/) are derived from this table.

Every list use case has the same form: pages of `items` in the order that the method documents, with a
`next_cursor`, and the arguments `limit` and `cursor` (ports/pages.py). Every stream use case has the same
form: a JSON array of items, each with an `id`, and an argument `after`, which is the id of the last item
that the caller has.
"""

from collections.abc import Mapping

from gridmill.errors import InputError
from gridmill.ports.pages import MOST_ITEMS
from gridmill.ports.usecase import ArgumentLimits, Role, UseCase

_NOTHING: Mapping[str, str] = {}
_NO_LIMITS: Mapping[str, ArgumentLimits] = {}
_NAME = ArgumentLimits(min_length=1, max_length=200)
_HASH = ArgumentLimits(pattern=r"^[0-9a-f]{8,128}$")
_MONTH = ArgumentLimits(pattern=r"^(\d{4}-\d{2})?$")
_PAGE = ArgumentLimits(ge=1, le=MOST_ITEMS)
_CURSOR = ArgumentLimits(min_length=1, max_length=2000)
_MANY = ArgumentLimits(ge=1, le=10_000)
_VIEWER, _OPERATOR, _ADMIN = Role


def _row(
    name: str,
    request: str,
    tag: str,
    role: Role,
    operation: str = "",
    *,
    body: tuple[str, ...] = (),
    sent: Mapping[str, str] = _NOTHING,
    limits: Mapping[str, ArgumentLimits] = _NO_LIMITS,
    starts_run: bool = False,
) -> UseCase:
    method, _, path = request.partition(" ")
    return UseCase(
        name=name,
        method=method,
        path=path,
        tag=tag,
        role=role,
        operation=operation or name,
        body=body,
        sent=sent,
        limits=limits,
        starts_run=starts_run,
    )


def _list(name: str, request: str, tag: str, *, sent: Mapping[str, str] = _NOTHING) -> UseCase:
    limits = {"limit": _PAGE, "cursor": _CURSOR}
    return _row(name, request, tag, _VIEWER, f"list_{name}", sent=sent, limits=limits)


_ROWS = (
    _row("control", "GET /control", "control", _VIEWER, "show_control"),
    _row("shutdown", "POST /control/shutdown", "control", _ADMIN),
    _list("pipelines", "GET /pipelines", "pipelines"),
    _row("apply", "POST /pipelines", "pipelines", _OPERATOR, "apply_pipeline", body=("pipeline",)),
    _row("pipeline", "GET /pipelines/{name}", "pipelines", _VIEWER, "show_pipeline"),
    _row("remove_pipeline", "DELETE /pipelines/{name}", "pipelines", _OPERATOR),
    _row("plan_run", "POST /plans", "runs", _VIEWER, body=("pipeline",)),
    _row("start_run", "POST /runs", "runs", _OPERATOR, body=("pipeline",), starts_run=True),
    _list("runs", "GET /runs", "runs", sent={"states": "state"}),
    _row(
        "run",
        "GET /runs/{run_id}",
        "runs",
        _VIEWER,
        "show_run",
        limits={"since": ArgumentLimits(max_length=100)},
    ),
    _list("jobs", "GET /runs/{run_id}/jobs", "runs", sent={"states": "state"}),
    _row("job", "GET /runs/{run_id}/jobs/{name}", "runs", _VIEWER, "show_job"),
    _row("remove_run", "DELETE /runs/{run_id}", "runs", _OPERATOR),
    _row("resume", "POST /runs/{run_id}/resume", "runs", _OPERATOR, "resume_run", starts_run=True),
    _row("stop_run", "POST /runs/{run_id}/stop", "runs", _OPERATOR),
    _row(
        "events",
        "GET /runs/{run_id}/events",
        "runs",
        _VIEWER,
        "follow_events",
        limits={
            "after": ArgumentLimits(max_length=100),
            "limit": _MANY,
            "wait_seconds": ArgumentLimits(ge=0, le=60),
        },
    ),
    _row(
        "logs",
        "GET /runs/{run_id}/logs",
        "runs",
        _VIEWER,
        "follow_logs",
        limits={
            "after": ArgumentLimits(max_length=100),
            "until": ArgumentLimits(ge=0),
            "tail": ArgumentLimits(ge=0, le=10**6),
            "search": ArgumentLimits(max_length=1000),
            "limit": _MANY,
            "wait_seconds": ArgumentLimits(ge=0, le=60),
        },
    ),
    _row("report", "GET /runs/{run_id}/report", "runs", _VIEWER, "show_report"),
    _list("resources", "GET /resources", "resources"),
    _row("configure_resource", "PUT /resources/{resource.name}", "resources", _OPERATOR, body=("resource",)),
    _row("remove_resource", "DELETE /resources/{name}", "resources", _OPERATOR),
    _list("sites", "GET /sites", "sites"),
    _list("nodes", "GET /nodes", "sites"),
    _list("farms", "GET /farms", "sites"),
    _row("add_site", "PUT /sites/{site.name}", "sites", _ADMIN, body=("site",)),
    _row("remove_site", "DELETE /sites/{name}", "sites", _ADMIN),
    _row("check_account", "POST /account-checks", "sites", _ADMIN, body=("site",)),
    _row("offers", "GET /offers", "sites", _VIEWER, "list_offers"),
    _row("images", "GET /images", "images", _VIEWER, "list_images"),
    _row("build_image", "POST /images", "images", _ADMIN, body=("order",)),
    _row("remove_image", "DELETE /images/{name}", "images", _ADMIN, limits={"name": _NAME}),
    _list("deployments", "GET /deployments", "deployments"),
    _row(
        "release",
        "DELETE /deployments/{deployment_id}",
        "deployments",
        _OPERATOR,
        sent={"deployment_id": "name"},
    ),
    _list("leases", "GET /leases", "leases"),
    _row("lease", "GET /leases/{lease_id}", "leases", _VIEWER, "show_lease", limits={"lease_id": _NAME}),
    _row("stop_lease", "POST /leases/{lease_id}/stop", "leases", _OPERATOR, limits={"lease_id": _NAME}),
    _row("costs", "GET /costs", "leases", _VIEWER, "show_costs", limits={"month": _MONTH}),
    _row("has_bundle", "GET /bundles/{bundle}", "bundles", _VIEWER, limits={"bundle": _HASH}),
    _row(
        "put_bundle", "PUT /bundles/{bundle}", "bundles", _OPERATOR, body=("data",), limits={"bundle": _HASH}
    ),
    _list("artifacts", "GET /artifacts", "artifacts"),
    _row("artifact", "GET /artifacts/{artifact_id:path}", "artifacts", _VIEWER, "show_artifact"),
    _row("remove_artifact", "DELETE /artifacts/{artifact_id:path}", "artifacts", _OPERATOR),
    _row("version", "GET /versions/{artifact_id:path}", "artifacts", _VIEWER, "show_version"),
    _row("preview", "GET /previews/{artifact_id:path}", "artifacts", _VIEWER, limits={"rows": _MANY}),
    _row("diff", "GET /diffs", "artifacts", _VIEWER),
    _row("compare", "GET /comparisons/{name:path}", "artifacts", _VIEWER, sent={"versions": "version"}),
    _row(
        "backup",
        "POST /backup",
        "projects",
        _ADMIN,
        sent={"pipelines": "pipeline"},
        limits={"pipelines": ArgumentLimits(min_length=1)},
    ),
    _row("restore", "POST /restore", "projects", _ADMIN),
    _row("usage", "GET /usage", "housekeeping", _VIEWER),
    _row("clean", "POST /clean", "housekeeping", _ADMIN, limits={"days": ArgumentLimits(gt=0)}),
    _row("verify", "POST /verify", "artifacts", _VIEWER),
    _list("aliases", "GET /aliases", "aliases"),
    _row(
        "set_alias",
        "PUT /aliases/{alias.id:path}",
        "aliases",
        _OPERATOR,
        body=("alias",),
        sent={"alias.id": "alias_id"},
        limits={"expected": ArgumentLimits(ge=0)},
    ),
    _row("promote_alias", "POST /aliases/{alias_id:path}/promote", "aliases", _OPERATOR),
    _row("rollback_alias", "POST /aliases/{alias_id:path}/rollback", "aliases", _OPERATOR),
    _row("remove_alias", "DELETE /aliases/{alias_id:path}", "aliases", _OPERATOR),
    _list("schedules", "GET /schedules", "schedules"),
    _row(
        "schedule",
        "GET /schedules/{name:path}",
        "schedules",
        _VIEWER,
        "show_schedule",
        limits={"name": _NAME},
    ),
    _row(
        "pause_schedule", "POST /schedules/{name:path}/stop", "schedules", _OPERATOR, limits={"name": _NAME}
    ),
    _row(
        "start_schedule", "POST /schedules/{name:path}/start", "schedules", _OPERATOR, limits={"name": _NAME}
    ),
    _list("backfills", "GET /backfills", "backfills"),
    _row("backfill", "GET /backfills/{name}", "backfills", _VIEWER, "show_backfill"),
    _row("start_backfill", "POST /backfills", "backfills", _OPERATOR, body=("backfill", "chunks")),
    _row(
        "backfill_pipeline",
        "POST /pipelines/{backfill.name}/backfill",
        "backfills",
        _OPERATOR,
        body=("backfill", "values"),
    ),
    _row("stop_backfill", "POST /backfills/{name}/stop", "backfills", _OPERATOR),
    _list("projects", "GET /projects", "projects"),
    _row("configure_project", "PUT /projects/{project.name}", "projects", _ADMIN, body=("project",)),
    _row("remove_project", "DELETE /projects/{name}", "projects", _ADMIN),
    _list("services", "GET /services", "services"),
    _row("service", "GET /services/{name}", "services", _VIEWER, "show_service", limits={"name": _NAME}),
    _row(
        "start_service",
        "PUT /services/{name}",
        "services",
        _OPERATOR,
        body=("model", "replicas", "least_replicas", "rate", "resource", "port", "project", "settings"),
        limits={"name": _NAME},
    ),
    _row(
        "update_service",
        "PATCH /services/{name}",
        "services",
        _OPERATOR,
        body=(
            "model",
            "replicas",
            "least_replicas",
            "rate",
            "port",
            "settings",
            "canary",
            "weight_percent",
            "shadow",
            "shadow_percent",
            "expected",
        ),
        limits={"name": _NAME},
    ),
    _row("promote_service", "POST /services/{name}/promote", "services", _OPERATOR, limits={"name": _NAME}),
    _row(
        "plan_service",
        "POST /service-plans",
        "services",
        _OPERATOR,
        body=("model", "rate", "replicas", "least_replicas", "pods", "resource", "name", "again", "trust"),
    ),
    _row("rollback_service", "POST /services/{name}/rollback", "services", _OPERATOR, limits={"name": _NAME}),
    _row(
        "add_service_key", "POST /services/{name}/keys/{key}", "services", _OPERATOR, limits={"name": _NAME}
    ),
    _row(
        "remove_service_key",
        "DELETE /services/{name}/keys/{key}",
        "services",
        _OPERATOR,
        limits={"name": _NAME},
    ),
    _row("stop_service", "POST /services/{name}/stop", "services", _OPERATOR, limits={"name": _NAME}),
    _row("remove_service", "DELETE /services/{name}", "services", _OPERATOR, limits={"name": _NAME}),
    _list("secrets", "GET /secrets", "secrets"),
    _row("secret", "GET /secrets/{name}", "secrets", _VIEWER, "show_secret"),
    _row("add_secret", "PUT /secrets/{name}", "secrets", _ADMIN, body=("value",)),
    _row("remove_secret", "DELETE /secrets/{name}", "secrets", _ADMIN),
    _row("rotate_secret_key", "POST /secret-key", "secrets", _ADMIN),
    _row("advise", "GET /advice/{name:path}", "advice", _VIEWER, limits={"name": _NAME}),
    _row(
        "probe",
        "POST /probes/{name:path}",
        "advice",
        _OPERATOR,
        limits={"name": _NAME, "workers": ArgumentLimits(ge=1, le=1024), "share": ArgumentLimits(gt=0, le=1)},
        starts_run=True,
    ),
    _list("alterations", "GET /alterations", "sinks"),
    _row("alter_sink", "POST /alterations/{name:path}", "sinks", _OPERATOR, body=("change",)),
    _list("load_tasks", "GET /tasks", "sinks"),
)

USE_CASES: Mapping[str, UseCase] = {row.name: row for row in _ROWS}
"""The rows of the table of use cases by name, in the order of the routes."""


def use_case(name: str) -> UseCase:
    """Return the row of the table for the use case with this name. Raises InputError."""
    try:
        return USE_CASES[name]
    except KeyError:
        raise InputError(f"unknown use case {name!r}") from None
