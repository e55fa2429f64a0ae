import json
import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.pod.environments import Requirements


def key(text, bundle=""):
    return Requirements(file=Path("/x/requirements.txt"), text=text, bundle=bundle).key


def test_the_same_text_is_the_same_environment():
    assert key("numpy==2.0\n", "one") == key("numpy==2.0\n", "two")
    assert key("numpy==2.0\n") != key("numpy==2.1\n")


@pytest.mark.parametrize(
    "text",
    [
        "-r more.txt",
        "-c limits.txt",
        "numpy\n-e .",
        "./lib",
        "lib/pkg.whl",
        "a @ file:///x",
        "--requirement=x",
    ],
)
def test_what_refers_to_other_files_depends_on_them(text):
    assert key(text, "one") != key(text, "two")


INSTALLER = """
import os, sys
from gridmill.pod.environments import EVENTS_FD, _run
os.dup2(1, EVENTS_FD)
_run([sys.executable, "-c", r"import os; os.write(1, b'caf\\xe9 is built\\n')"])
"""


def test_what_an_installer_prints_may_be_no_text():
    ended = subprocess.run([sys.executable, "-c", INSTALLER], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {"type": "log", "text": "caf\N{REPLACEMENT CHARACTER} is built\n"}
