"""Bad input, as a user meets it: one clear error that names the place, the right exit code, no traceback."""

import pytest

from tests.e2e.conftest import Place, eventually

pytestmark = pytest.mark.e2e

GOOD = "city,time,value\n" + "".join(
    f"{city},2024-01-{1 + hour // 24:02d}T{hour % 24:02d}:00:00,{hour % 7}\n"
    for city in "ab"
    for hour in range(120)
)
SINK = "  rows: {sink: {source: data.csv, columns: {time: timestamp}}}\n"
DATASET = (
    "  features: {dataset: {basis: {table: rows, time: time, entity: [city]}, "
    "label: {column: LABEL, horizon: 6h}, split: {validation: 0.2, test: 0.2}}}\n"
)


def pipeline(*jobs: str) -> str:
    return "pipeline: bad\njobs:\n" + "".join(jobs)


CASES = {
    "broken YAML": (pipeline("  a: {command: [x\n"), {}, 2, ["pipeline.yaml:"]),
    "unknown field": (pipeline("  a: {comand: x}\n"), {}, 2, ["pipeline.yaml:3", "comand", "did you mean"]),
    "cycle": (
        pipeline("  a: {needs: [b], command: x}\n  b: {needs: [a], command: x}\n"),
        {},
        2,
        ["a -> b -> a"],
    ),
    "missing source": (pipeline(SINK), {"dat.csv": GOOD}, 1, ["data.csv", "dat.csv"]),
    "wrong type in YAML": (pipeline("  a: {command: x, retries: many}\n"), {}, 2, ["jobs.a.retries"]),
    "wrong type in data": (
        pipeline("  rows: {sink: {source: data.csv, columns: {value: integer}}}\n"),
        {"data.csv": GOOD.replace("a,2024-01-01T03:00:00,3", "a,2024-01-01T03:00:00,three")},
        1,
        ["data.csv", "value", "three"],
    ),
    "empty table": (pipeline(SINK), {"data.csv": "city,time,value\n"}, 1, ["data.csv", "no rows"]),
    "constant label": (
        pipeline(SINK, DATASET.replace("LABEL", "value")),
        {
            "data.csv": "\n".join(
                line.rpartition(",")[0] + ",5" if "2024" in line else line for line in GOOD.splitlines()
            )
        },
        1,
        ["label", "nothing to learn"],
    ),
    "missing label": (
        pipeline(SINK, DATASET.replace("LABEL", "valeu")),
        {"data.csv": GOOD},
        1,
        ["valeu", "value"],
    ),
    "labels all missing": (
        pipeline(SINK, DATASET.replace("LABEL", "value").replace("6h", "9999d")),
        {"data.csv": GOOD},
        1,
        ["label"],
    ),
    "duplicate columns": (
        pipeline(SINK),
        {"data.csv": "city,time,value,value\na,2024-01-01,1,2\n"},
        1,
        ["data.csv", "value", "appears 2 times"],
    ),
    "not UTF-8": (
        pipeline(SINK),
        {"data.csv": b"city,time,value\nM\xfcnchen,2024-01-01,1\n"},
        1,
        ["data.csv", "utf-8", "encoding"],
    ),
    "path leaving the project": (
        pipeline("  a: {command: {run: 'true', folder: ../../..}}\n"),
        {},
        1,
        [".."],
    ),
    "unknown resource": (
        pipeline("  a: {resource: nobody, command: x}\n"),
        {},
        2,
        ["nobody", "configure resource"],
    ),
    "a job larger than any site": (
        pipeline("  a: {memory: 900TiB, command: x}\n"),
        {},
        1,
        ["900 TiB", "largest"],
    ),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_bad_input_gets_one_clear_error(place: Place, case: str):
    text, files, code, words = CASES[case]
    file = place.write(text)
    for name, content in files.items():
        (file.parent / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = place.gridmill("run", file)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    for word in words:
        assert word in said, said
    assert "Traceback" not in said
    assert eventually(lambda: not place.leftovers())
