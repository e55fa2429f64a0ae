"""Tells the search of the documentation site which pages answer questions: tasks first, decisions last."""

from mkdocs.structure.pages import Page

BOOSTS = {
    "how-to/": 4.0,
    "how-to/rent-a-machine": 1.0,
    "how-to/rent-from-lambda": 1.0,
    "how-to/rent-from-google": 1.0,
    "how-to/managed-batch": 1.0,
    "how-to/parallelcluster": 1.0,
    "quickstart": 4.0,
    "concepts": 2.0,
    "adr/": 0.05,
    "benchmarks": 0.05,
}
"""What the rank of a page is multiplied with, by the beginning of its file's name."""


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """MkDocs calls this for each page. Returns its text as it is."""
    for start, boost in BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    return markdown
