"""The Grid over HTTP: the same calls, the same nouns, the same errors."""

from typing import Any, TypeVar
from urllib.parse import urlencode

from gridmill.codec import decode, encode
from gridmill.errors import GridmillError, InputError, UnavailableError, from_body
from gridmill.model.deployment import Deployment
from gridmill.model.event import Event
from gridmill.model.node import NodeView
from gridmill.model.pipeline import Pipeline
from gridmill.model.resource import Resource, Sizing
from gridmill.model.run import Run
from gridmill.model.site import Site
from gridmill.model.state import RunState
from gridmill.model.view import ControlView, DryRun, FarmView, RunView
from gridmill.sdk.connection import Answer, Connections, tcp_connections
from gridmill.sdk.http_advising import HttpAdvising
from gridmill.sdk.http_alterations import HttpAlterations
from gridmill.sdk.http_backfills import HttpBackfills
from gridmill.sdk.http_schedules import HttpSchedules
from gridmill.sdk.http_sharing import HttpSharing
from gridmill.sdk.http_versions import HttpVersions, quoted

T = TypeVar("T")


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
