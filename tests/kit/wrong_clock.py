"""A host whose clock is wrong: programs that begin there are told another time of day. What measures
durations is as ever, and Ray's own programs, which wait for times of day, are left alone. (Under libfaketime
Python cannot sleep.)"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gridmill.testing.hosts import Host

HOW_TO_GET_IT = "no C compiler here: apt-get install gcc libc6-dev"
_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off;

__attribute__((constructor)) static void begin(void) {
    char words[4096];
    int file = open("/proc/self/cmdline", O_RDONLY);
    ssize_t size = file < 0 ? 0 : read(file, words, sizeof words);
    if (file >= 0) close(file);
    if (size > 0 && !memmem(words, size, "ray", 3)) off = SECONDS;
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += off;
    return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


def can_be_made() -> bool:
    """Whether there is a C compiler."""
    return shutil.which("cc") is not None


@contextmanager
def wrong_clock(host: Host, folder: Path, seconds: int) -> Iterator[None]:
    """For the time of the block. `folder`, which the host sees, is where the library is made."""
    library = folder / f"wrong_clock{seconds}.so"
    words = ("cc", "-shared", "-fPIC", f"-DSECONDS={seconds}", "-x", "c", "-", "-o", str(library))
    subprocess.run(words, input=_SOURCE, text=True, check=True)
    host.run("sh", "-c", 'echo "$0" > /etc/ld.so.preload', str(library))
    try:
        yield
    finally:
        host.run("rm", "/etc/ld.so.preload")
