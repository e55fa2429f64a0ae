"""A dataset in parts: each computes some of the buckets; together they are those of one machine."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gridmill.jobs.dataset.writing import Tally
from gridmill.jobs.files import link_file

TALLY_FILE = ".tally.json"


def write_tally(folder: Path, tally: Tally) -> None:
    """Note what a part counted beside its rows."""
    told = {"kept": tally.kept, "dropped": tally.dropped, "final": tally.final, "splits": tally.splits}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TALLY_FILE).write_text(json.dumps(told))


def take_together(folder: Path, parts: Sequence[Path], tally: Tally) -> None:
    """The files of all parts in `folder`, and what they counted. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for path in sorted(part.glob("*.parquet")):
            link_file(path, folder)
        told = json.loads((part / TALLY_FILE).read_text())
        counted = {name: Counter[str](told[name]) for name in ("dropped", "final", "splits")}
        tally.add(Tally(kept=told["kept"], **counted))
