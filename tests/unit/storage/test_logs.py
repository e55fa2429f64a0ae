"""Log files against logs in memory: the same texts, lines and matches, whatever is killed or damaged."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gridmill.domain.frozen import replace
from gridmill.domain.job_log import LogEntry, LogLimits, LogRecord, content_of, lines_of, offset_of
from gridmill.errors import InputError, StorageError
from gridmill.ports.logs import LogQuery, LogStore
from gridmill.storage.log_index import files_of_run
from gridmill.storage.logs import LogFiles
from gridmill.testing.memory_logs import MemoryLogs

RUNS, JOBS = ("r-1", "r.x-2"), ("a", "b")
WORDS = ("needle", "x", "ä€😀", "\x0c\x0b\u2028\r", "\x1b[31m", "needleneedle", " ", "GLf1", "GLb1", "\ud800")


OPENED: list[LogFiles] = []


@pytest.fixture(autouse=True)
def no_open_files() -> Iterator[None]:
    """Closes the files of all logs in the end, also of those that stand for killed processes."""
    yield
    while OPENED:
        OPENED.pop().close()


def logs_in(folder: Path, limits: LogLimits | None = None, **more: Any) -> LogFiles:
    settings = {"chunk_bytes": 400, "segment_blocks": 3, "background": False, **more}
    OPENED.append(LogFiles(folder, limits, **settings))
    return OPENED[-1]


def record(number: int, text: str, run_id: str = "r-1", job: str = "a", **more: Any) -> LogRecord:
    made = LogRecord(
        run_id=run_id,
        job=job,
        attempt_id=f"{run_id}.{job}.1",
        number=number,
        time=1.5,
        stream="out",
        text=text,
    )
    return replace(made, **more)


def packed(made: LogRecord) -> LogRecord:
    """The record as it is when its pod has compressed the text."""
    data = content_of(made)
    return replace(made, text="", packed=zlib.compress(data, 1), packed_size=len(data)) if data else made


def pages(logs: LogStore, query: LogQuery, tail: int | None = None) -> Iterator[LogEntry]:
    page = logs.read(query) if tail is None else logs.tail(query, tail)
    while page:
        yield from page
        query = replace(query, after=offset_of(page[-1].id))
        page = logs.read(query)


def random_text(random: Random) -> str:
    text = "".join(random.choice((*WORDS, "\n", "\n")) for _ in range(random.randint(0, 12)))
    return text if random.random() < 0.3 else f"{text}\n"


class Case:
    """Log files that are written, killed and read at random, and logs in memory to which the same is told."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.folder = Random(seed), folder
        self.files, self.memory = logs_in(folder), MemoryLogs()
        self.number, self.newest = 0, list[LogRecord]()

    def batch(self) -> list[LogRecord]:
        records = list[LogRecord]()
        for _ in range(self.random.randint(1, 4)):
            self.number += 1
            run_id, job = self.random.choice(RUNS), self.random.choice(JOBS)
            rank, stream = self.random.choice(("", ".1")), self.random.choice(("out", "err", "pod"))
            made = record(
                self.number,
                random_text(self.random),
                run_id,
                job,
                attempt_id=f"{run_id}.{job}.1{rank}",
                stream=stream,
                mark=self.random.choice(("", "[1] ")),
            )
            records.append(packed(made) if self.random.random() < 0.4 else made)
        return records

    def write(self) -> None:
        self.newest = self.batch()
        again = [self.newest[0], *self.newest] if self.random.random() < 0.3 else self.newest
        self.memory.append(self.newest)
        self.files.append(again)

    def kill(self) -> None:
        """The process ends; part of what was written last may not have got into the file."""
        run_id = self.random.choice(RUNS)
        files = files_of_run(self.folder, run_id)
        chunks = sorted(self.folder.glob(f"{run_id}.*.raw"), key=lambda path: int(path.suffixes[-2][1:]))
        if chunks and self.random.random() < 0.7:
            data = chunks[-1].read_bytes()
            cut = self.random.randint(0, 40)
            chunks[-1].write_bytes(data[: max(0, len(data) - cut)])
        elif (segment := files.segment(0)).exists() and not files.segment(1).exists():
            with segment.open("ab") as file:
                file.write(b"GLb1" + self.random.randbytes(60))
        self.files = logs_in(self.folder)
        for again in self.memory.records[-30:]:  # more than what was not acknowledged
            self.files.append([again])

    def query(self) -> LogQuery:
        run_id = self.random.choice(RUNS)
        size = self.memory.sizes().get(run_id, 0)
        job = self.random.choice((None, *JOBS))
        attempt = self.random.choice((None, None, f"{run_id}.{job}.1", f"{run_id}.{job}.1.1"))
        after = self.random.choice((0, self.random.randint(0, size + 5)))
        until = self.random.choice((None, self.random.randint(0, size + 5)))
        return LogQuery(run_id=run_id, job=job, attempt=attempt, after=after, until=until)

    def compare(self) -> None:
        query = self.query()
        whole = replace(query, after=0, until=None)
        assert [*pages(self.files, whole)] == [*pages(self.memory, whole)]
        found, wanted = [*pages(self.files, query)], [*pages(self.memory, query)]
        assert "".join(one.text for one in found) in "".join(one.text for one in wanted) or "\ufffd" in str(
            wanted
        )
        assert all(query.after <= one.offset for one in found)
        count = self.random.randint(0, 9)
        lines = in_order(pages(self.files, whole, count))
        assert lines[-count:] == in_order(pages(self.memory, whole))[-count:] or not count
        self.compare_search(whole)

    def compare_search(self, query: LogQuery) -> None:
        needle = self.random.choice(("needle", "lene", "😀", "x", "ddd"))
        starts = line_starts(pages(self.memory, query))
        wanted = {at for at, (text, _) in starts.items() if needle in text}
        found = [one for one in pages(self.files, replace(query, search=needle)) if one.text]
        of_line = {offset: at for at, (_, offsets) in starts.items() for offset in offsets}
        assert {of_line[one.offset] for one in found} == wanted


