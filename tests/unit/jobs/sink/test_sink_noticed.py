"""A source file that is written again is noticed, also where its size and its time of modification stay."""

import os
import shutil
from pathlib import Path

import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.source import Format, Source
from gridmill.errors import UnavailableError
from gridmill.jobs.sink.files import check_unchanged, find_files
from gridmill.storage.root import describe_source


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def rewrite(path: Path, data: bytes) -> None:
    """Other bytes, as many, with the time of modification of before."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_written_again_with_the_same_size_and_time_is_another(case: SinkCase) -> None:
    path = case.write("a.csv", "x\n1\n")
    source = Source(path="*.csv")
    before = describe_source(source, str(case.folder))
    assert describe_source(source, str(case.folder)) == before
    rewrite(path, b"x\n2\n")
    after = describe_source(source, str(case.folder))
    assert after != before
    assert (after[0].size_bytes, after[0].mtime_ns) == (before[0].size_bytes, before[0].mtime_ns)


@pytest.mark.parametrize("form", [None, Format.FILES])
def test_the_load_takes_it(case: SinkCase, form: Format | None) -> None:
    path = case.write("a.csv", "x\n1\n")
    case.load(format=form)
    rewrite(path, b"x\n2\n")
    case.load(format=form)
    if form is None:
        assert case.rows() == [{"x": 2}]
    else:
        assert {row["text"] for row in case.rows()} == {"x\n1\n", "x\n2\n"}


def test_other_rights_alone_change_nothing(case: SinkCase) -> None:
    path = case.write("a.csv", "x\n1\n")
    first = case.load(format=Format.FILES)
    path.chmod(0o600)
    assert case.load(format=Format.FILES).table_version == first.table_version


def test_a_file_that_changes_while_it_is_loaded_is_told_by_its_content(case: SinkCase) -> None:
    path = case.write("a.csv", "x\n1\n")
    (file,) = find_files(Source(path="*.csv"), str(case.folder))
    path.chmod(0o600)
    check_unchanged(file)
    rewrite(path, b"x\n2\n")
    with pytest.raises(UnavailableError, match="changed while it was loaded"):
        check_unchanged(file)


def test_a_copy_that_keeps_its_time_is_another(case: SinkCase) -> None:
    path = case.write("a.csv", "x\n1\n")
    case.load()
    other = case.write("b.tmp", "x\n2\n")
    shutil.copystat(path, other)
    shutil.copy2(other, path)
    case.load()
    assert case.rows() == [{"x": 2}]
