"""docs/benchmarks.md, made from the results that are there."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from bench.measure import LONG_SECONDS, LONGEST_SECONDS, OUT, REPOSITORY, Machine, Result, Saved, load

PAGE = REPOSITORY / "docs" / "benchmarks.md"
MODULES = {
    "startup": "bench.startup",
    "latency": "bench.latency",
    "logs": "bench.logs",
    "planner": "bench.planning",
    "readers": "bench.readers",
    "peers": "bench.peers",
    "demo": "bench.demo",
    "sink": "bench.sink",
    "small-files": "bench.small_files",
    "dataset": "bench.dataset",
    "wide": "bench.wide",
    "flights": "bench.flights",
    "training": "bench.training",
    "models": "bench.models",
    "search": "bench.search",
    "swarm": "bench.swarm",
    "serving": "bench.serving",
    "serving-once": "bench.serving_once",
    "service-starts": "bench.service_starts",
    "arrow-batches": "bench.arrow_batches",
    "online": "bench.online",
    "sizing-settings": "bench.resized",
    "sizing-examples": "bench.sizing examples",
    "sizing-published": "bench.sizing published",
    "sizing-sinks": "bench.sizing sinks",
    "sizing-datasets": "bench.sizing datasets",
    "sizing-trainings": "bench.sizing trainings",
    "sizing-predictions": "bench.sizing predictions",
    "growth": "bench.growth",
    "advice": "bench.advice",
    "policy": "bench.policy",
    "gangs": "bench.gangs",
    "map-swarm": "bench.map swarm",
    "map-dataset": "bench.map dataset",
    "staging": "bench.staging",
    "farm": "bench.farm",
    "early": "bench.early",
    "neighbours": "bench.neighbours",
    "rentals": "bench.rentals",
    "rental-processes": "bench.rental_processes",
    "rental-scale": "bench.rental_scale",
    "rental-hosts": "bench.rental_hosts",
}
"""What can be measured, in the page's order, and by which module with which argument."""
HEAD = f"""\
# Benchmarks

Made by `make bench` (`python -m bench NAME` measures one part alone); nobody wrote a number here by hand.
Values are medians of at least five measurements with the lowest and the highest beside them, or percentiles
where it says so; what takes longer than {LONG_SECONDS:.0f} s a time is measured three times. What is
compared is measured side by side: all take turns, round after round, in one go on one machine. No result
fails a build: a target that is missed is shown as missed. A part that takes longer than
{LONGEST_SECONDS / 60:.0f} minutes is ended; all {len(MODULES)} together take one to two hours on two cores.
"""


def main() -> None:
    PAGE.write_text(page([(name, load(name)) for name in MODULES]))
    print(f"{PAGE.relative_to(REPOSITORY)} written from {OUT.relative_to(REPOSITORY)}")


def page(parts: Sequence[tuple[str, Saved | None]]) -> str:
    """The whole page, in Markdown."""
    there = [saved for _, saved in parts if saved is not None]
    missing = [name for name, saved in parts if saved is None]
    blocks = [
        HEAD,
        *_targets(there),
        *_machines(there),
        *(block for saved in there for block in _part(saved)),
    ]
    if missing:
        blocks.append(f"Not measured yet: {', '.join(missing)}.\n")
    return "\n".join(blocks)


def _targets(parts: Iterable[Saved]) -> list[str]:
    held = [result for saved in parts for result in saved.results if result.met is not None]
    if not held:
        return []
    met = sum(result.met is True for result in held)
    lines = ["## Targets\n", f"{met} of {len(held)} met.\n", *_table(held, areas=True)]
    return [*lines, ""]


def _machines(parts: Sequence[Saved]) -> list[str]:
    """One line for each machine, commit and day; usually there is one."""
    groups: dict[str, list[str]] = {}
    for saved in parts:
        groups.setdefault(_where(saved), []).append(saved.name)
    lines = [f"- {', '.join(names)}: {where}" for where, names in groups.items()]
    loads = ", ".join(f"{saved.name} {saved.machine.load:g}" for saved in parts)
    note = (
        f"\nLoad average at the end of each: {loads}. Where it is well above what the benchmark itself "
        "keeps busy, others worked on the machine at the time: read the ratios, not the times.\n"
    )
    took = ", ".join(f"{saved.name} {saved.seconds / 60:.1f}" for saved in parts if saved.seconds)
    minutes = [f"Minutes that each took: {took}.\n"] if took else []
    return ["## Where and when\n", *lines, note, *minutes] if lines else []


def _where(saved: Saved) -> str:
    machine: Machine = saved.machine
    parts = (
        f"{machine.cores} cores ({machine.processor})",
        f"{machine.memory_gib:g} GiB",
        machine.system,
        f"Python {machine.python}",
        saved.date,
        f"commit {saved.commit}" if saved.commit else "",
    )
    return ", ".join(part for part in parts if part)


def _part(saved: Saved) -> list[str]:
    how = [f"{saved.how}\n"] if saved.how else []
    blocks = []
    for area, results in groupby(saved.results, key=lambda result: result.area):
        blocks += [f"## {area[0].upper()}{area[1:]}\n", *how, *_table(list(results)), ""]
        how = []
    return blocks


def _table(results: Sequence[Result], *, areas: bool = False) -> list[str]:
    held = any(result.met is not None for result in results)
    notes = any(result.note for result in results) and not areas
    head = [
        "what",
        "value",
        "lowest to highest",
        *(("target", "") if held else ()),
        *(("note",) if notes else ()),
    ]
    rows = [head, ["---", "---:", "---:", *(("---:", "---") if held else ()), *(("---",) if notes else ())]]
    for result in results:
        what = f"{result.area}: {result.what}" if areas else result.what
        verdict = (result.target, _verdict(result)) if held else ()
        rows.append([what, _amount(result.value, result.unit), _spread(result), *verdict])
        rows[-1] += [result.note] if notes else []
    return ["| " + " | ".join(cells) + " |" for cells in rows]


def _verdict(result: Result) -> str:
    return {True: "met", False: "**missed**", None: ""}[result.met]


def _spread(result: Result) -> str:
    if result.low is None or result.high is None or not result.runs or result.runs < 2:
        return ""
    return f"{number(result.low)} to {number(result.high)} ({result.runs})"


def _amount(value: float, unit: str) -> str:
    return f"{number(value)} {unit}".strip()


def number(value: float) -> str:
    """Three digits that count: 0.123, 1.23, 12.3, 123, 1,234."""
    size = abs(value)
    digits = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


if __name__ == "__main__":
    main()
