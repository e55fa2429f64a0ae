import pytest

from gridmill.model.artifact import Artifact, ArtifactKind, Output
from gridmill.model.loaded import lag_of, position_of


def version(**details: object) -> Artifact:
    output = Output(kind=ArtifactKind.SINK, uri="sinks/p/s/table", details=details)
    return Artifact(id="p/s@1", name="p/s", number=1, output=output, fingerprint="f")


@pytest.mark.parametrize(
    ("position", "shown", "lag"),
    [
        (
            {"kind": "time", "value": "2024-01-01T00:00:00+00:00", "included": True},
            "2024-01-01T00:00:00+00:00",
            60,
        ),
        ({"kind": "time", "value": "2024-01-01T00:00:00", "included": True}, "2024-01-01T00:00:00", 60),
        ({"kind": "number", "value": "7", "included": True}, "7", None),
        ({"id": "1704067200000-3"}, "1704067200000-3", 60),
        ({"etag": "abc", "content": "0123", "size_bytes": 3}, "2 files", None),
        ({"files": "eJwDAAAAAAE="}, "2 files", None),
        ({"files": "eJwDAAAAAAE=", "count": 44}, "44 files", None),
    ],
)
def test_positions_are_shown_as_people_know_them(position: object, shown: str, lag: float | None) -> None:
    found = version(positions={"0123456789abcdef": position}, files=2)
    assert position_of(found) == shown
    assert lag_of(found, 1_704_067_260.0) == lag
