"""Answers `GET /metrics` at the router of a service in several pods with the metrics of all pods.

A router sends each request to one pod, whose metrics are those of this pod alone. Therefore the router sends
a request for metrics to all pods, and adds up the answers. Counters and histograms are sums. A gauge has the
label `pod`, because the sum of a lag or of an index means nothing.

The router keeps the last counters of each pod in a file. So the counters of a pod that has ended, or that
cannot be reached now, stay in the sums, and no counter decreases. Each attempt of a pod counts once.
"""

import asyncio
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httptools

from gridmill.domain.amounts import MIB
from gridmill.domain.frozen import dataclass
from gridmill.domain.serving import Upstream
from gridmill.errors import GridmillError
from gridmill.ports.service_link import ServiceLink
from gridmill.serving.metrics import escaped

PATH = b"GET /metrics"
_ENDS = (b" ", b"?")
FETCH_SECONDS = 3.0
"""The time in which a pod answers. The metrics of a pod that needs longer are those of its last answer."""
MOST_BYTES = 16 * MIB
"""The largest answer of a pod."""
MOST_ENDED = 16
"""The largest number of ended attempts whose counters are kept one by one."""
REACHABLE = "gridmill_pod_reachable"
_FILE = "metrics-pods.json"
_SUM = ""
_OWN_HEADERS = re.compile(rb"(?im)^(connection|accept-encoding|keep-alive):[^\r\n]*\r\n")
_NAME = re.compile(r"^[^{ ]+")
_HISTOGRAM_PARTS = re.compile(r"_(bucket|count|sum)$")


def is_for_metrics(head: bytes | bytearray) -> bool | None:
    """Return whether the first bytes of a request ask for metrics; None if they are too few to know."""
    begin = bytes(head[: len(PATH) + 1])
    if len(begin) > len(PATH):
        return begin.startswith(PATH) and begin.endswith(_ENDS)
    return None if PATH.startswith(begin) else False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMetrics:
    """Metrics in the text format of Prometheus: the lines with the help and type of each name, the names that
    are gauges, and the values by key (the name with its labels)."""

    heads: Mapping[str, Sequence[str]]
    gauges: frozenset[str]
    values: Mapping[str, float]


def parse(text: str) -> ParsedMetrics:
    """Return the metrics in a text. Lines that cannot be read are left out."""
    heads: dict[str, list[str]] = {}
    gauges: set[str] = set()
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            parts = line.split(" ", 3)
            if len(parts) == 4:
                heads.setdefault(parts[2], []).append(line)
                if parts[1:4:2] == ["TYPE", "gauge"]:
                    gauges.add(parts[2])
            continue
        key, _, value = line.rpartition(" ")
        with suppress(ValueError):
            values[key] = float(value)
    return ParsedMetrics(heads=heads, gauges=frozenset(gauges), values=values)


def name_of(key: str, names: Mapping[str, object]) -> str:
    """Return the name of the metric to which a key belongs; a histogram has several keys."""
    found = _NAME.match(key)
    name = found.group() if found is not None else key
    return name if name in names else _HISTOGRAM_PARTS.sub("", name)


def with_pod(key: str, pod: str) -> str:
    """Return a key with the label of its pod."""
    name, brace, labels = key.partition("{")
    mark = f'pod="{escaped(pod)}"'
    return f"{name}{{{mark},{labels}" if brace else f"{name}{{{mark}}}"


def pod_name(attempt_id: str) -> str:
    """Return the name of the pod in which an attempt RUN.JOB.K runs: that of its job, as `show service` has
    it."""
    parts = attempt_id.split(".")
    return parts[-2] if len(parts) > 2 else attempt_id


