"""The kill test of rented machines: seeded schedules of faults in simulated time, judged by what truly
happened at the provider."""

import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import inf
from typing import Any

from bench import skypilot_kill
from bench.measure import REPOSITORY, Result, at_most, row, save
from gridmill.domain.machine import SelfEnd
from gridmill.stores.memory import MemoryStore
from gridmill.testing.cloud.kill_test import (
    DEAD_MAN_SECONDS,
    JOB_SECONDS,
    KILLS,
    Disaster,
    Outcome,
    Schedule,
    every_step,
    random_schedules,
    tell,
)
from gridmill.testing.cloud.rental_oracle import RELEASE_SECONDS

LIFE_SECONDS, STEPS = 220.0, 25
"""The length of an undisturbed story of one machine, and the number of its commits and of its first calls in
which a kill is most likely to matter."""
MANY = 50
"""The number of machines that are rented at once in some of the schedules."""


def story(schedule: Schedule) -> Outcome:
    """One schedule on a store of its own."""
    return tell(schedule, MemoryStore())


def chosen(mode: SelfEnd, count: int, many: int) -> Iterator[Schedule]:
    """The schedules of a mode: kills at each step, random faults, and faults with many machines at once."""
    quiet = story(Schedule(mode=mode, disaster=Disaster.NONE, at=0))
    steps = list(every_step(mode, (0.0, 60.0, inf), quiet=quiet))
    random.Random(str(mode)).shuffle(steps)
    yield from steps[: count // 2]
    yield from random_schedules(
        mode, 1, count - min(len(steps), count // 2), seconds=LIFE_SECONDS, steps=STEPS
    )
    yield from random_schedules(mode, MANY, many, seconds=LIFE_SECONDS, steps=4 * STEPS)


def run(count: int = 250, many: int = 8, limit_seconds: float = inf) -> dict[str, Any]:
    """Tells `count` schedules with one machine, and `many` with several machines, for each mode, and returns
    the rows of the table. The schedules with several machines come first. No schedule starts after
    `limit_seconds`."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        plans = [list(chosen(mode, count, many)) for mode in SelfEnd]
        for plan in plans:
            random.Random(count).shuffle(plan)  # so that a run that is cut short has all kinds of faults
        mixed = [one for group in zip(*plans, strict=True) for one in group]
        mixed.sort(key=lambda one: -one.machines)
        outcomes = list(_told(pool, mixed, limit_seconds))
    told = {one.schedule.disaster for one in outcomes}
    faults = [one.value for one in Disaster if one in told and one not in KILLS]
    at_once = [one for one in outcomes if one.schedule.machines == MANY]
    return {
        "rows": [row for mode in SelfEnd for row in _rows(mode, outcomes)],
        "stories": len(outcomes),
        "stories at once": len(at_once),
        "machines at once": sum(one.verdict.machines for one in at_once),
        "faults": faults,
    }


def _told(
    pool: ProcessPoolExecutor, schedules: Sequence[Schedule], limit_seconds: float
) -> Iterator[Outcome]:
    """Yields the outcomes, and prints each problem with its schedule, so that the story can be repeated."""
    until = time.monotonic() + limit_seconds
    for at in range(0, len(schedules), 50):
        if time.monotonic() >= until:
            return
        for one in pool.map(story, schedules[at : at + 50]):
            for text in one.problems():
                print(f"{text}: {one.schedule}", flush=True)
            yield one
        print(f"{min(at + 50, len(schedules))} of {len(schedules)} schedules", flush=True)


def _rows(mode: SelfEnd, outcomes: Sequence[Outcome]) -> Iterator[dict[str, object]]:
    own = [one for one in outcomes if one.schedule.mode is mode]
    for ending, group in (
        ("restart", [one for one in own if one.schedule.restarts]),
        ("never", [one for one in own if not one.schedule.restarts]),
    ):
        if group:
            yield _row(mode, ending, group)


def _row(mode: SelfEnd, ending: str, group: Sequence[Outcome]) -> dict[str, object]:
    beyond = sorted(one.verdict.beyond_seconds for one in group)
    return {
        "mode": mode.value,
        "control node": ending,
        "schedules": len(group),
        "machines": sum(one.verdict.machines for one in group),
        "machines leaked": sum(len(one.verdict.leaked) for one in group),
        "other resources left": sum(len(one.verdict.resources) for one in group),
        "billed beyond need, median s": round(beyond[len(beyond) // 2], 1),
        "billed beyond need, most s": round(beyond[-1], 1),
        "jobs lost": sum(len(one.verdict.lost) for one in group) if ending == "restart" else None,
        "results accepted twice": sum(len(one.verdict.twice) for one in group),
        "schedules with a problem": sum(bool(one.problems()) for one in group),
    }


PAGE = REPOSITORY / "docs" / "reference" / "rented-machines.md"
HEAD = """\
# What is tested about rented machines

`python -m bench rentals` makes this page: it runs {stories} schedules in simulated time. In most of them, the
control node is killed (SIGKILL) before or after one of its commits or one of its calls to the provider. It
starts again at once, after 60 s, after one hour, or never. The others have one of these faults: {faults}.
Many schedules have two faults. {at_once} schedules have 50 jobs at the same time, each on a machine of its
own: they rented {machines:,} machines. The lists of the provider are up to 60 s late in half of the
schedules. The simulated provider counts which machines exist and what they cost, independently of the records
of Gridmill.

The rows are the ways in which a machine can end itself: by a shutdown (as at EC2), by a timer of the provider
(as at Google), by a call to the provider with a credential of its own, or not at all. Without a restart, a
machine ends itself 15 minutes after its last contact. In half of the schedules, the site has a bucket for
results: then a machine ends itself 15 minutes after its last job, and its result outlasts it. A third of the
random schedules have jobs of 30 minutes. Each schedule checks that no machine runs longer without contact.

| machine ends itself by | control node | schedules | machines | machines leaked | other resources left | \
billed beyond need, most | jobs lost | results accepted twice |
|---|---|---|---|---|---|---|---|---|
"""
TAIL = """
If the control node never starts again, keys and security groups remain, which cost nothing. `gridmill reap`
deletes them ([End forgotten machines](../how-to/reap.md)). A machine that cannot end itself is leaked then.
Such machines are rented only with `accept_no_self_end`, and need `gridmill reap` at another place.
A machine that hangs, so that no program runs on it, ends only by a control node or by a timer of the
provider. If such a machine does not answer for the same 15 minutes, the control node ends it.
The provider is simulated: no schedule was run against the account of a real provider.

`python -m bench rental-processes` repeats the test with real processes: `gridmill up` is ended by SIGKILL or
Ctrl-C, the provider is the simulated EC2, and its machines are hosts in Linux namespaces with an SSH server
([results](../benchmarks.md)).
"""


def page(result: dict[str, Any]) -> str:
    """The page with the table of a result."""
    lines = [
        f"| {row['mode']} | {row['control node']} | {row['schedules']} | {row['machines']} |"
        f" {row['machines leaked']} | {row['other resources left']} |"
        f" {row['billed beyond need, most s']:,} s |"
        f" {'' if row['jobs lost'] is None else row['jobs lost']} | {row['results accepted twice']} |"
        for row in result["rows"]
    ]
    return (
        HEAD.format(
            stories=result["stories"],
            faults=", ".join(result["faults"]),
            at_once=result["stories at once"],
            machines=result["machines at once"],
        )
        + "\n".join(lines)
        + "\n"
        + TAIL
        + skypilot_kill.section()
    )


AREA = "Rented machines, simulated faults"
LIMIT_SECONDS = 55 * 60.0
HOW = """Seeded schedules of faults in simulated time. Each way in which a machine can end itself has lines
for a control node that starts again after a fault, and for one that never does. The page
[What is tested about rented machines](reference/rented-machines.md) has the table and the faults."""


def results_of(result: dict[str, Any]) -> list[Result]:
    """The lines of docs/benchmarks.md."""
    found = [
        row(AREA, "schedules", result["stories"], ""),
        row(AREA, "schedules with 50 machines at once", result["stories at once"], ""),
        row(AREA, "machines of these schedules", result["machines at once"], ""),
    ]
    for one in result["rows"]:
        restarts, name = one["control node"] == "restart", f"{one['mode']}, {one['control node']}"
        if restarts or one["mode"] != SelfEnd.NONE:
            most = RELEASE_SECONDS if restarts else DEAD_MAN_SECONDS + JOB_SECONDS + 60.0
            found += [
                at_most(0, AREA, f"{name}: machines leaked", one["machines leaked"], ""),
                at_most(0, AREA, f"{name}: results accepted twice", one["results accepted twice"], ""),
            ]
            if not restarts:
                beyond = one["billed beyond need, most s"]
                found.append(at_most(most, AREA, f"{name}: billed beyond need, most", beyond, "s"))
        if restarts:
            beyond = one["billed beyond need, median s"]
            found.append(at_most(most, AREA, f"{name}: billed beyond need, median", beyond, "s"))
            found.append(at_most(0, AREA, f"{name}: jobs lost", one["jobs lost"], ""))
        found.append(
            at_most(0, AREA, f"{name}: schedules with a problem", one["schedules with a problem"], "")
        )
    return found


def main() -> None:
    """Measures, and writes the page and the lines of docs/benchmarks.md."""
    result = run(limit_seconds=LIMIT_SECONDS)
    PAGE.write_text(page(result))
    save("rentals", results_of(result), how=HOW)


if __name__ == "__main__":
    main()