def line_starts(entries: Iterator[LogEntry]) -> dict[int, tuple[str, set[int]]]:
    """Each line by where it begins: its text, and the offsets at which texts of it begin."""
    lines: dict[int, tuple[str, set[int]]] = {}
    open_at: dict[tuple[str, str], int] = {}
    for entry in entries:
        key, offset = (entry.attempt_id, entry.stream), entry.offset
        for piece in _pieces(entry.text):
            at = open_at.pop(key, offset)
            text, offsets = lines.get(at, ("", set()))
            lines[at] = text + piece, offsets | {offset}
            if not piece.endswith("\n"):
                open_at[key] = at
            offset += len(piece.encode())
    return lines


def in_order(entries: Iterator[LogEntry]) -> list[str]:
    """Lines in the order in which they end."""
    by_end = [(max(offsets), at, text) for at, (text, offsets) in line_starts(entries).items()]
    return [text for *_, text in sorted(by_end)]


def _pieces(text: str) -> list[str]:
    whole = text.split("\n")
    return [f"{line}\n" for line in whole[:-1]] + ([whole[-1]] if whole[-1] else [])


@pytest.mark.parametrize("seed", range(30))
def test_log_files_hold_what_was_appended_whatever_is_killed(seed: int, tmp_path: Path) -> None:
    try_at_random(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 400))
def test_more_log_files_hold_what_was_appended_whatever_is_killed(seed: int, tmp_path: Path) -> None:
    try_at_random(seed, tmp_path)


def try_at_random(seed: int, tmp_path: Path) -> None:
    case = Case(tmp_path / "logs", seed)
    for _ in range(60):
        act = case.random.choice((case.write, case.write, case.write, case.compare, case.kill))
        act()
        if case.random.random() < 0.05:
            case.files.finish(case.random.choice(RUNS))
    case.compare()


def text_of(logs: LogStore, job: str | None = None, run_id: str = "r-1") -> str:
    return "".join(one.text for one in pages(logs, LogQuery(run_id=run_id, job=job)))


def write_lines(logs: LogFiles, count: int, *, job: str = "a", run_id: str = "r-1", first: int = 1) -> None:
    for number in range(first, first + count):
        logs.append([record(number, f"{job} {number:05} {'-' * 40}\n", run_id, job)])


def test_a_chunk_that_was_sealed_when_the_process_was_killed_is_not_there_twice(tmp_path: Path) -> None:
    logs = logs_in(tmp_path)
    write_lines(logs, 3)
    chunk = files_of_run(tmp_path, "r-1").chunk(0)
    data = chunk.read_bytes()
    write_lines(logs, 9, first=4)
    wanted = text_of(logs)
    newest = files_of_run(tmp_path, "r-1").segment(0)
    assert newest.exists()
    assert not chunk.exists()
    for path in tmp_path.glob("r-1.*"):  # only the first block was written, and its chunk is there yet
        if path != newest:
            path.unlink()
    logs = logs_in(tmp_path)
    chunk.write_bytes(data)
    write_lines(logs, 12)
    assert text_of(logs) == wanted


