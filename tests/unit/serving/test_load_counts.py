"""The numbers of requests that a replica reports to its parent process."""

from gridmill.serving.metrics import BOUNDS, Metrics


def test_only_requests_for_predictions_count_and_refused_ones_count_apart(tmp_path):
    metrics = Metrics(tmp_path, 0)
    for kind, status, seconds in [
        ("predict", 200, 0.0004),
        ("infer", 422, 0.02),
        ("predict", 429, 0.0001),
        ("infer", 504, 99.0),
        ("health", 200, 0.0001),
        ("metadata", 404, 0.0001),
    ]:
        metrics.count("w/m@1", kind, status, seconds)
    load = metrics.load()
    assert (load["answered"], load["refused"]) == (2, 2)
    assert load["durations"][0] == 2
    assert load["durations"][BOUNDS.index(0.025)] == 1
    assert load["durations"][-1] == 1
    assert sum(load["durations"]) == 4


def test_a_gauge_of_a_table_is_shown_with_its_labels(tmp_path):
    metrics = Metrics(tmp_path, 0)
    metrics.set_gauge("gridmill_view_table_version", 4, version="w/m@1", table="rows")
    assert 'gridmill_view_table_version{replica="0",version="w/m@1",table="rows"} 4' in metrics.text()
