"""The metrics of a service in several pods: the router asks all pods and adds up their answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.run import attempt_id_of
from gridmill.domain.serving import Upstream
from gridmill.errors import UnavailableError
from gridmill.ports.service_link import OpenedConnection
from gridmill.serving.metrics import Metrics
from gridmill.serving.pod_metrics import (
    MOST_ENDED,
    KeptCounters,
    PodMetrics,
    is_for_metrics,
    merged_text,
    parse,
    pod_name,
    with_pod,
)
from gridmill.serving.routing import ClientConnection, Replicas, Router

FIRST, SECOND = (attempt_id_of(f"service-rain-1/{job}", 1) for job in ("serve", "serve-2"))
Request = tuple[int, int, float]
requests = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from([200, 422]), st.sampled_from([0.0005, 0.02, 7.0, 60.0])),
    max_size=12,
)


def text_of(folder: Path, answered: Sequence[Request], *, waiting: float = 0.0) -> str:
    """The metrics of a pod with one replica that has answered these requests."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = Metrics(folder, 1)
    for version, status, seconds in answered:
        metrics.count(f"w/m@{version}", "predict", status, seconds)
    metrics.set_gauge("gridmill_requests_waiting", waiting)
    return metrics.text()


def counters(text: str) -> dict[str, float]:
    parsed = parse(text)
    return {key: value for key, value in parsed.values.items() if not key.startswith(GAUGES)}


GAUGES = ("gridmill_requests_waiting", "gridmill_pod_reachable")


@given(st.lists(requests, min_size=1, max_size=4))
def test_counters_and_histograms_are_those_of_one_pod_with_all_requests(tmp_path_factory, pods):
    folder = tmp_path_factory.mktemp("pods")
    answers = {f"r.serve-{n}.1": text_of(folder / f"p{n}", one) for n, one in enumerate(pods)}
    together = merged_text(KeptCounters(folder), dict(answers))
    alone = text_of(folder / "alone", [one for rows in pods for one in rows])
    assert counters(together) == pytest.approx(counters(alone))
    heads = [line for line in together.splitlines() if line.startswith("#")]
    assert len(heads) == len(set(heads))
    for line in alone.splitlines():
        assert not line.startswith("# TYPE") or line in together


steps = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans(), st.booleans()), min_size=1, max_size=25
)


@given(steps)
def test_no_counter_decreases_and_each_attempt_counts_once(tmp_path_factory, changes):
    """Pods answer requests, are replaced, and cannot be reached. The counters that a scrape has seen stay."""
    folder = tmp_path_factory.mktemp("pods")
    attempts, answered, seen = [0] * 4, {}, {}
    before = 0.0
    for pod, more, is_replaced, is_reachable in changes:
        attempts[pod] += is_replaced
        for number, attempt in enumerate(attempts):
            answered.setdefault(f"r.serve-{number}.{attempt}", 0)
        answered[f"r.serve-{pod}.{attempts[pod]}"] += more
        answers: dict[str, str | None] = {}
        for number, attempt in enumerate(attempts):
            name = f"r.serve-{number}.{attempt}"
            reached = is_reachable or number != pod
            if reached:
                seen[name] = answered[name]
            answers[name] = f"# TYPE x_total counter\nx_total {answered[name]}\n" if reached else None
        # another router process continues with the file
        found = parse(merged_text(KeptCounters(folder), answers)).values.get("x_total", 0.0)
        assert found >= before
        assert found == sum(seen.values())
        before = found
    assert len(KeptCounters(folder).by_attempt) <= MOST_ENDED + len(attempts) + 1


def test_gauges_have_the_label_of_their_pod_and_a_pod_without_an_answer_is_marked(tmp_path):
    text = text_of(tmp_path / "a", [(1, 200, 0.1)], waiting=3.0)
    kept = KeptCounters(tmp_path)
    merged_text(kept, {FIRST: text, SECOND: text})
    found = parse(merged_text(kept, {FIRST: text, SECOND: None})).values
    assert found['gridmill_requests_waiting{pod="serve",replica="1"}'] == 3.0
    assert 'gridmill_requests_waiting{pod="serve-2",replica="1"}' not in found
    assert found['gridmill_pod_reachable{pod="serve"}'] == 1.0
    assert found['gridmill_pod_reachable{pod="serve-2"}'] == 0.0
    assert found['gridmill_requests_total{version="w/m@1",kind="predict",status="200"}'] == 2.0


def test_names_and_labels():
    assert pod_name(SECOND) == "serve-2"
    assert pod_name("attempt") == "attempt"
    assert with_pod("x", "serve") == 'x{pod="serve"}'
    heads = (
        b"GET /metrics HTTP/1.1",
        b"GET /metrics?a=b HTTP/1.1",
        b"GET /metricsx",
        b"POST /predict",
        b"GE",
    )
    assert [is_for_metrics(one) for one in heads] == [True, True, False, False, None]


def test_a_file_that_cannot_be_read_counts_nothing(tmp_path):
    for content in ("{", "[]", '{"a": 1}'):
        (tmp_path / "metrics-pods.json").write_text(content)
        assert KeptCounters(tmp_path).total() == {}


