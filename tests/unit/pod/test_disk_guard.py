"""The guard of what attempts write, on real small file systems."""

import os
import time
from pathlib import Path

from tests.kit.small_disks import fill, small_disk

from gridmill.disk_space import FolderMeter, FolderUse, measure, space_of
from gridmill.domain.amounts import Amounts
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.states import AttemptState, Cause
from gridmill.pod.disk_guard import AttemptDisk, DiskLimits, PodDiskGuard

MIB = 2**20
EXIT_1 = AttemptOutcome(state=AttemptState.FAILED, cause=Cause.EXIT, message="exit code 1")


def guard(place: Path, **limits: int) -> PodDiskGuard:
    return PodDiskGuard(place, DiskLimits(**limits), None)


def begin(
    one: PodDiskGuard, place: Path, name: str = "r.j.1", table_uri: str = "", **job: object
) -> tuple[AttemptDisk, Path]:
    order = AttemptOrder(
        attempt_id=name,
        token="t",
        run_id="r",
        pipeline="p",
        job=Job(name="j", command=CommandSpec(run="true"), **job),
        given=Amounts(cpus=1.0),
        root=str(place),
        output_uri=f"files/p/j/{name}",
        table_uri=table_uri,
    )
    output = place / order.output_uri
    output.mkdir(parents=True)
    return one.begin(order, place / "attempts" / name, 0.0), output


def write(folder: Path, size_bytes: int, name: str = "file") -> None:
    (folder / name).write_bytes(os.urandom(size_bytes))


def test_the_reserve_follows_the_size_of_the_file_system() -> None:
    with small_disk(40 * MIB, inodes=1000) as place:
        space = space_of("home", place / "not" / "there")
        assert (space.reserve_bytes, space.reserve_files) == (2 * MIB, 10)
        assert not space.is_short
        fill(place, left_bytes=MIB)
        told = space_of("home", place).shortage
        assert told == f"the disk of the home ({place}) has 1 MiB free, less than its reserve of 2 MiB"
        assert not space_of("home", place, 0).is_short
    assert space_of("home", "/").reserve_bytes <= 2**30


def test_a_meter_counts_blocks_once_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", MIB)
    os.link(tmp_path / "a" / "file", tmp_path / "a" / "again")
    (tmp_path / "a" / "away").symlink_to("/usr")
    with (tmp_path / "a" / "sparse").open("wb") as file:
        file.truncate(100 * MIB)
    use = measure([tmp_path / "a", tmp_path / "missing"])
    assert MIB <= use.size_bytes < MIB + 64 * 1024
    assert use.files == 3


def test_a_meter_takes_a_few_entries_at_a_time(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / str(number)).touch()
    meter = FolderMeter([tmp_path], pause_seconds=5.0)
    assert [meter.step(0.0, 10) for _ in range(3)] == [False, False, True]
    assert meter.use == FolderUse(size_bytes=0, files=25)
    assert not meter.step(1.0, 10)
    (tmp_path / "more").touch()
    assert meter.step(6.0, 100)
    assert meter.use.files == 26


def test_an_attempt_above_its_limit_is_ended_with_the_option_that_raises_it(tmp_path: Path) -> None:
    one = guard(tmp_path, size_bytes=8 * MIB)
    disk, output = begin(one, tmp_path, disk_bytes=MIB)
    other, _ = begin(one, tmp_path, "r.j.2")
    write(output, 2 * MIB)
    assert one.look([disk, other], 1.0) == [disk]
    assert disk.ended_for is not None
    assert disk.ended_for.cause == Cause.DISK
    assert disk.ended_for.message == "wrote 2 MiB; its limit is 1 MiB"
    assert "Raise `disk` of the job (for example `disk: 2MiB`), or GRIDMILL_JOB_DISK" in disk.ended_for.hint


def test_an_attempt_with_too_many_files_is_ended(tmp_path: Path) -> None:
    one = guard(tmp_path)
    disk, output = begin(one, tmp_path, disk_files=10)
    for number in range(11):
        (output / str(number)).touch()
    assert one.look([disk], 1.0) == [disk]
    assert disk.ended_for is not None
    assert disk.ended_for.message == "made 11 files and folders; its limit is 10"
    assert "`disk_files: 20`" in disk.ended_for.hint


