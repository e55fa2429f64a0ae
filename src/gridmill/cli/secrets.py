"""The parts of `add`, `remove` and `configure` for secrets. A value is read from a prompt, standard input or
a file, and never from an argument, because other users can see arguments."""

import sys
from getpass import getpass
from pathlib import Path

import typer

from gridmill.cli.session import emit, session
from gridmill.domain.amounts import show_count
from gridmill.domain.secret import MOST_BYTES, check_secret_name, check_value, reference_to
from gridmill.errors import InputError


def add_secret(context: typer.Context, name: str, file: Path | None, as_json: bool) -> None:
    """Add a secret or replace its value, and print what was done."""
    check_secret_name(name)
    value = _read(name, file)
    check_value(name, value)
    with session(context) as client:
        before = next((one.version for one in client.list_secrets() if one.name == name), 0)
        view = client.add_secret(name, value)
    if as_json:
        return emit(view)
    if view.version == before:
        return print(f"secret {name} has this value already; nothing was changed")
    done = "added" if not before else f"has a new value (version {view.version})"
    print(f"secret {name} {done}; refer to it by {{secret: {name}}} or {reference_to(name)}")
    if before and view.used_by:
        print(f"attempts that start from now on get the new value: {', '.join(view.used_by)}")


def _read(name: str, file: Path | None) -> str:
    """Return the value from the file, from standard input if it is not a terminal, or from a prompt without
    echo. One line break at the end is removed, because editors and `echo` add it. Raises InputError."""
    if file is None and sys.stdin.isatty():
        value = getpass(f"value of {name}: ")
        if getpass("again: ") != value:
            raise InputError("the two values differ; nothing was changed", place=f"secret {name}")
        return value
    try:
        data = sys.stdin.buffer.read(2 * MOST_BYTES) if file in (None, Path("-")) else _content(file)
        text = data.decode()
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror}", place=str(file)) from error
    except UnicodeDecodeError as error:
        raise InputError("the value is not UTF-8 text", place=f"secret {name}") from error
    return text.removesuffix("\n").removesuffix("\r")


def _content(file: Path | None) -> bytes:
    assert file is not None
    with file.open("rb") as opened:
        return opened.read(2 * MOST_BYTES)


def remove_secret(context: typer.Context, name: str, force: bool, as_json: bool) -> None:
    """Delete a secret, and print what was done."""
    with session(context) as client:
        client.remove_secret(name, force=force)
    return emit({"removed": name}) if as_json else print(f"secret {name} removed")


def rotate_key(context: typer.Context, word: str, as_json: bool) -> None:
    """Encrypt all secrets with a new key, and print what was done. Raises InputError for another word than
    `new`."""
    if word != "new":
        raise InputError(
            f"a secret key cannot be {word!r}", hint="To make a new key: gridmill configure secret-key new"
        )
    with session(context) as client:
        done = client.rotate_secret_key()
    if as_json:
        return emit(done)
    print(
        f"{show_count(done.secrets, 'secret')} encrypted with the new key {done.key_id}; the earlier key "
        "is deleted"
    )
    return None