class Pod:
    """A pod that answers requests for metrics if the key is right."""

    def __init__(self, lines: str) -> None:
        self.received = asyncio.Event()
        self.lines, self.heads, self.port, self.is_there = lines, [], 0, True

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        status, body = (
            (b"200 OK", self.lines.encode()) if b"key: right" in head else (b"401 Unauthorized", b"{}")
        )
        writer.write(
            b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(body), body)
        )
        await writer.drain()
        writer.close()

    async def open(self) -> OpenedConnection:
        if not self.is_there:
            raise UnavailableError("the node does not answer")
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", self.port)
        transport.pause_reading()
        return OpenedConnection(transport=transport)

    def close(self) -> None:
        """Nothing is held."""


@asynccontextmanager
async def routed(folder: Path, pods: Sequence[Pod]) -> AsyncIterator[int]:
    servers = [await asyncio.start_server(pod.answer, "127.0.0.1", 0) for pod in pods]
    for pod, server in zip(pods, servers, strict=True):
        pod.port = server.sockets[0].getsockname()[1]
    metrics = PodMetrics(folder)
    names = (FIRST, SECOND)[: len(pods)]
    metrics.follow([Upstream(link="tcp", attempt_id=name) for name in names], lambda upstreams: pods)
    router = Router(Replicas(pods[0]), hold_seconds=30.0, hold_bytes=2**20, metrics=metrics)
    front = await asyncio.get_running_loop().create_server(lambda: ClientConnection(router), "127.0.0.1", 0)
    try:
        yield front.sockets[0].getsockname()[1]
    finally:
        for one in (front, *servers):
            one.close()
        for client in tuple(router.clients):
            client.transport.abort()


async def asked(port: int, *parts: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.02)
    async with asyncio.timeout(20):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


def lines(value: int) -> str:
    return f"# HELP x_total Things.\n# TYPE x_total counter\nx_total {value}\n"


SCRAPE = (
    b"GET /metrics HTTP/1.1\r\nhost: a\r\nkey: right\r\naccept-encoding: gzip\r\n"
    b"connection: keep-alive\r\n\r\n"
)


@pytest.mark.parametrize("parts", [[SCRAPE], [SCRAPE[:7], SCRAPE[7:30], SCRAPE[30:]]])
def test_the_router_answers_with_the_metrics_of_all_pods(tmp_path, parts):
    async def test() -> None:
        pods = [Pod(lines(5)), Pod(lines(7))]
        async with routed(tmp_path, pods) as port:
            head, body = await asked(port, *parts)
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert parse(body.decode()).values["x_total"] == 12
            assert all(b"gzip" not in one and b"keep-alive" not in one for pod in pods for one in pod.heads)
            pods[1].is_there = False
            _, body = await asked(port, SCRAPE)
            assert parse(body.decode()).values["x_total"] == 12
            pods[0].is_there = False
            head, _ = await asked(port, SCRAPE)
            assert head.startswith(b"HTTP/1.1 503")

    asyncio.run(test())


def test_without_the_key_no_kept_counters_are_shown(tmp_path):
    async def test() -> None:
        (tmp_path / "metrics-pods.json").write_text(json.dumps({"old.serve.1": {"x_total": 9}}))
        async with routed(tmp_path, [Pod(lines(5)), Pod(lines(7))]) as port:
            head, body = await asked(port, SCRAPE.replace(b"right", b"wrong"))
            assert head.startswith(b"HTTP/1.1 401")
            assert body == b"{}"
            _, body = await asked(port, SCRAPE)
            assert parse(body.decode()).values["x_total"] == 21

    asyncio.run(test())


def test_the_metrics_of_the_only_pod_pass_through_until_there_were_several(tmp_path):
    async def test() -> None:
        async with routed(tmp_path / "one", [Pod(lines(5))]) as port:
            _, body = await asked(port, SCRAPE)
            assert body.decode() == lines(5)
        (tmp_path / "metrics-pods.json").write_text(json.dumps({"old.serve-3.1": {"x_total": 9}}))
        async with routed(tmp_path, [Pod(lines(5))]) as port:
            _, body = await asked(port, SCRAPE)
            assert parse(body.decode()).values["x_total"] == 14

    asyncio.run(test())


class OpenPod(Pod):
    """A pod that answers each request with its head, and keeps the connection open."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(head), head))
        writer.close()


@pytest.mark.parametrize("size", [1, 5, 12])
def test_the_first_bytes_of_a_later_request_of_a_connection_are_not_lost(tmp_path, size):
    asks = b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n"

    async def test() -> None:
        async with routed(tmp_path, [OpenPod(""), OpenPod("")]) as port, asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                for part in (asks[:size], asks[size:]):
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.05)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(len(asks)) == asks
            writer.close()

    asyncio.run(test())


class EndlessPod(Pod):
    """A pod that reads a request without an end."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2**21)
        self.received.set()
        writer.close()


@pytest.mark.parametrize("ending", [b"content-length: 50000000\r\n\r\n", b"x: "])
def test_a_request_for_metrics_without_an_end_is_not_kept_in_memory(tmp_path, ending):
    async def test() -> None:
        pods = [EndlessPod(""), EndlessPod("")]
        async with routed(tmp_path, pods) as port, asyncio.timeout(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: a\r\n" + ending)
            with suppress(ConnectionError):  # the pod ends it
                for _ in range(64):
                    writer.write(b"x" * 2**16)
                    await writer.drain()
                    await asyncio.sleep(0)
            await pods[0].received.wait()
            writer.transport.abort()

    asyncio.run(test())
