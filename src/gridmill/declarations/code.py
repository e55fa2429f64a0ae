"""What a pipeline names of its project's files: that they are there, and have the functions."""

import ast
from collections.abc import Iterator
from glob import has_magic
from pathlib import Path as FilePath

from gridmill.declarations.nodes import Document
from gridmill.declarations.problems import Path, Problem, did_you_mean, similar_file
from gridmill.model.pipeline import Pipeline


def check_code(document: Document, pipeline: Pipeline, folder: FilePath) -> Iterator[Problem]:
    """Every file and function named in a job that is not in the project's folder."""
    for job in pipeline.jobs:
        for field in ("script", "predict", "file", "environment"):
            said = getattr(job.training or job.command, field, None)
            if said:
                yield from _check(document, ("jobs", job.name, job.kind.value, field), said, folder)
        for number, said in enumerate(job.reads_files):
            yield from _check_input(
                document, ("jobs", job.name, job.kind.value, "inputs", number), said, folder
            )


def _check_input(document: Document, place: Path, said: str, folder: FilePath) -> Iterator[Problem]:
    try:
        there = any(folder.glob(said)) if has_magic(said) else (folder / said).exists()
    except (OSError, ValueError) as error:
        yield document.problem(place, f"{said!r} is no name of a file: {error}")
        return
    if not there:
        what = "matches no file" if has_magic(said) else "does not exist"
        yield document.problem(place, f"`{said}` {what}{did_you_mean(said, _like(folder / said))}", _WHERE)


def _check(document: Document, place: Path, said: str, folder: FilePath) -> Iterator[Problem]:
    name, _, function = said.partition(":") if place[-1] in ("script", "predict") else (said, "", "")
    file = folder / name
    try:
        inside, there = file.resolve().is_relative_to(folder.resolve()), file.is_file()
    except (OSError, ValueError) as error:
        yield document.problem(place, f"{name!r} is no name of a file: {error}")
        return
    if not inside:
        yield document.problem(place, f"`{name}` leads out of the project, the pipeline's folder")
    elif not there:
        yield document.problem(
            place, f"there is no file `{name}`{similar_file(file.name, _like(file))}", _WHERE
        )
    elif function:
        yield from _check_function(document, place, file, function)


_WHERE = "Paths begin at the pipeline's folder."


def _like(file: FilePath) -> list[str]:
    try:
        return sorted(path.name for path in file.parent.iterdir() if path.is_file())
    except OSError:
        return []


def _check_function(document: Document, place: Path, file: FilePath, function: str) -> Iterator[Problem]:
    try:
        names = _names(ast.parse(file.read_bytes(), file.name))
    except (SyntaxError, ValueError) as error:
        yield document.problem(place, f"`{file.name}` is not Python: {error}")
        return
    if names is not None and function not in names:
        message = f"`{file.name}` has no function `{function}`{did_you_mean(function, names)}"
        yield document.problem(place, message)


def _names(module: ast.Module) -> list[str] | None:
    """What a module may define, in its order; None where only running it could tell."""
    names: list[str] = []
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.append(name)
            case ast.Import(names=some) | ast.ImportFrom(names=some):
                names += [one.asname or one.name for one in some]
    return None if {"*", "__getattr__", "globals"} & {*names, *_called(module)} else names


def _called(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
