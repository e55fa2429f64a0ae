"""The search of the documentation site finds the answers to common questions, in a real browser and without a
network. Requires Chromium.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest

from tests.kit.browser import Page, find_browser, open_browser
from tests.kit.markdown import ROOT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(find_browser() is None, reason="Chromium is not installed (apt-get install chromium)"),
]
FIRST = 3
QUESTIONS = {
    "how do I rerun one job": ("how-to/recover",),
    "why does my job wait": ("how-to/queueing", "how-to/resources"),
    "where is my model on disk": ("how-to/versions", "concepts", "how-to/results"),
    "how do I limit memory": ("how-to/resources", "how-to/shared-machine"),
    "free disk space": ("how-to/space",),
    "run jobs on Slurm": ("how-to/slurm",),
    "use a GPU in another network": ("how-to/use-a-farm", "how-to/gpu-farm"),
    "restore a deleted store": ("how-to/recover",),
    "read a table from PostgreSQL": ("how-to/sources",),
    "start a run every night": ("how-to/schedules",),
    "read the log of a job": ("how-to/logs",),
    "train my own PyTorch model": ("how-to/custom-models", "how-to/gangs"),
}
HITS = """new Promise(resolve => {
  const links = () => [...document.querySelectorAll('a.md-search-result__link')]
    .map(link => link.getAttribute('href')).filter(link => link.includes('.html'));
  const look = () => links().length ? setTimeout(() => resolve(links()), 200) : setTimeout(look, 50);
  look();
  setTimeout(() => resolve(links()), 20000)
})"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the site is served, on loopback."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with open_browser() as page:
        yield page


@pytest.mark.parametrize(("question", "answers"), QUESTIONS.items(), ids=QUESTIONS)
def test_a_question_is_answered_among_the_first_three_pages(page, address, question, answers):
    page.open(f"{address}/index.html?q={quote(question)}")
    hits = [hit.removeprefix(f"{address}/").partition(".html")[0] for hit in page.run(HITS)]
    names = list(dict.fromkeys(hits))
    assert set(names[:FIRST]) & set(answers), names[:10]


def test_the_site_loads_nothing_from_elsewhere(page, address):
    assert page.requests
    assert {url for url in page.requests if not url.startswith(("data:", "blob:", "about:"))} <= {
        url for url in page.requests if url.startswith(address)
    }
