"""Random histories of objects in a bucket and of files behind URLs, whose servers fail now and then."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from unittest import SkipTest
from urllib.parse import unquote
from uuid import uuid4

import obstore
from obstore.store import S3Store

from tests.kit.at_end import STACK
from tests.kit.faulty_proxy import FaultyProxy, faulty_proxy
from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store
from tests.oracles.file_cases import Trial
from tests.oracles.file_history import History
from tests.oracles.files import SourceFile

URLS = ("a", "b", "day-1")
"""Files by HTTP are named one by one."""
_PAUSE = 0.15
"""How likely a request fails; each failure costs a pause of .2 s."""


class Bucket:
    """Objects of a bucket, behind a proxy that fails. `files` are there now."""

    prefix = ""

    def __init__(self, proxy: FaultyProxy, name: str, random: Random) -> None:
        self.proxy, self.name, self.random = proxy, name, random
        self.prefix = f"s3://{name}/in/"
        self.there: dict[str, bytes] = {}
        make_bucket(f"http://{proxy.upstream}", name)
        self.store = S3Store(
            name,
            endpoint=f"http://{proxy.upstream}",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
            access_key_id="test",
            secret_access_key="test",
            region="us-east-1",
        )
        self.left = 3

    def show(self, files: Sequence[SourceFile]) -> None:
        now = {file.name: file.content for file in files}
        for name in self.there.keys() - now.keys():
            obstore.delete(self.store, f"in/{name}")
        for name, content in now.items():
            if self.there.get(name) != content:
                obstore.put(self.store, f"in/{name}", content)
        self.there = now

    def source(self, history: History) -> dict[str, Any]:
        return {"path": f"{self.prefix}*{history.style.suffix}", "endpoint": self.proxy.endpoint}

    def fault(self, method: str, path: str) -> str:
        if self.left and self.random.random() < _PAUSE:
            self.left -= 1
            return self.random.choice(["503", "cut" if "list-type" in path else "short"])
        return ""


class Site:
    """Files behind URLs. The server has ETags, or times of modification, or neither, and perhaps ranges."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.files: dict[str, SourceFile] = {}
        self.changed: dict[str, int] = {}
        self.clock = 0
        self.says = random.choice(["etag", "weak", "time", "nothing"])
        self.ranges = random.random() < 0.7
        self.left = 3
        self.prefix = ""

    def show(self, files: Sequence[SourceFile]) -> None:
        for file in files:
            before = self.files.get(file.name)
            if before is None or before.content != file.content:
                self.clock += 2
                self.changed[file.name] = self.clock
        self.files = {file.name: file for file in files}

    def source(self, history: History) -> dict[str, Any]:
        return {"path": tuple(f"{self.prefix}{stem}{history.style.suffix}" for stem in URLS)}

    def tag(self, file: SourceFile) -> dict[str, str]:
        """What the server says of a file as it is now."""
        hashed = sha256(file.content).hexdigest()[:12]
        second = self.changed[file.name]
        time = f"Sat, 01 Jan 2022 {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d} GMT"
        told = {
            "etag": {"ETag": f'"{hashed}"'},
            "weak": {"ETag": f'W/"{hashed}"'},
            "time": {"Last-Modified": time},
        }
        return told.get(self.says, {})

    def fails(self) -> bool:
        if self.left and self.random.random() < _PAUSE:
            self.left -= 1
            return True
        return False


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        file = site.files.get(unquote(self.path.removeprefix("/")))
        if file is None:
            return self.send_error(404)
        tag = site.tag(file)
        asked = {self.headers.get("If-None-Match"), self.headers.get("If-Modified-Since")} - {None}
        if asked & {*tag.values()}:
            self.send_response(304)
            return self.end_headers()
        if site.fails():
            if site.random.random() < 0.4:
                return self.send_error(site.random.choice([429, 500, 503]))
            return self._give(file, tag, cut=True)
        return self._give(file, tag, cut=False)

    def _give(self, file: SourceFile, tag: dict[str, str], *, cut: bool) -> None:
        start, ranged = 0, self.headers.get("Range")
        if ranged and self.site.ranges and self.headers.get("If-Range") in tag.values():
            start = int(ranged.removeprefix("bytes=").rstrip("-"))
        body = file.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(file.content) - 1}/{len(file.content)}")
        self.send_header("Content-Length", str(len(body)))
        for name, value in tag.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def serving(site: Site) -> Iterator[None]:
    """Until the block ends."""
    handler = type("Handler", (_Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.prefix = f"http://127.0.0.1:{server.server_port}/"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield
        server.shutdown()


def http_case(seed: int, folder: Path) -> None:
    """One history of files behind URLs."""
    random = Random(seed)
    site = Site(Random(seed))
    history = History(random, keeps_time=False, names=URLS, named=True)
    with serving(site):
        trial = Trial(folder, site, history, random)
        for _ in range(random.randint(4, 7)):
            trial.step()


def objects_case(seed: int, folder: Path) -> None:
    """One history of objects in a bucket. SkipTest where there is no server for it."""
    server = _server()
    random = Random(seed)
    with faulty_proxy(server) as proxy:
        bucket = Bucket(proxy, f"files-{seed}-{uuid4().hex[:8]}", Random(seed))
        history = History(random, keeps_time=False)
        trial = Trial(folder, bucket, history, random)
        proxy.fault = bucket.fault
        for _ in range(random.randint(4, 7)):
            trial.step()


@cache
def _server() -> str:
    """One for all cases of a process; it ends with it."""
    os.environ.update(KEYS)
    endpoint = STACK.enter_context(object_store())
    if endpoint is None:
        raise SkipTest(HOW_TO_GET_IT)
    return endpoint
