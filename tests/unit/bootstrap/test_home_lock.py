"""The lock of a home."""

import subprocess
import sys

from gridmill.bootstrap.home_lock import lock_home, release_home


def test_a_released_home_is_free_although_a_child_still_has_the_file_open(tmp_path):
    lock = lock_home(tmp_path)
    words = [sys.executable, "-c", "input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[lock.fileno()]):
        release_home(lock)
        release_home(lock_home(tmp_path))
