"""What a command leaves, drawn at random: folders, files, links of every kind, in any order.

Collected, it holds no link, and through each of its paths the same bytes are read as before. If a link leads
to what is not the job's own, the output is refused. Nothing outside of it ever changes.
"""

import os
from pathlib import Path
from random import Random

from gridmill.pod.outputs import OutputFolders, collect

PLACES = ("output", "work", "input", "elsewhere")


def case(seed: int, folder: Path) -> None:
    """Draw a tree, and compare what is read through its links before and after."""
    chance = Random(seed)
    for place in PLACES:
        _fill(folder / place, chance)
    _link(folder, chance, harmless=chance.random() < 0.5)
    left = OutputFolders(output=folder / "output", excluded=(folder / "work",), inputs=(folder / "input",))
    before, others = _read(folder / "output"), [_state(folder / place) for place in PLACES[1:]]
    own = tuple(os.path.realpath(folder / place) + "/" for place in PLACES[:3])
    bad = _is_bad(folder / "output", own)
    found = collect(left)
    assert [_state(folder / place) for place in PLACES[1:]] == others, "what is not the output changed"
    assert not list((folder / "output").rglob(".gridmill-copy-*"))
    if found.problem:
        assert bad, f"refused without a reason: {found.problem}"
        return
    assert not bad
    after = _read(folder / "output")
    assert not any(path.is_symlink() for path in (folder / "output").rglob("*"))
    assert after == before
    assert found.files == len(after)
    assert found.size_bytes == sum(map(len, after.values()))


def _fill(folder: Path, chance: Random) -> None:
    folder.mkdir()
    folders = [folder]
    for number in range(chance.randrange(6)):
        new = chance.choice(folders) / f"d{number}"
        new.mkdir()
        folders.append(new)
    for number in range(chance.randrange(1, 8)):
        (chance.choice(folders) / f"f{number}").write_bytes(chance.randbytes(chance.randrange(20)))


def _link(folder: Path, chance: Random, *, harmless: bool) -> None:
    """Links in the output, and some in the input: to folders, files, other links, themselves, nowhere."""
    for number in range(chance.randrange(8)):
        place = folder / ("output" if chance.random() < 0.8 else "input")
        above = chance.choice(
            [place, *(one for one in place.rglob("d*") if one.is_dir() and not one.is_symlink())]
        )
        own = PLACES[:3] if harmless else PLACES
        targets = sorted(one for name in own for one in (folder / name).rglob("*"))
        target = chance.choice(targets)
        if not harmless and chance.random() < 0.2:
            target = chance.choice([folder / "nowhere", above, above / f"l{number}"])
        said = target if chance.random() < 0.5 else Path(os.path.relpath(target, above))
        (above / f"l{number}").symlink_to(said)


def _read(folder: Path, name: str = "", trail: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Every file that is reached from the folder, links followed, by its path; of a circle once around."""
    found: dict[str, bytes] = {}
    real = os.path.realpath(folder)
    if real in trail:
        return found
    for path in folder.iterdir():
        below = f"{name}/{path.name}"
        if path.is_dir():
            found |= _read(path, below, (*trail, real))
        elif path.is_file():
            found[below] = path.read_bytes()
    return found


def _state(place: Path) -> list[tuple[str, str]]:
    return sorted((str(path.relative_to(place)), _content(path)) for path in place.rglob("*"))


def _content(path: Path) -> str:
    if path.is_symlink():
        return os.readlink(path)
    return path.read_bytes().hex() if path.is_file() else ""


def _is_bad(folder: Path, own: tuple[str, ...], trail: tuple[str, ...] = ()) -> bool:
    """Whether a link in the folder, or one that is reached through it, is not of the job's own, leads nowhere
    or to a folder that it lies in."""
    real = os.path.realpath(folder)
    if real in trail:
        return True
    for path in folder.iterdir():
        target = os.path.realpath(path)
        if path.is_symlink() and not (path.exists() and target.startswith(own)):
            return True
        if path.is_dir() and _is_bad(path, own, (*trail, real)):
            return True
    return False
