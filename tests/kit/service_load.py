"""A client of a service that runs on another host, and writes a line about each answer."""

import json
from pathlib import Path

CLIENT = """
import http.client, sys
port, body = int(sys.argv[1]), sys.argv[2].encode()
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
while True:
    try:
        connection.request("POST", "/predict", body)
        response = connection.getresponse()
        content = response.read()
        if response.status == 200:
            print(200, response.headers["x-model-version"], flush=True)
        else:
            print(response.status, content.decode(), flush=True)
    except Exception as error:
        connection.close()
        print("failure", repr(error), flush=True)
"""
"""A program that sends one request after the other on a connection that stays open, and prints the status and
the version of each answer, or the failure."""


def load_words(python: str, port: int, body: object) -> tuple[str, ...]:
    """The command of a client that sends this body to that port until it is killed."""
    return (python, "-c", CLIENT, str(port), json.dumps(body))


def answers(log: Path) -> list[tuple[str, str]]:
    """The status and the version of each answer so far."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [tuple(line.strip().split(" ", 1)) for line in lines if line.endswith("\n")]  # type: ignore[misc]
