"""The use cases of versions over HTTP.

The use cases of advice over HTTP.

The use cases of sinks over HTTP.

The use cases of backfills over HTTP.

The use cases of schedules over HTTP.

The use cases of projects over HTTP.

The Grid over HTTP: the same calls, the same nouns, the same errors.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

from gridmill.codec import decode, encode
from gridmill.domain.advice import Advice
from gridmill.domain.archive import Moved
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind
from gridmill.domain.backfill import Backfill, BackfillView, Chunk
from gridmill.domain.comparison import ModelComparison, Preview, VersionDiff
from gridmill.domain.deployment import Deployment
from gridmill.domain.manifest import Verified
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import Project, ProjectView
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Run
from gridmill.domain.sink_overrides import Alterations, Change
from gridmill.domain.sink_status import LoadTask
from gridmill.domain.site import NodeView, Site
from gridmill.domain.states import RunState
from gridmill.domain.usage import HISTORY_DAYS, Usage, Waste
from gridmill.domain.views import (
    ControlView,
    DryRun,
    FarmView,
    Removal,
    RunRemoval,
    RunView,
    ScheduleView,
    VersionView,
)
from gridmill.errors import GridmillError, InputError, UnavailableError, from_body
from gridmill.sdk.connection import Answer, Connections, tcp_connections

T = TypeVar("T")


class Sender(Protocol):
    """Sends requests to a control node."""

    def _get(self, path: str, kind: type[T], /, **asked: Any) -> T: ...  # noqa: ANN401  query values

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: dict[str, Any] | None = None,
        media: str = "application/json",
    ) -> bytes: ...


class HttpVersions:
    """Implements gridmill.ports.grid for a class that can `_get` and `_send`."""

    def artifacts(
        self: Sender, *, kind: ArtifactKind | None = None, name: str | None = None
    ) -> tuple[Artifact, ...]:
        """See Versions."""
        return self._get("/artifacts", tuple[Artifact, ...], kind=kind and kind.value, name=name)

    def artifact(self: Sender, artifact_id: str) -> Artifact:
        """See Versions."""
        return self._get(f"/artifacts/{quoted(artifact_id)}", Artifact)

    def version(self: Sender, artifact_id: str) -> VersionView:
        """See Versions."""
        return self._get(f"/versions/{quoted(artifact_id)}", VersionView)

    def preview(self: Sender, artifact_id: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """See Versions."""
        return self._get(f"/previews/{quoted(artifact_id)}", Preview, rows=rows, rejects=rejects)

    def diff(self: Sender, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """See Versions."""
        return self._get("/diffs", VersionDiff, before=before, after=after, key=list(key))

    def compare(self: Sender, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """See Versions."""
        return self._get(f"/comparisons/{quoted(name)}", ModelComparison, version=list(versions))

    def verify(self: Sender, reference: str = "") -> tuple[Verified, ...]:
        """See Versions."""
        return decode(self._send("POST", "/verify", params={"reference": reference}), tuple[Verified, ...])

    def remove_artifact(
        self: Sender, artifact_id: str, *, force: bool = False, dry_run: bool = False
    ) -> Removal:
        """See Versions."""
        asked = {"force": force, "dry_run": dry_run}
        return decode(self._send("DELETE", f"/artifacts/{quoted(artifact_id)}", params=asked), Removal)

    def backup(self: Sender, pipelines: tuple[str, ...], path: str) -> Moved:
        """See Projects."""
        asked = {"pipeline": list(pipelines), "path": path}
        return decode(self._send("POST", "/backup", params=asked), Moved)

    def restore(self: Sender, path: str) -> Moved:
        """See Projects."""
        return decode(self._send("POST", "/restore", params={"path": path}), Moved)

    def usage(self: Sender) -> tuple[Usage, ...]:
        """See Housekeeping."""
        return self._get("/usage", tuple[Usage, ...])

    def clean(self: Sender, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[Waste, ...]:
        """See Housekeeping."""
        asked = {"days": days, "dry_run": dry_run}
        return decode(self._send("POST", "/clean", params=asked), tuple[Waste, ...])

    def remove_run(self: Sender, run_id: str, *, dry_run: bool = False) -> RunRemoval:
        """See Housekeeping."""
        return decode(
            self._send("DELETE", f"/runs/{quoted(run_id)}", params={"dry_run": dry_run}), RunRemoval
        )

    def aliases(self: Sender, *, name: str | None = None) -> tuple[Alias, ...]:
        """See Versions."""
        return self._get("/aliases", tuple[Alias, ...], name=name)

    def set_alias(self: Sender, alias: Alias, *, expected: int | None = None) -> Alias:
        """See Versions."""
        path = f"/aliases/{quoted(alias.id)}"
        return decode(self._send("PUT", path, body=encode(alias), params={"expected": expected}), Alias)

    def remove_alias(self: Sender, alias_id: str) -> None:
        """See Versions."""
        self._send("DELETE", f"/aliases/{quoted(alias_id)}")


def quoted(name: str) -> str:
    """A name in a path; "." and ".." would be folded away by HTTP clients and are refused."""
    if name.strip("./") == "":
        raise InputError(f"{name!r} is no name")
    return quote(name, safe="/@") if "/" in name else quote(name, safe="@")


class HttpAdvising:
    """Implements gridmill.ports.grid for a class that can `_get` and `_send`."""

    def advise(self: Sender, name: str) -> Advice:
        """See Advising."""
        return self._get(f"/advice/{quoted(name)}", Advice)

    def probe(self: Sender, name: str, *, workers: int, share: float) -> RunView:
        """See Advising."""
        asked = {"workers": workers, "share": share}
        return decode(self._send("POST", f"/probes/{quoted(name)}", params=asked), RunView)


class HttpAlterations:
    """Implements gridmill.ports.grid for a class that can `_get` and `_send`."""

    def alterations(self: Sender, *, name: str | None = None) -> tuple[Alterations, ...]:
        """See Altering."""
        return self._get("/alterations", tuple[Alterations, ...], name=name)

    def alter_sink(self: Sender, name: str, change: Change) -> Alterations:
        """See Altering."""
        return decode(self._send("POST", f"/alterations/{quoted(name)}", body=encode(change)), Alterations)

    def load_tasks(self: Sender, *, name: str | None = None) -> tuple[LoadTask, ...]:
        """See Altering."""
        return self._get("/tasks", tuple[LoadTask, ...], name=name)


class HttpBackfills:
    """Implements gridmill.ports.grid for a class that can `_get` and `_send`."""

    def backfills(self: Sender) -> tuple[BackfillView, ...]:
        """See Backfills."""
        return self._get("/backfills", tuple[BackfillView, ...])

    def backfill(self: Sender, name: str) -> BackfillView:
        """See Backfills."""
        return self._get(f"/backfills/{quoted(name)}", BackfillView)

    def start_backfill(self: Sender, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """See Backfills."""
        body = encode({"backfill": backfill, "chunks": chunks})
        return decode(self._send("POST", "/backfills", body=body), BackfillView)

    def backfill_pipeline(self: Sender, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """See Backfills."""
        body = encode({"backfill": backfill, "values": values})
        path = f"/pipelines/{quoted(backfill.name)}/backfill"
        return decode(self._send("POST", path, body=body), BackfillView)

    def stop_backfill(self: Sender, name: str) -> BackfillView:
        """See Backfills."""
        return decode(self._send("POST", f"/backfills/{quoted(name)}/stop"), BackfillView)


class HttpSchedules:
    """Implements gridmill.ports.grid for a class that can `_get` and `_send`."""

    def schedules(self: Sender) -> tuple[ScheduleView, ...]:
        """See Schedules."""
        return self._get("/schedules", tuple[ScheduleView, ...])

    def schedule(self: Sender, name: str) -> ScheduleView:
        """See Schedules."""
        return self._get(f"/schedules/{quoted(name)}", ScheduleView)

    def pause_schedule(self: Sender, name: str) -> ScheduleView:
        """See Schedules."""
        return decode(self._send("POST", f"/schedules/{quoted(name)}/stop"), ScheduleView)

    def start_schedule(self: Sender, name: str) -> ScheduleView:
        """See Schedules."""
        return decode(self._send("POST", f"/schedules/{quoted(name)}/start"), ScheduleView)


class HttpSharing:
    """Implements gridmill.ports.grid for a class that can `_get` and `_send`."""

    def configure_project(self: Sender, project: Project) -> ProjectView:
        """See Sharing."""
        path = f"/projects/{quoted(project.name)}"
        return decode(self._send("PUT", path, body=encode(project)), ProjectView)

    def projects(self: Sender) -> tuple[ProjectView, ...]:
        """See Sharing."""
        return self._get("/projects", tuple[ProjectView, ...])

    def remove_project(self: Sender, name: str) -> None:
        """See Sharing."""
        self._send("DELETE", f"/projects/{quoted(name)}")


def over_tcp(url: str, token: str | None) -> "HttpGrid":
    """The control node at `http://HOST:PORT`. Raises InputError for what is no address."""
    return HttpGrid(tcp_connections(url, token))


class HttpGrid(HttpVersions, HttpSchedules, HttpBackfills, HttpAlterations, HttpAdvising, HttpSharing):
    """A Grid (gridmill.ports.grid) that a control node serves."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def control(self) -> ControlView:
        """See Grid."""
        return self._get("/control", ControlView)

    def apply(self, pipeline: Pipeline, *, adopt: bool = False) -> Pipeline:
        """See Grid."""
        return decode(
            self._send("POST", "/pipelines", body=encode(pipeline), params={"adopt": adopt}), Pipeline
        )

    def start_run(
        self, pipeline: Pipeline, *, force: bool = False, only: tuple[str, ...] = (), adopt: bool = False
    ) -> RunView:
        """See Grid."""
        asked = {"force": force, "only": list(only), "adopt": adopt}
        return decode(self._send("POST", "/runs", body=encode(pipeline), params=asked), RunView)

    def plan_run(self, pipeline: Pipeline) -> DryRun:
        """See Grid."""
        return decode(self._send("POST", "/plans", body=encode(pipeline)), DryRun)

    def runs(
        self, *, limit: int = 50, pipeline: str | None = None, states: tuple[RunState, ...] = ()
    ) -> tuple[Run, ...]:
        """See Grid."""
        return self._get("/runs", tuple[Run, ...], limit=limit, pipeline=pipeline, state=states)

    def run(self, run_id: str) -> RunView:
        """See Grid."""
        return self._get(f"/runs/{quoted(run_id)}", RunView)

    def resume(self, run_id: str) -> RunView:
        """See Grid."""
        return decode(self._send("POST", f"/runs/{quoted(run_id)}/resume"), RunView)

    def stop_run(self, run_id: str, *, job: str | None = None) -> RunView:
        """See Grid."""
        return decode(self._send("POST", f"/runs/{quoted(run_id)}/stop", params={"job": job}), RunView)

    def events(
        self,
        run_id: str,
        *,
        job: str | None = None,
        after: int = 0,
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[Event, ...]:
        """See Grid."""
        path = f"/runs/{quoted(run_id)}/events"
        asked = {"job": job, "after": after, "limit": limit, "wait_seconds": min(wait_seconds, 30.0)}
        return self._get(path, tuple[Event, ...], **asked)

    def configure_resource(self, resource: Resource) -> tuple[Resource, Sizing]:
        """See Grid."""
        answer = self._send("PUT", f"/resources/{quoted(resource.name)}", body=encode(resource))
        return decode(answer, tuple[Resource, Sizing])

    def resources(self) -> tuple[Resource, ...]:
        """See Grid."""
        return self._get("/resources", tuple[Resource, ...])

    def remove_resource(self, name: str) -> None:
        """See Grid."""
        self._send("DELETE", f"/resources/{quoted(name)}")

    def sites(self) -> tuple[Site, ...]:
        """See Grid."""
        return self._get("/sites", tuple[Site, ...])

    def nodes(self) -> tuple[NodeView, ...]:
        """See Grid."""
        return self._get("/nodes", tuple[NodeView, ...])

    def farms(self) -> tuple[FarmView, ...]:
        """See Grid."""
        return self._get("/farms", tuple[FarmView, ...])

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """See Grid."""
        path = f"/sites/{quoted(site.name)}"
        return decode(self._send("PUT", path, body=encode(site), params={"replace": replace}), Site)

    def remove_site(self, name: str) -> None:
        """See Grid."""
        self._send("DELETE", f"/sites/{quoted(name)}")

    def deployments(self) -> tuple[Deployment, ...]:
        """See Grid."""
        return self._get("/deployments", tuple[Deployment, ...])

    def release(self, deployment_id: str) -> None:
        """See Grid."""
        self._send("DELETE", f"/deployments/{quoted(deployment_id)}")

    def pipelines(self) -> tuple[Pipeline, ...]:
        """See Grid."""
        return self._get("/pipelines", tuple[Pipeline, ...])

    def pipeline(self, name: str) -> Pipeline:
        """See Grid."""
        return self._get(f"/pipelines/{quoted(name)}", Pipeline)

    def remove_pipeline(self, name: str) -> None:
        """See Grid."""
        self._send("DELETE", f"/pipelines/{quoted(name)}")

    def has_bundle(self, bundle: str) -> bool:
        """See Grid."""
        return self._get(f"/bundles/{quoted(bundle)}", dict[str, bool])["present"]

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """See Grid."""
        self._send("PUT", f"/bundles/{quoted(bundle)}", body=data, media="application/octet-stream")

    def report(self, run_id: str) -> str:
        """See Grid."""
        return self._send("GET", f"/runs/{quoted(run_id)}/report").decode()

    def shutdown(self, *, all: bool = False) -> None:
        """See Grid."""
        self._send("POST", "/control/shutdown", params={"all": all})

    def _get(self, path: str, kind: type[T], /, **asked: Any) -> T:  # noqa: ANN401  query values
        return decode(self._send("GET", path, params=asked), kind)

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: dict[str, Any] | None = None,
        media: str = "application/json",
    ) -> bytes:
        given = {key: _worded(value) for key, value in (params or {}).items() if value is not None}
        query = f"?{urlencode(given, doseq=True)}" if given else ""
        headers = {"Content-Type": media} if body is not None else {}
        answer = self._connections.request(method, f"/v1{path}{query}", body, headers)
        if answer.status >= 400:
            raise self._error(answer)
        return answer.body

    def _error(self, answer: Answer) -> GridmillError:
        try:
            return from_body(decode(answer.body, dict[str, object]))
        except InputError:
            message = f"{self._connections.where} answered HTTP {answer.status}, not as a control node does"
            return UnavailableError(message, hint="Check the address.")


def _worded(value: object) -> object:
    """A query value as JSON has it."""
    return str(value).lower() if isinstance(value, bool) else value
