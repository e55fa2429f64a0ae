"""The command `validate` checks a pipeline file against its data, without a control node or a home."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gridmill.cli.parameters import Set, read_set
from gridmill.cli.session import Json, emit, host_of
from gridmill.domain.amounts import show_count
from gridmill.domain.frozen import dataclass
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.preflight import PreflightFinding, PreflightResult, preflight_question
from gridmill.errors import TABLE, InputError, PipelineError, explained
from gridmill.ports.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationProblem:
    """A problem at `place` (file, line and field) in a pipeline and a job. The pipeline and the job are
    empty if the problem concerns the file itself. If the problem is `certain`, a run would fail. If the
    problem is not certain, a run may fail, because only a part of the data was checked."""

    message: str
    place: str
    hint: str = ""
    pipeline: str = ""
    job: str = ""
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """The result that the option `--json` prints. `unchecked` contains the jobs that were not checked
    against data. Each entry has the name `PIPELINE/JOB` and the reason."""

    file: str
    valid: bool
    pipelines: tuple[str, ...] = ()
    jobs: int = 0
    problems: tuple[ValidationProblem, ...] = ()
    unchecked: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()


def validate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file (YAML).", show_default=False)],
    set: Set = None,
    json: Json = False,
) -> None:
    """Check a pipeline file and its data, without a control node and without a home.

    The exit code is 2 if a run would fail, otherwise 0.
    """
    validated = validated_file(file, read_set(set or ()), host_of(context))
    emit(validated) if json else _show(validated)
    if not validated.valid:
        raise typer.Exit(TABLE[InputError.code].exit_code)


def validated_file(file: Path, values: Mapping[str, str], host: Host) -> ValidationResult:
    """Check a pipeline file and its data, and return all problems. The function raises no error for a
    problem of the file or its data."""
    # imported here, because it loads YAML and Pydantic, which most commands do not need
    from gridmill.declarations import read_declarations as read

    try:
        nouns: tuple[Any, ...] = read(file, set_values=values, awaiting=True)
        pipelines = [noun for noun in nouns if isinstance(noun, Pipeline)]
        checked = [(pipeline, _checked(pipeline, host)) for pipeline in pipelines]
    except PipelineError as error:
        return ValidationResult(file=str(file), valid=False, problems=tuple(_of_file(error)))
    problems = tuple(_problem(of, one) for of, result in checked for one in result.findings)
    return ValidationResult(
        file=str(file),
        valid=not any(one.certain for one in problems),
        pipelines=tuple(pipeline.name for pipeline in pipelines),
        jobs=sum(len(pipeline.jobs) for pipeline in pipelines),
        problems=problems,
        inferred=tuple(
            f"{of.name}/{job}: {line}"
            for of, result in checked
            for job, lines in result.inferred.items()
            for line in lines
        ),
        unchecked=tuple(
            f"{of.name}/{one.job}: {one.why}" for of, result in checked for one in result.unchecked
        ),
    )


def _checked(pipeline: Pipeline, host: Host) -> PreflightResult:
    question = preflight_question(pipeline)
    return PreflightResult() if question is None else host.preflight(question)


def _of_file(error: PipelineError) -> Iterator[ValidationProblem]:
    """The problems of a file that cannot be read, as separate problems."""
    for place, message, hint in error.problems or ((error.place, error.message, error.hint),):
        yield ValidationProblem(message=message, place=place, hint=hint)


def _problem(pipeline: Pipeline, finding: PreflightFinding) -> ValidationProblem:
    path = f"jobs.{finding.job}.{finding.path}"
    return ValidationProblem(
        message=finding.message,
        place=pipeline.lines.place(path) if pipeline.lines is not None else path,
        hint=finding.hint,
        pipeline=pipeline.name,
        job=finding.job,
        certain=finding.certain,
    )


def _show(validated: ValidationResult) -> None:
    for problem in validated.problems:
        text = explained(InputError(problem.message, hint=problem.hint, place=problem.place))
        print(f"{'error' if problem.certain else 'may fail'}: {text}")
    for line in validated.inferred:
        print(line)
    for line in validated.unchecked:
        print(f"not checked against data: {line}")
    certain = sum(problem.certain for problem in validated.problems)
    what = show_count(certain, "problem") if certain else "no problems"
    jobs = f"{show_count(validated.jobs, 'job')}, " if validated.jobs else ""
    print(f"{validated.file}: {jobs}{what}")