def test_of_a_job_the_first_and_the_last_texts_are_kept_and_what_is_dropped_is_said(tmp_path: Path) -> None:
    logs = logs_in(tmp_path, LogLimits(job_bytes=8000))
    write_lines(logs, 1, job="b")
    write_lines(logs, 1000)
    entries = [*pages(logs, LogQuery(run_id="r-1", job="a"))]
    lines = [line.text for line in lines_of(entries) if not line.note]
    dropped = sum(one.dropped_bytes for one in entries)
    assert lines[0] == f"a 00001 {'-' * 40}"
    assert lines[-1] == f"a 01000 {'-' * 40}"
    assert dropped + sum(len(line) + 1 for line in lines) == 1000 * 49
    assert 6000 <= 49 * len(lines) <= 9500
    gap = next(number for number, one in enumerate(entries) if one.dropped_bytes)
    assert 3500 <= sum(len(one.text) for one in entries[:gap]) <= 4500, "half of it is the beginning"
    assert text_of(logs, "b") == f"b 00001 {'-' * 40}\n"
    told = next(pages(logs, LogQuery(run_id="r-1", job="a"), 5))
    assert (told.dropped_bytes, told.job, told.dropped) == (dropped, "a", "limit")
    assert sum(logs.sizes().values()) < 20_000, "what says how much was dropped is small"
    assert text_of(logs_in(tmp_path), "a") == text_of(logs, "a")


def test_if_all_logs_are_too_large_the_oldest_runs_lose_theirs(tmp_path: Path) -> None:
    logs = logs_in(tmp_path, LogLimits(home_bytes=20_000))
    for number in range(40):
        text = "".join(f"{Random(number * 100 + line).randbytes(30).hex()}\n" for line in range(40))
        logs.append([record(1, text, f"r-{number}")])
        logs.finish(f"r-{number}")
    assert sum(logs.sizes().values()) <= 21_000
    assert text_of(logs, run_id="r-0") == ""
    assert len(text_of(logs, run_id="r-39")) == 40 * 61
    gap = logs.read(LogQuery(run_id="r-0"))[0]
    assert (gap.dropped_bytes, gap.job) == (40 * 61, "a")


def test_a_large_log_of_a_run_that_writes_on_loses_its_middle(tmp_path: Path) -> None:
    logs = logs_in(tmp_path, LogLimits(home_bytes=40_000), chunk_bytes=2000)
    for number in range(400):
        logs.append([record(number + 1, f"{number} {Random(number).randbytes(100).hex()}\n")])
    text = text_of(logs)
    assert text.startswith("0 ")
    assert "\n399 " in text
    assert sum(logs.sizes().values()) <= 44_000


@pytest.mark.parametrize("seed", range(10))
def test_damage_costs_the_block_that_it_is_in_and_is_told(seed: int, tmp_path: Path) -> None:
    random, logs = Random(seed), logs_in(tmp_path)
    write_lines(logs, 200)
    whole = text_of(logs)
    path = random.choice([*tmp_path.glob("*.log")])
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    logs = logs_in(tmp_path)
    entries = [*pages(logs, LogQuery(run_id="r-1"))]
    left = "".join(one.text for one in entries)
    assert len(whole) - 49 * 12 <= len(left) < len(whole)
    assert set(left.splitlines()) < set(whole.splitlines())
    assert sum(one.dropped_bytes for one in entries) == len(whole) - len(left)
    assert {one.dropped for one in entries} == {"", "damaged"}
    logs.append([record(1000, "more\n")])
    assert text_of(logs_in(tmp_path)) == f"{left}more\n", "the log goes on"


def test_a_search_in_vain_says_how_far_it_looked(tmp_path: Path) -> None:
    logs = LogFiles(tmp_path, background=False)
    text = f"{'-' * 99}\n" * 1000
    for number in range(1, 6):
        logs.append([record(number, text)])
    [place] = logs.read(LogQuery(run_id="r-1", search="needle"))
    assert (place.id, place.text) == (str(5 * len(text)), "")
    assert logs.read(LogQuery(run_id="r-1", search="needle", after=5 * len(text))) == []
    logs.append([record(6, "nee"), record(7, "dle\n")])
    found = [*pages(logs, LogQuery(run_id="r-1", search="needle", after=5 * len(text) + 3))]
    assert [one.text for one in found] == ["dle\n"], "it began in a text that was searched before"


