"""A closed-loop HTTP client: each connection sends its next request when it has the answer to the last.

`python -m bench.serving_load PORT CONNECTIONS SECONDS PATH BODY` prints requests a second, and the median and
the 99th percentile in microseconds, as JSON.
"""

import asyncio
import json
import sys
import time
from functools import partial

import uvicorn


class _Client(asyncio.Protocol):
    def __init__(self, request: bytes, until: float, times: list[float], done: asyncio.Future[None]) -> None:
        self._request, self._until, self._times, self._done = request, until, times, done
        self._data = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        at = lower.index(b"content-length: ") + 16
        if len(body) < int(lower[at:].split(b"\r\n", 1)[0]):
            return
        now = time.perf_counter()
        self._times.append(now - self._sent)
        if not head.startswith(b"HTTP/1.1 200"):
            self._end(RuntimeError(self._data.decode()))
        elif now < self._until:
            self._data = b""
            self._send()
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or RuntimeError("the server closed the connection"))

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def _end(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None) if error is None else self._done.set_exception(error)
        self._transport.close()


def _same(client: _Client) -> _Client:
    return client


async def measure(port: int, connections: int, seconds: float, path: str, body: bytes) -> list[float]:
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    loop, times = asyncio.get_running_loop(), list[float]()
    begin = time.perf_counter()
    futures = [loop.create_future() for _ in range(connections)]
    for done in futures:
        client = _Client(request, begin + seconds, times, done)
        await loop.create_connection(partial(_same, client), "127.0.0.1", port)
    await asyncio.gather(*futures)
    duration = time.perf_counter() - begin
    times.sort()
    return [len(times) / duration, times[len(times) // 2] * 1e6, times[len(times) * 99 // 100] * 1e6]


def main() -> None:
    port, connections, seconds, path, body = sys.argv[1:]
    asked = measure(int(port), int(connections), float(seconds), path, body.encode())
    with asyncio.Runner(loop_factory=uvicorn.Config("", loop="auto").get_loop_factory()) as runner:
        print(json.dumps(runner.run(asked)))


if __name__ == "__main__":
    main()
