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