def test_nothing_is_counted_while_no_limit_is_set_and_the_disk_has_room(tmp_path: Path) -> None:
    one = guard(tmp_path)
    disk, output = begin(one, tmp_path)
    write(output, MIB)
    assert one.look([disk], 1.0) == []
    assert disk.meter.use is None


def test_the_attempt_that_has_written_most_is_ended_before_others_fail() -> None:
    with small_disk(40 * MIB) as place:
        one = guard(place)
        greedy, output = begin(one, place)
        neighbour, others = begin(one, place, "r.k.1")
        write(others, MIB)
        write(output, 30 * MIB)
        fill(place, left_bytes=MIB // 2)
        assert one.look([neighbour, greedy], 1.0) == [greedy]
        assert greedy.ended_for is not None
        assert greedy.ended_for.cause == Cause.DISK
        assert "this job wrote most: 30 MiB" in greedy.ended_for.message
        assert neighbour.shortage


def test_a_command_that_fails_beside_a_full_disk_is_tried_again_with_the_reason() -> None:
    with small_disk(40 * MIB) as place:
        one = guard(place)
        disk, output = begin(one, place)
        write(output, MIB)
        assert one.explained(disk, EXIT_1, 1.0) == EXIT_1
        fill(place, left_bytes=0)
        outcome = one.explained(disk, EXIT_1, 2.0)
        assert (outcome.state, outcome.cause) == (AttemptState.LOST, Cause.STORAGE)
        assert outcome.message.startswith("exit code 1; likely because the disk of the home")
        assert "less than its reserve of 2 MiB" in outcome.message


def test_a_command_that_filled_the_disk_itself_fails() -> None:
    with small_disk(40 * MIB) as place:
        one = guard(place)
        disk, output = begin(one, place)
        write(output, 39 * MIB)
        outcome = one.explained(disk, EXIT_1, 2.0)
        assert (outcome.state, outcome.cause) == (AttemptState.FAILED, Cause.DISK)
        assert "the job itself wrote 39 MiB" in outcome.message


def test_inodes_run_out_as_bytes_do() -> None:
    with small_disk(40 * MIB, inodes=1000) as place:
        one = guard(place)
        disk, output = begin(one, place)
        for number in range(987):
            (output / str(number)).touch()
        assert one.look([disk], 1.0) == []
        assert "inodes free, less than its reserve of 10" in disk.shortage
        for number in range(6):
            (output / f"more{number}").touch()
        assert one.look([disk], 2.0) == [disk]


def test_what_a_sink_adds_to_its_table_counts_and_what_was_there_does_not(tmp_path: Path) -> None:
    table = tmp_path / "sinks/p/j/table"
    table.mkdir(parents=True)
    write(table, 8 * MIB, "earlier.parquet")
    os.utime(table / "earlier.parquet")
    time.sleep(0.02)  # file systems note times in steps of some milliseconds
    one = guard(tmp_path)
    disk, output = begin(one, tmp_path, disk_bytes=4 * MIB, table_uri="sinks/p/j/table")
    write(output, 3 * MIB, "first.parquet")
    assert one.look([disk], 1.0) == []
    (output / "first.parquet").rename(table / "first.parquet")  # a commit
    assert one.look([disk], 3.0) == []
    write(output, 3 * MIB, "second.parquet")
    assert one.look([disk], 5.0) == [disk]
    assert disk.ended_for is not None
    assert disk.ended_for.message == "wrote 6 MiB; its limit is 4 MiB"


def test_a_file_that_is_moved_into_a_table_during_a_pass_counts_once(tmp_path: Path) -> None:
    output, table = tmp_path / "output", tmp_path / "table"
    output.mkdir()
    table.mkdir()
    write(output, MIB)
    meter = FolderMeter([output], shared=[table])
    assert not meter.step(0.0, 1)
    (output / "file").rename(table / "file")
    assert meter.step(0.0, 10)
    assert meter.use is not None
    assert meter.use.files == 1
