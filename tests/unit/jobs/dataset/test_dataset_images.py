"""Images as features: `pixels` in SQL, and arrays as columns."""

from collections.abc import Mapping
from datetime import datetime
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.dataset import DatasetSpec, Label
from gridmill.errors import DataError, InputError
from gridmill.jobs.dataset.images import grey
from gridmill.jobs.dataset.prepare import spread

PGM = b"P5\n2 2\n16\n\x00\x04\x08\x10"
NOON = datetime(2026, 1, 1, 12)


@pytest.fixture
def case(tmp_path: Path) -> DatasetCase:
    return DatasetCase(tmp_path)


def give(case: DatasetCase, files: Mapping[str, bytes | None]) -> None:
    case.give(
        "images",
        {
            "path": list(files),
            "modified": [NOON] * len(files),
            "bytes": pa.array(files.values(), pa.binary()),
        },
    )


def spec(sql: str, **more) -> DatasetSpec:
    return DatasetSpec(sql=sql, tables=("images",), time="modified", entity=("path",), **more)


def encoded(image: Image.Image, kind: str) -> bytes:
    written = BytesIO()
    image.save(written, kind)
    return written.getvalue()


def test_an_image_becomes_a_column_for_each_pixel(case: DatasetCase):
    give(case, {"a": PGM})
    made = case.make(spec("select path, modified, pixels(bytes, 2, 2)::float[4] as pixel from images"))
    assert made.details["features"] == ["pixel_1", "pixel_2", "pixel_3", "pixel_4"]
    (row,) = case.table(made).to_pylist()
    values = [row[f"pixel_{number}"] for number in range(1, 5)]
    assert values == pytest.approx([0, 0.25, 0.5, 1], abs=0.004)


def test_what_is_no_image_is_left_out_and_counted(case: DatasetCase):
    give(case, {"good": PGM, "missing": None, "text": b"no image", "short": PGM[:-1], "empty": b""})
    sql = "select path, modified, pixels(bytes, 2, 2)::float[4] as pixel from images"
    made = case.make(spec(sql, required=("pixel_1",)))
    assert case.table(made)["path"].to_pylist() == ["good"]
    assert made.details["dropped"] == {"missing value": 4}


def test_sql_without_a_time_has_its_arrays_as_columns_too(case: DatasetCase):
    case.give("images", {"a": [2.0, 1.0], "kind": ["x", "y"]})
    sql = "select kind, [a, a * 10]::double[2] as both from images order by a"
    declared = DatasetSpec(sql=sql, tables=("images",), label=Label(column="kind", name="is"))
    assert case.rows(declared) == [
        {"is": "y", "both_1": 1.0, "both_2": 10.0},
        {"is": "x", "both_1": 2.0, "both_2": 20.0},
    ]


def test_a_size_that_is_none_is_told(case: DatasetCase):
    give(case, {"a": PGM})
    with pytest.raises(DataError, match="0 x 2 is not a valid image size"):
        case.make(spec("select path, modified, pixels(bytes, 0, 2)::float[4] as pixel from images"))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF"])
def test_every_common_kind_of_file_gives_the_same(kind: str):
    image = Image.fromarray(np.array([[0, 64], [128, 255]], np.uint8))
    assert grey(encoded(image, kind), 2, 2) == pytest.approx(np.array([0, 64, 128, 255]) / 255)


def test_a_smaller_image_has_the_means_and_colours_their_lightness():
    columns = np.zeros((4, 4), np.uint8)
    columns[:, 2:] = [100, 200]
    small = grey(encoded(Image.fromarray(columns), "PNG"), 2, 1)
    assert small == pytest.approx(np.array([0, 150]) / 255)
    white = grey(encoded(Image.new("RGBA", (1, 1), (255, 255, 255, 255)), "PNG"), 1, 1)
    assert white == pytest.approx([1.0])


def test_sixteen_bits_are_not_cut_to_eight():
    deep = Image.fromarray(np.array([[0, 32768, 65535]], np.uint16))
    assert grey(encoded(deep, "PNG"), 3, 1) == pytest.approx([0, 0.5, 1], abs=1e-4)
    assert grey(b"P5\n2 1\n4095\n\x00\x00\x0f\xff", 2, 1) == pytest.approx([0, 1])


def test_arrays_that_would_hide_a_column_or_be_too_many_are_refused():
    with pytest.raises(InputError, match="two columns 'A_1'"):
        spread("select", {"a": "FLOAT[2]", "A_1": "BIGINT"})
    with pytest.raises(InputError, match="5,001 columns"):
        spread("select", {"a": "FLOAT[5000]", "b": "BIGINT"})


def test_lists_and_sql_without_arrays_stay_as_they_are():
    types = {"a": "FLOAT[]", "b": "BIGINT", "c": "FLOAT[2][3]"}
    assert spread("select 1", types).sql == "select 1"


def test_bytes_are_handed_on_as_they_are(case: DatasetCase):
    give(case, {"a": b"\xff\x00"})
    assert case.table(case.make(spec("select path, modified, bytes from images")))["bytes"].to_pylist() == [
        b"\xff\x00"
    ]


def test_words_of_texts_become_columns(case: DatasetCase):
    case.give("texts", {"path": ["a", "b"], "text": ["One two two", "two one TWO"]})
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "sources.md").read_text()
    words = page.partition("list_transform(")[2].partition("from texts")[0]
    declared = DatasetSpec(sql=f"select path, list_transform({words} from texts", tables=("texts",))
    first, second = case.rows(declared)
    assert len(first) == 129
    assert sum(value for name, value in first.items() if name != "path") == 3
    assert {**first, "path": ""} == {**second, "path": ""}
