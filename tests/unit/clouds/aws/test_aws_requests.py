import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gridmill.clouds.aws.requests import AwsRequests
from gridmill.clouds.aws.settings import AwsSettings
from gridmill.errors import UnavailableError


@contextmanager
def _server(status: int, body: bytes) -> Iterator[str]:
    """A server that gives each request the same answer. Yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, b"<!DOCTYPE html><html><body>Blocked by the proxy<br></body></html>"),
        (403, b"<html><body>Blocked by the proxy</body></html>"),
        (502, b"<html><body>Bad gateway"),
        (200, b'<?xml version="1.0"?><RunInstancesResponse><instancesSet><item>'),
    ],
)
def test_an_answer_that_is_not_from_aws_is_no_answer(status, body):
    with _server(status, body) as url:
        requests = AwsRequests(AwsSettings(access_key_id="AKIA", access_key="key", endpoint_url=url))
        with pytest.raises(UnavailableError) as caught:
            requests.call_for_launch(
                "us-east-1", "RunInstances", ImageId="ami-1", MinCount=1, MaxCount=1, ClientToken="t"
            )
        requests.close()
    assert type(caught.value) is UnavailableError
    assert caught.value.place == "aws us-east-1 RunInstances"
