"""A server that speaks as much of MLflow's REST API as trainings use, and answers as MLflow 3.17 does.

That it does is tested beside a real one: tests/e2e/test_tracking.py runs the same against both.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

PREFIX = "/api/2.0/mlflow/"
Json = dict[str, Any]


class RefusedError(Exception):
    """A status and MLflow's code."""


class Books:
    """Experiments and runs; they outlive the server that answers for them."""

    def __init__(self, askers: int = 1) -> None:
        self.experiments: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.runs: dict[str, Json] = {}
        self.files: dict[str, bytes] = {}
        self.authorizations: list[str | None] = []
        self._first = threading.Barrier(askers)
        self._lock = threading.Lock()

    def answer(self, path: str, body: Mapping[str, Any]) -> Json:
        if path == "experiments/get-by-name" and body["experiment_name"] not in self.experiments:
            with suppress(threading.BrokenBarrierError):
                self._first.wait(60)  # so many ask before any is answered
                self._first.abort()
        with self._lock:
            found: Json = getattr(self, "_" + path.replace("/", "_").replace("-", "_"))(body)
            return found

    def _experiments_get_by_name(self, body: Mapping[str, Any]) -> Json:
        name = body["experiment_name"]
        if name not in self.experiments:
            raise RefusedError(
                404, "RESOURCE_DOES_NOT_EXIST", f"Could not find experiment with name '{name}'"
            )
        stage = "deleted" if name in self.deleted else "active"
        return {
            "experiment": {"experiment_id": self.experiments[name], "name": name, "lifecycle_stage": stage}
        }

    def _experiments_delete(self, body: Mapping[str, Any]) -> Json:
        self.deleted |= {name for name, number in self.experiments.items() if number == body["experiment_id"]}
        return {}

    def _experiments_restore(self, body: Mapping[str, Any]) -> Json:
        self.deleted -= {name for name, number in self.experiments.items() if number == body["experiment_id"]}
        return {}

    def _runs_log_inputs(self, body: Mapping[str, Any]) -> Json:
        if any(len(one["dataset"]["digest"]) > 36 for one in body["datasets"]):
            raise RefusedError(400, "INVALID_PARAMETER_VALUE", "Dataset digest exceeds the maximum length")
        inputs = self._run(body).setdefault("inputs", {"dataset_inputs": []})
        inputs["dataset_inputs"] += body["datasets"]
        return {}

    def _experiments_create(self, body: Mapping[str, Any]) -> Json:
        if body["name"] in self.experiments:
            raise RefusedError(400, "RESOURCE_ALREADY_EXISTS", f"Experiment '{body['name']}' already exists.")
        self.experiments[body["name"]] = str(len(self.experiments) + 1)
        return {"experiment_id": self.experiments[body["name"]]}

    def _runs_create(self, body: Mapping[str, Any]) -> Json:
        if any(self.experiments[name] == body["experiment_id"] for name in self.deleted):
            problem = f"The experiment {body['experiment_id']} must be in the 'active' state."
            raise RefusedError(400, "INVALID_PARAMETER_VALUE", problem)
        info = {"run_id": f"r{len(self.runs)}", "run_name": body["run_name"], "status": "RUNNING"}
        info["artifact_uri"] = f"mlflow-artifacts:/{body['experiment_id']}/{info['run_id']}/artifacts"
        data: Json = {"metrics": [], "params": [], "tags": list(body["tags"])}
        self.runs[info["run_id"]] = {"info": info | {"experiment_id": body["experiment_id"]}, "data": data}
        return {"run": self.runs[info["run_id"]]}

    def _runs_get(self, body: Mapping[str, Any]) -> Json:
        run = self._run(body)
        newest = {one["key"]: one for one in run["data"]["metrics"]}
        return {"run": run | {"data": run["data"] | {"metrics": list(newest.values())}}}

    def _runs_update(self, body: Mapping[str, Any]) -> Json:
        run = self._run(body)
        run["info"] |= {"status": body["status"], "end_time": body.get("end_time")}
        return {"run_info": run["info"]}

    def _runs_log_batch(self, body: Mapping[str, Any]) -> Json:
        data = self._run(body)["data"]
        if len(body.get("metrics", ())) > 1000 or len(body.get("params", ())) > 100:
            raise RefusedError(
                400, "INVALID_PARAMETER_VALUE", "A batch logging request can contain at most ..."
            )
        for kind in ("metrics", "params"):
            data[kind] += [one for one in body.get(kind, ()) if one not in data[kind]]
        return {}

    def _artifacts_list(self, body: Mapping[str, Any]) -> Json:
        info = self._run(body)["info"]
        folder = f"{info['experiment_id']}/{info['run_id']}/artifacts/"
        inside = [name.removeprefix(folder) for name in self.files if name.startswith(folder)]
        return {"files": [{"path": name} for name in sorted(inside) if name.startswith(body["path"])]}

    def _runs_search(self, body: Mapping[str, Any]) -> Json:
        return {
            "runs": [
                one for one in self.runs.values() if one["info"]["experiment_id"] in body["experiment_ids"]
            ]
        }

    def _run(self, body: Mapping[str, Any]) -> Json:
        if body["run_id"] not in self.runs:
            raise RefusedError(404, "RESOURCE_DOES_NOT_EXIST", f"Run with id={body['run_id']} not found")
        found: Json = self.runs[body["run_id"]]
        return found


@contextmanager
def mlflow_like(books: Books, port: int) -> Iterator[str]:
    """The server on that port of the loopback, until the end; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_PUT(self) -> None:
            path, content = self.path.partition("/artifacts/")[2], b""
            while size := int(self.rfile.readline(), 16):  # it comes in chunks
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            books.files[path] = content
            self._answer({})

        def _answer(self, body: Json) -> None:
            books.authorizations.append(self.headers["Authorization"])
            try:
                path = urlsplit(self.path).path.removeprefix(PREFIX)
                status, content = 200, {} if self.command == "PUT" else books.answer(path, body)
            except RefusedError as refused:
                status, code, message = refused.args
                content = {"error_code": code, "message": message}
            data = b"" if self.command == "PUT" else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    class OneTime(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True
        open: ClassVar[list[socket]] = []

        def get_request(self) -> tuple[socket, Any]:
            connection, address = super().get_request()
            self.open.append(connection)
            return connection, address

    with OneTime(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.shutdown()
            thread.join()
            for connection in OneTime.open:  # those that are kept alive would be answered still
                with suppress(OSError):
                    connection.shutdown(SHUT_RDWR)
