"""Text files as other programs write them: byte order marks, UTF-16, line ends, quoted line ends."""

import codecs
import gzip
import json
import lzma
from pathlib import Path

import pytest
from tests.kit.sink_case import SinkCase

from gridmill.errors import DataError

ROWS = [{"a": "é", "n": 1}, {"a": "日本", "n": 2}]
CSV = "a,n\né,1\n日本,2\n"


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_utf_16_with_its_mark(case: SinkCase, mark: bytes, pack):
    encoding = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
    suffix = {bytes: "", gzip.compress: ".gz", lzma.compress: ".xz"}[pack]
    (case.folder / f"a.csv{suffix}").write_bytes(pack(mark + CSV.encode(encoding)))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    (case.folder / f"b.jsonl{suffix}").write_bytes(pack(mark + lines.encode(encoding)))
    case.load((f"a.csv{suffix}", f"b.jsonl{suffix}"))
    assert case.rows() == sorted(ROWS * 2, key=str)


def test_utf_16_over_several_blocks_and_small_files(case: SinkCase):
    case.write("a.csv", ("a,n\n" + "日本語,1\n" * 200_000).encode("utf-16"))
    for number in range(5):
        case.write(f"b{number}.csv", CSV.encode("utf-16" if number % 2 else "utf-8"))
    case.load()
    assert len(case.table()) == 200_010
    assert set(case.table()["a"].to_pylist()) == {"日本語", "é", "日本"}


def test_utf_16_that_is_cut_short(case: SinkCase):
    case.write("a.csv", CSV.encode("utf-16")[:-1])
    with pytest.raises(DataError, match="begins like UTF-16 text, but is not") as caught:
        case.load()
    assert caught.value.place == "a.csv"


def test_a_byte_order_mark_of_utf_8(case: SinkCase):
    case.write("a.csv", codecs.BOM_UTF8 + CSV.encode())
    case.load()
    assert case.rows() == ROWS


@pytest.mark.parametrize("count", [2, 20_000])
def test_lines_that_end_with_cr(case: SinkCase, count: int):
    case.write("a.csv", "a,n\r" + 'é,1\r"日\r\n本",2\r' * count)
    case.load()
    assert len(case.table()) == 2 * count
    assert set(case.table()["a"].to_pylist()) == {"é", "日\r\n本"}
    assert set(case.table()["n"].to_pylist()) == {1, 2}


def test_line_ends_in_quotes(case: SinkCase):
    case.write("a.csv", 'a,n\n"one\ntwo",1\n"three\r\nfour",2\n')
    case.load()
    assert case.table()["a"].to_pylist() == ["one\ntwo", "three\r\nfour"]


def test_another_encoding_is_refused_with_the_line_to_add(case: SinkCase):
    case.write("a.csv", "a,n\nx,1\nCafé au lait,2\n".encode("cp1252"))
    with pytest.raises(DataError, match="byte 0xe9 at position 4 of this line is not utf-8") as caught:
        case.load()
    assert caught.value.place == "a.csv:3"
    assert "Under `source`, write `encoding: cp1252` if the text is 'Café au lait" in caught.value.hint
    case.load(encoding="cp1252")
    assert case.table()["a"].to_pylist() == ["x", "Café au lait"]
