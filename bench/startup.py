"""Start-up times and what idling costs."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import Result, median, save

GRIDMILL = str(Path(sys.executable).parent / "gridmill")
HEAVY = ("numpy", "torch", "duckdb", "sqlalchemy")


def quietly(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def import_milliseconds() -> float:
    """Only the import: Python's own start is measured beside it and taken off."""
    whole = median(lambda: quietly(sys.executable, "-c", "import gridmill"), runs=11)
    bare = median(lambda: quietly(sys.executable, "-c", "pass"), runs=11)
    return (whole - bare) * 1000


def loads_heavy() -> list[str]:
    code = f"import sys, gridmill; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return eval(done.stdout)


def idle_megabytes() -> float:
    """Resident memory (PSS) of `gridmill up` after it has settled."""
    with tempfile.TemporaryDirectory(prefix="gridmill-bench-") as folder:
        env = {**os.environ, "GRIDMILL_HOME": str(Path(folder) / "home")}
        command = [GRIDMILL, "up", "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until_up(env)
            time.sleep(2)
            return pss_bytes(process.pid) / 1e6
        finally:
            process.terminate()
            process.wait()


def wait_until_up(env: dict[str, str]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done = subprocess.run([GRIDMILL, "show", "control"], env=env, capture_output=True, check=False)
        if done.returncode == 0:
            return
    raise TimeoutError("gridmill up did not answer")


def pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    help_ms = median(lambda: quietly(GRIDMILL, "--help"), runs=11) * 1000
    import_ms, heavy, idle = import_milliseconds(), loads_heavy(), idle_megabytes()
    area = "start-up"
    save(
        "startup",
        [
            Result(
                area=area,
                what="gridmill --help",
                value=help_ms,
                unit="ms",
                target="<= 150 ms",
                met=help_ms <= 150,
            ),
            Result(
                area=area,
                what="import gridmill",
                value=import_ms,
                unit="ms",
                target="<= 60 ms",
                met=import_ms <= 60,
            ),
            Result(
                area=area,
                what="heavy libraries it loads",
                value=len(heavy),
                unit="",
                target="none",
                met=not heavy,
            ),
            Result(
                area=area,
                what="idle control node",
                value=idle,
                unit="MB",
                target="<= 120 MB",
                met=idle <= 120,
            ),
        ],
    )


if __name__ == "__main__":
    main()
