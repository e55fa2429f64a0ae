"""A web server that says ETags and asks for the token in WEATHER_TOKEN: `serve.py FOLDER [PORT [PEM]]`.

With a certificate and its key in the file PEM it speaks HTTPS. It prints a line for each request.
"""

import hashlib
import os
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = os.environ["WEATHER_TOKEN"]
FOLDER = Path(sys.argv[1])


class Files(BaseHTTPRequestHandler):
    """The files of the folder, each with its hash as its ETag."""

    def do_GET(self) -> None:  # the name that http.server asks for
        path = FOLDER / Path(self.path).name
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.send_error(401)
        if not path.is_file():
            return self.send_error(404)
        body = path.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        return self.give(b"", tag, 304) if self.headers["If-None-Match"] == tag else self.give(body, tag, 200)

    def give(self, body: bytes, tag: str, status: int) -> None:
        self.send_response(status)
        self.send_header("ETag", tag)
        if body:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(port: int, certificate: str | None) -> None:
    """Serve until it is interrupted."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Files)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[2]) if len(sys.argv) > 2 else 8000, sys.argv[3] if len(sys.argv) > 3 else None)