class KeptCounters:
    """The last counters of each attempt, in a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self.by_attempt: dict[str, dict[str, float]] = {}
        with suppress(OSError, ValueError, AttributeError):
            content = json.loads(self._path.read_bytes())
            self.by_attempt = {
                attempt: {str(key): float(value) for key, value in counters.items()}
                for attempt, counters in content.items()
            }

    def note(self, attempt_id: str, counters: Mapping[str, float]) -> None:
        """Record the counters of an attempt. The largest value of each counter counts."""
        known = self.by_attempt.pop(attempt_id, {})
        for key, value in counters.items():
            known[key] = max(value, known.get(key, value))
        self.by_attempt[attempt_id] = known  # the last one of the dict is the newest

    def save(self, present: Sequence[str]) -> None:
        """Write the file. The oldest attempts that are not present are added to one sum."""
        ended = [one for one in self.by_attempt if one not in present and one != _SUM]
        for attempt_id in ended[: max(0, len(ended) - MOST_ENDED)]:
            total = self.by_attempt.setdefault(_SUM, {})
            for key, value in self.by_attempt.pop(attempt_id).items():
                total[key] = total.get(key, 0.0) + value
        draft = self._path.with_name(f".{_FILE}.{os.getpid()}")
        with suppress(OSError):
            draft.write_text(json.dumps(self.by_attempt))
            draft.replace(self._path)

    def total(self) -> dict[str, float]:
        """Return the sums over all attempts."""
        total: dict[str, float] = defaultdict(float)
        for counters in self.by_attempt.values():
            for key, value in counters.items():
                total[key] += value
        return total


def merged_text(kept: KeptCounters, answers: Mapping[str, str | None]) -> str:
    """Return the metrics of all pods as one text. `answers` are the texts of the pods by their attempts, and
    None for a pod that cannot be reached. The counters are recorded in `kept`."""
    parsed = {attempt: parse(text) for attempt, text in answers.items() if text is not None}
    heads: dict[str, Sequence[str]] = {}
    gauges: dict[str, float] = {}
    for attempt_id, one in parsed.items():
        heads |= one.heads
        counters: dict[str, float] = {}
        for key, value in one.values.items():
            if name_of(key, one.heads) in one.gauges:
                gauges[with_pod(key, pod_name(attempt_id))] = value
            else:
                counters[key] = value
        kept.note(attempt_id, counters)
    kept.save(tuple(answers))
    heads[REACHABLE] = (
        f"# HELP {REACHABLE} Whether a pod has answered. If not, its counters are the last ones.",
        f"# TYPE {REACHABLE} gauge",
    )
    for attempt_id in answers:
        gauges[with_pod(REACHABLE, pod_name(attempt_id))] = float(attempt_id in parsed)
    return "".join(f"{line}\n" for line in _lines(heads, {**kept.total(), **gauges}))


def _lines(heads: Mapping[str, Sequence[str]], values: Mapping[str, float]) -> Iterator[str]:
    by_name: dict[str, list[str]] = {}
    for key in values:
        by_name.setdefault(name_of(key, heads), []).append(key)
    for name, lines in heads.items():
        yield from lines if name in by_name else ()
        yield from (f"{key} {values[key]:.17g}" for key in by_name.get(name, ()))


class PodMetrics:
    """Fetches the metrics of all pods of a service. `links` are the ways to the pods, by their attempts."""

    def __init__(self, folder: Path) -> None:
        self._kept = KeptCounters(folder)
        self._links: dict[str, ServiceLink] = {}
        self._turn = asyncio.Lock()

    def follow(
        self, upstreams: Sequence[Upstream], links_to: Callable[[Sequence[Upstream]], Sequence[ServiceLink]]
    ) -> None:
        """Use the ways to the pods at these upstreams. A service that has always had one pod needs none."""
        self.close()
        is_needed = len(upstreams) > 1 or bool(self._kept.by_attempt)
        links = links_to(upstreams) if is_needed else ()
        self._links = {upstream.attempt_id: link for upstream, link in zip(upstreams, links, strict=False)}

    @property
    def is_needed(self) -> bool:
        """Whether the metrics of one pod are not those of the service."""
        return bool(self._links)

    def close(self) -> None:
        """End the ways to the pods."""
        for link in self._links.values():
            link.close()

    async def answer(self, head: bytes) -> bytes | None:
        """Return the answer to a request for metrics with this head; None if no pod can be reached. If no pod
        gives its metrics, for example because the API key is wrong, the answer is that of a pod."""
        asked = _OWN_HEADERS.sub(b"", head).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
        async with self._turn:  # at most one connection to each pod
            links = dict(self._links)
            found = await asyncio.gather(*(_fetch(link, asked) for link in links.values()))
            answers = dict(zip(links, found, strict=True))
            texts = {one: _body_of_success(answer) for one, answer in answers.items()}
            if all(text is None for text in texts.values()):
                return next((one for one in found if one), None)
            body = merged_text(self._kept, texts).encode()
        return (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
        )


class _Answer(asyncio.Protocol):
    """Collects an answer until its connection ends."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.content = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.content += data
        if len(self.content) > MOST_BYTES:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def _fetch(link: ServiceLink, asked: bytes) -> bytes:
    """Return the answer of a pod; empty if it does not answer in time."""
    with suppress(TimeoutError, OSError, GridmillError):
        async with asyncio.timeout(FETCH_SECONDS):
            opened = await link.open()
            answer = _Answer(opened.transport)
            try:
                opened.transport.set_protocol(answer)
                answer.data_received(opened.received)
                with suppress(RuntimeError):
                    opened.transport.resume_reading()
                opened.transport.write(asked)
                await answer.ended
            finally:
                opened.transport.abort()
        return bytes(answer.content)
    return b""


class _Body:
    def __init__(self) -> None:
        self.content, self.is_whole = bytearray(), False

    def on_body(self, data: bytes) -> None:
        self.content += data

    def on_message_complete(self) -> None:
        self.is_whole = True


def _body_of_success(answer: bytes) -> str | None:
    """Return the body of an answer with status 200; None for each other answer, and for a part of one."""
    body = _Body()
    parser = httptools.HttpResponseParser(body)
    with suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        parser.feed_data(answer)
    if not body.is_whole or parser.get_status_code() != 200:
        return None
    return body.content.decode("utf-8", "replace")
