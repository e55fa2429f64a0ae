import json
import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.pod.python_environments import PipProgress, Requirements


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
from gridmill.pod.python_environments import EVENTS_FD, _run
os.dup2(1, EVENTS_FD)
_run([sys.executable, "-c", r"import os; os.write(1, b'caf\\xe9 is built\\n')"])
"""


def test_what_an_installer_prints_may_be_no_text():
    ended = subprocess.run([sys.executable, "-c", INSTALLER], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {"type": "log", "text": "caf\N{REPLACEMENT CHARACTER} is built\n"}


PIP = """\
Collecting rich (from -r requirements.txt (line 1))
  Using cached rich-15.0.0-py3-none-any.whl.metadata (18 kB)
Collecting numpy>=1 (from -r requirements.txt (line 2))
  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl.metadata (6.6 kB)
Collecting markdown-it-py>=2.2.0 (from rich->-r requirements.txt (line 1))
  Using cached markdown_it_py-4.0.0-py3-none-any.whl.metadata (7.3 kB)
Using cached rich-15.0.0-py3-none-any.whl (310 kB)
Downloading https://host/simple/numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl (16.9 MB)
Building wheels for collected packages: nothing
Processing ./local/own_package-1.0.tar.gz
Installing collected packages: numpy, markdown-it-py, rich
Successfully installed markdown-it-py-4.0.0 numpy-2.4.6 rich-15.0.0
"""


def test_how_far_pip_is_follows_from_what_it_prints():
    progress = PipProgress()
    assert [text for line in PIP.splitlines() if (text := progress.feed(line))] == [
        "pip install rich (0 of 1 package)",
        "pip install numpy (0 of 2 packages)",
        "pip install markdown-it-py (0 of 3 packages)",
        "pip install rich (1 of 3 packages)",
        "pip install numpy (2 of 3 packages)",
        "pip install own_package (3 of 3 packages)",
        "pip install, unpacking (0 of 3 packages)",
    ]
    assert progress.unpacking == 3


def test_lines_of_other_programs_are_no_progress():
    assert PipProgress().feed("Downloading nothing") == ""
    assert PipProgress().feed("") == ""
