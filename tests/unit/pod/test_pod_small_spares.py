"""The text that a waiting process executes: its pointers are right at the address where it is read to."""

import ctypes

import pytest

from gridmill.pod.forker import HEADER, REGION_BYTES
from gridmill.pod.program import programs
from gridmill.pod.small_spares import Program


def program(**more):
    said = {
        "argv": ("echo", "a b", ""),
        "paths": ("/bin/echo", "/usr/bin/echo"),
        "folder": "/tmp/ä",
        "environment": {"A": "1", "B": "x=y"},
        "affinity": (0, 3),
        "trouble": "/attempt/not-executed",
    }
    return Program(**{**said, **more})


def strings(address):
    """Those of a list that ends with a null pointer."""
    found = []
    while pointer := ctypes.c_int64.from_address(address + 8 * len(found)).value:
        found.append(ctypes.string_at(pointer).decode())
    return found


@pytest.mark.parametrize("more", [{}, {"affinity": ()}, {"environment": {}}, {"paths": ("x",) * 9}])
def test_pointers_lead_to_what_was_said(more):
    wanted = program(**more)
    region = ctypes.create_string_buffer(REGION_BYTES)
    address = ctypes.addressof(region)
    text = wanted.packed(address)
    region[: len(text)] = text
    trouble, folder, argv, environment, cpus, count, tried, *paths = HEADER.unpack_from(region)
    assert ctypes.string_at(trouble).decode() == wanted.trouble
    assert ctypes.string_at(folder).decode() == wanted.folder
    assert tuple(strings(argv)) == wanted.argv
    assert strings(environment) == [f"{name}={value}" for name, value in wanted.environment.items()]
    assert tuple((ctypes.c_int64 * count).from_address(address + cpus)) == wanted.affinity
    assert tuple(ctypes.string_at(path).decode() for path in paths[:tried]) == wanted.paths


@pytest.mark.parametrize("more", [{"argv": ("a\0b",)}, {"environment": {"A": "x" * REGION_BYTES}}])
def test_what_cannot_be_told_is_refused(more):
    with pytest.raises(ValueError, match="too large, or contains a NUL"):
        program(**more).packed(0)


def test_programs_are_tried_in_the_order_of_the_path(tmp_path):
    for name in ("a", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").touch()
    path = f"{tmp_path}/c:{tmp_path}/b:{tmp_path}/a:bin"
    tools = [f"{tmp_path}/c/tool", f"{tmp_path}/a/tool", "bin/tool"]
    assert programs("tool", {"PATH": path}) == tools
    assert programs("./tool", {"PATH": path}) == ["./tool"]
