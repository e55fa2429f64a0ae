from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.column_statistics import column_lines


def version(details: dict[str, object]) -> Artifact:
    output = Output(kind=ArtifactKind.DATASET, uri="d", details=details)
    return Artifact(id="p/d@1", name="p/d", number=1, output=output, fingerprint="")


def test_columns_are_told_with_bars_quantiles_and_what_goes_with_the_label() -> None:
    facts = {"missing": 0.25, "quantiles": {"0.05": 1.0, "0.25": 1.5, "0.5": 2.0, "0.75": 3.0, "0.95": 4.0}}
    facts["histogram"] = {"from": 0, "to": 4, "counts": [0, 1, 2, 4]}
    text = {"missing": 0.0, "different": 2, "top": [["UA", 0.75], ["AA", 0.25]]}
    correlation = {"columns": ["x", "late"], "values": [[1.0, -0.5], [-0.5, 1.0]]}
    told = {"columns": {"x": facts, "carrier": text}, "correlation": correlation}
    x, carrier = column_lines(version({"statistics": told, "label": "late"}))
    assert (x.bars, x.values, x.missing, x.with_label) == ("▁▃▅█", (1.0, 2.0, 4.0), 0.25, -0.5)
    assert (carrier.bars, carrier.values, carrier.with_label) == ("", ("UA 75%", "AA 25%"), None)


def test_what_has_no_statistics_tells_none() -> None:
    assert column_lines(version({})) == []
