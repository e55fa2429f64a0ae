"""A file of sequences is predicted by workers: row by row the answer of the service. What is wrong with the
request or the answer's file is one error, and an interrupted request leaves nothing."""

import json
import random
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.e2e.conftest import Place
from tests.unit.jobs.training.test_imported import graph

pytestmark = pytest.mark.e2e
FLOAT = TensorProto.FLOAT


def weighted_sequences() -> bytes:
    """A model that weights each of the three rows of a sequence, so that their order matters."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["m"]),
        helper.make_node("ReduceSum", ["m", "axes"], ["y"], keepdims=0),
    ]
    weights = np.array([[[1, 2], [10, 20], [100, 200]]], np.float32)
    constants = [("w", weights), ("axes", np.array([1, 2], np.int64))]
    return graph(nodes, [("x", FLOAT, ["n", 3, 2])], [("y", FLOAT, ["n"])], constants)


def http_lines(url: str, body: bytes) -> list[dict]:
    request = urllib.request.Request(f"{url}/predict", body, {"content-type": "application/x-ndjson"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return [json.loads(line) for line in answer]


def leftovers(place: Place, folder: Path) -> list[str]:
    """What an interrupted request could leave: files beside the answer, versions and pipelines."""
    names = [path.name for path in folder.iterdir() if path.name.startswith((".answer", "gridmill-predict"))]
    for noun in ("artifacts", "pipelines"):
        names += [line for line in place.gridmill("list", noun).stdout.splitlines() if "predict-sums" in line]
    return names


def interrupt(place: Place, words: list[object], folder: Path) -> tuple[int, str]:
    """Run the command, and interrupt it when its run has begun. Return its exit code and its messages."""
    process = place.start(*words, TMPDIR=str(folder))
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("predict-"):
            process.send_signal(signal.SIGINT)
            break
    messages = process.stderr.read()
    return process.wait(), messages


@pytest.mark.long
def test_a_file_of_sequences_is_predicted_as_by_the_service(place: Place) -> None:
    net = place.write("", "net.onnx")
    net.write_bytes(weighted_sequences())
    signature = place.write("features: [a, b]\nlabel: y\n", "signature.yaml")
    samples = place.write('[[{"a": 1, "b": 2}, {"a": 3, "b": 4}]]', "samples.json")
    place.json("import", "model", "sums", net, "--signature", signature, "--samples", samples)
    url = place.json("start", "service", "sums", "--model", "sums/model")["url"]
    numbers = random.Random(7)
    sequences = [
        [{"a": numbers.randrange(9), "b": numbers.choice([1.5, None])} for _ in range(1 + number % 5)]
        for number in range(500)
    ]
    data = place.write("\n".join(map(json.dumps, sequences)) + "\n", "rows.jsonl")
    answer = data.with_name("answer.jsonl")
    done = place.gridmill("predict", "sums", "--data", data, "--output", answer)
    assert done.returncode == 0, done.stderr
    assert "500 of 500 rows" in done.stderr or "writing rows: 500 (100%)" in done.stderr
    assert [json.loads(line) for line in answer.read_text().splitlines()] == [
        {"prediction": one["prediction"]} for one in http_lines(url, data.read_bytes())
    ]

    before = answer.read_bytes()
    wrong = place.write(data.read_text() + '[{"a": "x", "b": 1}]\n', "wrong.jsonl")
    table = place.write("a,b\n1,2\n", "rows.csv")
    for given, message in {
        (wrong, answer, "--force"): "wrong.jsonl, line 501, field 'a': the value is a text, not a number or",
        (table, answer, "--force"): "the model reads sequences of up to 3 rows",
        (data, answer): "answer.jsonl exists",
        (data, answer.with_name("no") / "a.csv"): "no does not exist",
        (data, answer.parent / "x.txt"): "x.txt must end in .csv, .jsonl, .parquet",
    }.items():
        refused = place.gridmill("predict", "sums", "--data", given[0], "--output", *given[1:])
        assert refused.returncode == 2, refused.stderr
        assert message in refused.stderr
    assert answer.read_bytes() == before

    answer.unlink()
    long = place.write(data.read_text() * 200, "long.jsonl")  # so that it is interrupted before its end
    stopped = interrupt(place, ["predict", "sums", "--data", long, "--output", answer], answer.parent)
    assert stopped[0] == 130, stopped
    assert "stopped; no file was written" in stopped[1]
    assert leftovers(place, answer.parent) == []
    assert not answer.exists()
    place.json("stop", "service", "sums")
