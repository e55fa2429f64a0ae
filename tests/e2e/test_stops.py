"""A run's specification and its events pass few functions on their way."""

from pathlib import Path

from bench.stops import count, follow, shown

MOST = {"specification": 20, "event": 12}


def test_a_specification_and_an_event_make_few_stops(tmp_path: Path):
    follow(tmp_path)
    for way, most in MOST.items():
        stops = count(way, tmp_path)
        assert {stop.process for stop in stops} == {"cli", "control", "pod"}, (
            "a part of the way is not followed"
        )
        assert len(stops) <= most, "\n".join(shown(way, stops))
