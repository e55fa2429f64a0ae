"""Debian's Chromium, driven by its own protocol over a pipe: no package of ours is needed for it.

`open_browser()` starts one. A `Page` has a width and a colour scheme, opens a file, runs scripts in it,
takes screenshots and prints. The protocol is JSON between zero bytes on descriptors 3 (to the browser) and 4
(from it).
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """The path of Chromium; None where it is not installed."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Page:
    """One page of a browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number, self._rest = 0, b""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank", session="")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True, session="")[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if used := self._session if session is None else session:
            message["sessionId"] = used
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True

    def open(self, page: Path | str, *, width: int = 1440, dark: bool = False, scripts: bool = True) -> None:
        """Show the file, or the URL, in a window of that width. Without `scripts` its own do not run."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media="", features=[scheme])
        self._ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._loaded = False
        self._ask("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not self._loaded:
            self._read()

    def set_zone(self, name: str) -> None:
        """Set the time zone of pages that are opened from now on."""
        self._ask("Emulation.setTimezoneOverride", timezoneId=name)

    def media(self, name: str, *, width: int) -> None:
        """Lay the page out as for `print`, on paper of that width."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=True
        )
        self._ask("Emulation.setEmulatedMedia", media=name)

    def run(self, script: str) -> Any:
        """The value of the expression, in the page; of a promise what it resolves to."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG file."""
        found = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def print_to(self, path: Path) -> None:
        """The page as a PDF file, A4."""
        found = self._ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        path.write_bytes(base64.b64decode(found["data"]))


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are none of those that the browser takes."""
    ends = os.pipe()
    higher = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return higher[0], higher[1]


@contextmanager
def open_browser() -> Iterator[Page]:
    """A page of a browser of its own, which ends with the block."""
    program = find_browser()
    assert program is not None
    to_child, to_browser = _pipe()
    from_browser, from_child = _pipe()

    def connect() -> None:
        os.dup2(to_child, 3)
        os.dup2(from_child, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *ARGUMENTS, f"--user-data-dir={profile}"],
            preexec_fn=connect,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        try:
            page = Page(to_browser, from_browser)
            yield page
            with suppress(RuntimeError, OSError):
                page._ask("Browser.close", session="")
        finally:
            os.close(to_browser)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(from_browser)