def test_logs_are_deleted_and_their_space_is_free(tmp_path: Path) -> None:
    logs = logs_in(tmp_path)
    for run_id in RUNS:
        write_lines(logs, 100, run_id=run_id)
    logs.delete(["r-1", "none"])
    assert [*logs.sizes()] == ["r.x-2"]
    assert not [*tmp_path.glob("r-1.*")]
    assert text_of(logs) == ""


def test_a_job_that_writes_nothing_makes_no_file_and_one_of_few_lines_makes_one(tmp_path: Path) -> None:
    logs = logs_in(tmp_path / "logs")
    logs.append([record(1, "")])
    logs.finish("r-1")
    assert [*logs.sizes()] == []
    logs.append([record(2, "one line\n")])
    logs.finish("r-1")
    assert len([*(tmp_path / "logs").iterdir()]) == 1


def test_many_runs_write_with_few_open_files(tmp_path: Path) -> None:
    logs = logs_in(tmp_path)
    before = len([*Path("/proc/self/fd").iterdir()])
    for number in range(300):
        logs.append([record(number + 1, f"{number}\n", f"r-{number % 150}")])
    assert len([*Path("/proc/self/fd").iterdir()]) - before <= 66
    assert text_of(logs, run_id="r-7") == "7\n157\n"
    logs.close()
    assert len([*Path("/proc/self/fd").iterdir()]) <= before


def test_a_log_that_cannot_be_written_is_an_error_and_names_that_cannot_be_runs_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a log cannot be opened"):
        logs_in(tmp_path / "file").append([record(1, "x\n")])
    for run_id in ("../x", ".x", "", "a/b"):
        with pytest.raises(InputError, match="not the id of a run"):
            logs_in(tmp_path).read(LogQuery(run_id=run_id))
    for after in ("x", "-1", "1" * 30, "\u0663"):
        with pytest.raises(InputError, match="not an offset"):
            offset_of(after)


def test_a_reader_beside_the_writer_sees_each_text_once(tmp_path: Path) -> None:
    """Chunks are sealed and segments are rewritten in a thread while another one reads."""
    writer = LogFiles(tmp_path, LogLimits(job_bytes=200_000), chunk_bytes=500, segment_blocks=2)
    reader, after, lines = LogFiles(tmp_path), 0, list[str]()
    for number in range(1, 1500):
        writer.append([record(number, f"{number}\n"), record(number + 5000, f"{'-' * 90}\n", job="b")])
        if number % 7 == 0:
            for one in pages(reader, LogQuery(run_id="r-1", job="a", after=after)):
                after, lines = offset_of(one.id), [*lines, *one.text.split()]
    writer.finish("r-1")
    lines += "".join(one.text for one in pages(reader, LogQuery(run_id="r-1", job="a", after=after))).split()
    assert lines == [str(number) for number in range(1, 1500)]
    writer.close()


def test_only_a_newline_ends_a_line_and_a_long_one_stays_one(tmp_path: Path) -> None:
    logs = logs_in(tmp_path)
    long = "x" * 100_000
    texts = ["a\x0cb\x0bc\u2028d\re\n", long, f"{long}\n", "\n", "rest"]
    for number, text in enumerate(texts):
        logs.append([record(number + 1, text), record(number + 1, "between\n", attempt_id="other")])
    lines = [line.text for line in lines_of(pages(logs, LogQuery(run_id="r-1")))]
    assert [line for line in lines if line != "between"] == ["a\x0cb\x0bc\u2028d\re", 2 * long, "", "rest"]


@pytest.mark.parametrize("search", ["", "fine"])
def test_a_compressed_text_that_cannot_be_read_is_told(search: str, tmp_path: Path) -> None:
    logs = logs_in(tmp_path)
    broken = replace(record(2, ""), text="", packed=b"no zlib", packed_size=20)
    logs.append([record(1, "fine 1\n"), broken, record(3, "fine 3\n")])
    entries = [*pages(logs, LogQuery(run_id="r-1", search=search))]
    assert [(one.text, one.dropped_bytes, one.dropped) for one in entries if one.text or one.dropped] == [
        ("fine 1\n", 0, ""),
        ("", 20, "damaged"),
        ("fine 3\n", 0, ""),
    ]
