"""A line with a round trip and losses, to a network namespace of its own: two TAP devices, and a process that
carries packets from one to the other (this kernel may lack netem). `python -m bench.line TAP TAP DELAY LOSS`.
"""

import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NEAR, FAR = "198.18.77.1", "198.18.77.2"  # of the addresses that benchmarks have (RFC 2544)
_TUNSETIFF, _TAP_WITHOUT_HEADER = 0x400454CA, 0x1002


@dataclass(frozen=True, slots=True)
class Line:
    """`inside` are the words before a command that is to run at the far end, whose address is FAR."""

    inside: tuple[str, ...]


def why_no_line() -> str:
    """What is missing; empty where a line can be made."""
    if os.geteuid() != 0:
        return "a line with losses needs root"
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"a line with losses needs {', '.join(missing)}: apt-get install util-linux iproute2"
    return "" if Path("/dev/net/tun").exists() else "a line with losses needs /dev/net/tun"


@contextmanager
def line(round_trip_seconds: float, loss: float) -> Iterator[Line]:
    """Half of the round trip each way; of each way's packets the share `loss` never arrives."""
    near, far = (f"gm{os.getpid() % 10**6}{end}" for end in "nf")
    words = [sys.executable, "-m", "bench.line", near, far, str(round_trip_seconds / 2), str(loss)]
    with ExitStack() as over:
        there = subprocess.Popen(("unshare", "--net", "sleep", "infinity"))
        over.callback(_end, there)
        relay = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent)
        over.callback(_end, relay)
        assert relay.stdout is not None
        relay.stdout.readline()
        inside = ("nsenter", "-t", str(there.pid), "-n", "--")
        while os.stat(f"/proc/{there.pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
            time.sleep(0.01)  # not unshared yet
        _run("ip", "link", "set", far, "netns", str(there.pid))
        for where, name, address in (((), near, NEAR), (inside, far, FAR)):
            _run(*where, "ip", "address", "add", f"{address}/30", "dev", name)
            _run(*where, "ip", "link", "set", name, "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        yield Line(inside)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait()


def _tap(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return descriptor


def carry(one: str, other: str, delay_seconds: float, loss: float) -> None:
    """Carry packets until killed."""
    taps = _tap(one), _tap(other)
    beyond = dict(zip(taps, reversed(taps), strict=True))
    due: list[tuple[float, int, int, bytes]] = []
    number = 0
    print("ready", flush=True)
    while True:
        patience = max(0.0, due[0][0] - time.monotonic()) if due else None
        for tap in select.select(taps, (), (), patience)[0]:
            with suppress(BlockingIOError):
                while packet := os.read(tap, 65536):
                    number += 1
                    if random.random() >= loss:
                        heapq.heappush(due, (time.monotonic() + delay_seconds, number, beyond[tap], packet))
        while due and due[0][0] <= time.monotonic():
            with suppress(OSError):  # the other end is not up yet
                os.write(due[0][2], due[0][3])
            heapq.heappop(due)


if __name__ == "__main__":
    carry(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
