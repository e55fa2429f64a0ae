"""The dashboard for Grafana asks for metrics and labels that a replica shows at /metrics."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gridmill.serving.metrics import HELP, Metrics

DASHBOARD = Path(__file__).parents[3] / "docs" / "how-to" / "service-dashboard.json"
PANELS: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]


def queries() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def series() -> dict[str, str]:
    """Each name that may be at /metrics, with the type of the metric."""
    names = {}
    for name, (kind, _) in HELP.items():
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names.update({name + suffix: kind for suffix in suffixes})
    return names


def test_each_query_names_metrics_that_exist_and_counts_are_rates():
    names = series()
    for query, _ in queries():
        asked = re.findall(r"(\w+\()?(gridmill_\w+)\{instance=~", query)
        assert len(asked) == query.count("gridmill_") > 0
        for function, name in asked:
            assert (names[name] == "gauge") == (function not in ("rate(", "increase(")), query


def test_each_metric_is_on_the_dashboard():
    shown = " ".join(query for query, _ in queries())
    assert not [name for name in HELP if name not in shown]


def test_the_labels_of_requests_are_the_ones_that_a_replica_writes(tmp_path):
    metrics = Metrics(tmp_path, 0)
    metrics.count("w/m@1", "predict", 200, 0.01)
    labels = {
        name: set(re.findall(r'(\w+)="', text))
        for name, text in re.findall(r"^(\w+)\{(.*)\}", metrics.text(), re.M)
    }
    found = 0
    for query, legend in queries():
        for name in set(re.findall(r"gridmill_\w+", query)) & set(labels):
            by = re.findall(r"by \(([^)]*)\)", query)
            used = {label.strip() for part in by for label in part.split(",")}
            selected = {
                label
                for part in re.findall(name + r"\{([^}]*)\}", query)
                for label in re.findall(r"(\w+)[!=]", part)
            }
            shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
            assert used | selected - {"instance"} <= labels[name], query
            assert shown <= used, query
            found += 1
    assert found >= 6


def test_panels_have_their_own_places():
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS}
    assert len(places) == len({panel["id"] for panel in PANELS}) == len(PANELS)
