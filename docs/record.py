"""Records the terminal and the report of real runs for the documentation: `python docs/record.py`.

It runs two examples in new homes. The last screen of the first, in a terminal of 51 columns, becomes
docs/terminal.txt, from which docs/pictures.py draws. The top of the report of the second becomes
docs/img/report*.webp, for wide and narrow screens, light and dark. Chromium must be installed.
"""

import os
import pty
import re
import sys
from base64 import b64decode
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.kit.browser import Page, open_browser  # noqa: E402  it is found in the root of the repository

COLUMNS = 51
"""As many characters as a picture of 400 units has room for."""
HOME_OF_READER = "/home/you/.gridmill"
FOLDER_OF_READER, ZONE_OF_READER = "/home/you/gridmill", "Europe/Berlin"
SCREENS = {"": (1000, 1240), "-phone": (400, 800)}
"""Width and height of the pictures of a report, in CSS pixels, by the end of their names."""
_CURSOR = re.compile(r"\x1b\[(?:\?25[hl]|2K|1A)")


def run_in_terminal(home: str, *arguments: str) -> str:
    """Everything that the command writes to a terminal of COLUMNS columns."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        sized = {**os.environ, "GRIDMILL_HOME": home, "COLUMNS": str(COLUMNS), "LINES": "50"}
        os.execve(sys.executable, [sys.executable, "-m", "gridmill", *arguments], sized)
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of a terminal as an error
            break
        parts.append(part)
    os.waitpid(child, 0)
    return b"".join(parts).decode()


def last_screen(written: str) -> str:
    """The text that stays on the screen: whatever follows the last line that was erased."""
    end = written.replace("\r\n", "\n").rpartition("\x1b[2K")[2]
    lines = [line.rstrip() for line in _CURSOR.sub("", end).split("\n")]
    return "\n".join(lines).strip("\n") + "\n"


def record_terminal() -> None:
    """Write docs/terminal.txt."""
    with TemporaryDirectory(prefix="gm") as home:
        written = run_in_terminal(home, "run", "examples/shops/short.yaml")
    shown = last_screen(written).replace(home, HOME_OF_READER)
    (ROOT / "docs/terminal.txt").write_text(shown, "utf-8")


def record_report() -> None:
    """Write docs/img/report*.webp."""
    with TemporaryDirectory(prefix="gm") as home, open_browser() as page:
        run_in_terminal(home, "run", "examples/weather/pipeline.yaml")
        report = Path(home) / "reports/weather-1.html"
        report.write_text(report.read_text("utf-8").replace(str(ROOT), FOLDER_OF_READER), "utf-8")
        page.set_zone(ZONE_OF_READER)
        page._ask("Emulation.setScrollbarsHidden", hidden=True)
        for name, (width, height) in SCREENS.items():
            for ending, dark in (("", False), ("-dark", True)):
                page.open(report, width=width, dark=dark)
                picture = ROOT / f"docs/img/report{name}{ending}.webp"
                picture.write_bytes(top_of(page, width, height))


def top_of(page: Page, width: int, height: int) -> bytes:
    """The upper part of the page as WebP, larger than shown, for fine screens."""
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1.6}
    found = page._ask(
        "Page.captureScreenshot", format="webp", quality=80, clip=clip, captureBeyondViewport=True
    )
    return b64decode(found["data"])


if __name__ == "__main__":
    record_terminal()
    record_report()
