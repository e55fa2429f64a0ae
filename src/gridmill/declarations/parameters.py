"""The parameters of a pipeline. `${name}` can occur anywhere in the text of the file. The file contains the
default values of the parameters, and `--set` replaces these values.

How a reference is replaced by its value depends on the position of the reference in the file. In a shell
command, the value is quoted. In SQL, the value is bound and is never part of the statement. At all other
places, the value is inserted as text. If a text consists of only one reference, it is replaced with the
value itself, which may be a number.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeGuard

from gridmill.declarations.matrix import expand_jobs, is_matrix
from gridmill.declarations.problems import FieldPath, Problem, show_value
from gridmill.declarations.shell import UnsafeError, fill_shell
from gridmill.declarations.yaml import (
    Value,
    YamlDocument,
    YamlFloat,
    YamlInteger,
    YamlList,
    YamlMapping,
    parse_documents,
    scalar,
)
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import did_you_mean, read_moment, word
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.sql_statement import DUE, REFERENCE, Given, check_statement, literals, references_of
from gridmill.errors import InputError, PipelineError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LITERAL = "For a variable of the shell, write $${NAME}."
_READ_BY_JOB = (("sink", "source"), ("training", "track"))
"""The fields of a job in which `${env:NAME}` and `${secret:NAME}` are allowed."""
_SECRETS_OF_JOB = (("command", "env"), ("command", "registry_login"), ("training", "registry_login"))
"""The fields of a job in which only `${secret:NAME}` is allowed."""
_EXAMPLE = {"due": "2000-01-02T00:00:00+00:00", "due_before": "2000-01-01T00:00:00+00:00"}
"""Example values for the times that only a schedule sets. If such a time is not set yet, the declaration is
checked with this example value."""
_ENVIRONMENT = {"GRIDMILL_DUE": "due", "GRIDMILL_DUE_BEFORE": "due_before"}
_VARIABLE = re.compile(r"\bGRIDMILL_DUE(?:_BEFORE)?\b")
Single = str | YamlInteger | YamlFloat | bool
Word = Single | YamlList


class _TextKind(StrEnum):
    """The kinds of text in a pipeline file."""

    TEXT = "text"
    SHELL = "shell"
    SQL = "sql"
    """The statement is for Gridmill's own engine."""
    QUERY = "query"
    """The query is for a database, which receives the values separately from the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstitutedDocument:
    """A document in which references to parameters are replaced. References in database queries are not
    replaced. `queries` contains the values of the references in database queries, by job and reference.
    `awaits` are the times of a schedule that the document uses and that have no value. `uses` contains for
    each job the parameters to which it refers, with their values."""

    document: YamlDocument
    problems: list[Problem]
    queries: Mapping[str, Mapping[str, Given]] = field(default_factory=dict)
    awaits: tuple[str, ...] = ()
    uses: Mapping[str, Mapping[str, Given]] = field(default_factory=dict)


def fill_in(
    document: YamlDocument, given: Mapping[str, object], *, awaiting: bool = False
) -> SubstitutedDocument:
    """Returns the document in which the references are replaced by the values of the parameters, and the
    problems that were found.

    With `awaiting`, the times that a schedule sets may be missing.
    """
    filling = _Substitution(document, given, awaiting=awaiting)
    value = document.value
    if isinstance(value, YamlMapping):
        value = filling.whole(value)
    return SubstitutedDocument(
        document=YamlDocument(file=document.file, line=document.line, value=value),
        problems=filling.problems,
        queries=filling.queries,
        awaits=tuple(name for name in DUE if name in filling.awaits),
        uses=filling.uses,
    )


def with_values(pipeline: Pipeline, filled: SubstitutedDocument) -> tuple[Pipeline, list[Problem]]:
    """Returns the pipeline with the parameter values that its SQL queries use, and the errors in these
    values."""
    jobs, problems = list(pipeline.jobs), list[Problem]()
    for number, job in enumerate(jobs):
        values, source = filled.queries.get(job.name), job.sink.source if job.sink is not None else None
        if not values or job.sink is None or source is None or source.sql is None:
            continue
        sql = replace(source.sql, parameters=values)
        try:
            sql.check()
            check_statement(sql.query or "", values)
        except InputError as error:
            path: FieldPath = ("jobs", job.name, "sink", "source", "sql", "query")
            problems.append(filled.document.problem(path, error.message, error.hint))
        jobs[number] = replace(job, sink=replace(job.sink, source=replace(source, sql=sql)))
    jobs = [replace(job, parameters=filled.uses.get(job.name, {})) for job in jobs]
    if filled.awaits:
        problems += _continuous(pipeline, filled)
    return replace(pipeline, jobs=tuple(jobs), awaits=filled.awaits), problems


def _continuous(pipeline: Pipeline, filled: SubstitutedDocument) -> Iterator[Problem]:
    """Yields a problem if a pipeline uses due times and has a continuous schedule or a schedule by drift,
    because the runs of such a schedule have no due times."""
    at: dict[FieldPath, ScheduleSpec | None] = {("schedule",): pipeline.schedule}
    at |= {("jobs", job.name, "schedule"): job.schedule for job in pipeline.jobs}
    for path, spec in at.items():
        if spec is not None and (spec.continuous is not None or spec.drift is not None):
            kind = "a continuous schedule" if spec.continuous is not None else "a schedule by drift"
            message = f"{kind} has no due times, but the pipeline uses `${{{filled.awaits[0]}}}`"
            yield filled.document.problem(
                path, message, "Use `schedule: {every: 1h}` or `schedule: {cron: ...}`."
            )


class _Substitution:
    """Replaces references to parameters and collects the problems."""

    def __init__(self, document: YamlDocument, given: Mapping[str, object], *, awaiting: bool) -> None:
        self.problems: list[Problem] = []
        self.queries: dict[str, dict[str, Given]] = {}
        self.awaits: set[str] = set()
        self.uses: dict[str, dict[str, Given]] = {}
        self._document, self._awaiting = document, awaiting
        self._used: set[str] = set()
        self._times: dict[str, str] = {}
        self._declared: dict[str, str] = {}
        """The job of the file to which each job of a matrix belongs."""
        self._words = self._parameters(given)

    def whole(self, value: YamlMapping) -> YamlMapping:
        """Replaces all references in the document of a pipeline."""
        filled = _copy(value, {})
        for key, item in value.items():
            if key == "jobs" and isinstance(item, YamlMapping):
                filled[key] = self._jobs(item)
            else:
                filled[key] = self.fill(item, (key,), self._words)
        if self._words:
            declared = value["parameters"]
            assert isinstance(declared, YamlMapping)
            filled["parameters"] = _copy(declared, {**declared, **self._words})
        for name in self._times.keys() - self._used:
            self._note((), f"--set {name}: nothing in the pipeline uses `${{{name}}}`")
        return filled

    def _jobs(self, jobs: YamlMapping) -> YamlMapping:
        matrices = {
            name: self.fill(job["matrix"], ("jobs", name, "matrix"), self._words)
            for name, job in jobs.items()
            if isinstance(job, YamlMapping) and is_matrix(job.get("matrix"))
        }
        expanded, problems = expand_jobs(self._document, jobs, matrices)
        self.problems += problems
        filled = _copy(jobs, {})
        filled.clear()
        for name, (declared, job, own) in expanded.items():
            self._declared[name] = declared
            filled.lines[name] = jobs.lines.get(declared, jobs.line)
            job = self.fill(job, ("jobs", name), {**self._words, **own})
            filled[name] = self._with_due(name, job) if isinstance(job, YamlMapping) else job
        return filled

    def _note(self, path: FieldPath, message: str, hint: str = "") -> None:
        declared = self._declared.get(str(path[1])) if path[:1] == ("jobs",) and path[1:] else None
        problem = self._document.problem(("jobs", declared, *path[2:]) if declared else path, message, hint)
        if problem not in self.problems:
            self.problems.append(problem)

    # --- values

    def _parameters(self, given: Mapping[str, object]) -> dict[str, Word]:
        """Returns the declared parameters. Each value in `given` replaces the default value of its
        parameter."""
        value = self._document.value
        declared = value.get("parameters") if isinstance(value, YamlMapping) else None
        words: dict[str, Word] = {}
        for name, default in declared.items() if isinstance(declared, YamlMapping) else ():
            if not _NAME.fullmatch(name):
                self._note(
                    ("parameters", name), "a parameter's name can contain only letters, digits, _ and -"
                )
            elif isinstance(default, Single) or _is_list(default):
                words[name] = default
        for name, text in given.items():
            self._set(words, name, word(text))
        return words

    def _set(self, words: dict[str, Word], name: str, text: str) -> None:
        if name in DUE and name not in words:
            return self._set_time(name, text)
        if name not in words:
            names = ", ".join(words) or "none"
            message = f"--set {name}: there is no parameter `{name}`{did_you_mean(name, words)}"
            return self._note(("parameters",), message, f"The parameters are {names}.")
        try:
            words[name] = _like(words[name], text)
        except ValueError as error:
            self._note(("parameters", name), f"--set {name}: {error}")

    def _set_time(self, name: str, text: str) -> None:
        try:
            read_moment(text)
        except InputError as error:
            self._note((), f"--set {name}: {error.message}", error.hint)
        self._times[name] = text

    def _time(self, name: str, path: FieldPath) -> str | None:
        """Returns the value of a time that a schedule sets."""
        self._used.add(name)
        if name not in self._times and self._awaiting:
            self.awaits.add(name)
            return _EXAMPLE[name]
        if name not in self._times:
            message = f"`${{{name}}}` is a due time of a schedule, but no schedule starts this run"
            self._note(
                path, message, f"Set the parameter, for example: --set {name}=2026-01-31T06:00:00+00:00"
            )
            return None
        return self._times[name]

    def _note_use(self, name: str, value: Word, path: FieldPath) -> None:
        if len(path) > 1 and path[0] == "jobs":
            self.uses.setdefault(str(path[1]), {})[name] = _given(value)

    def _find(self, body: str, path: FieldPath, words: Mapping[str, Word]) -> Word | None:
        """Returns the value of the reference `name` or `name:format`. If there is no value, the method
        records a problem and returns None."""
        name, _, form = body.partition(":")
        result = words[name] if name in words else self._time(name, path) if name in DUE else None
        if result is not None:
            self._note_use(name, result, path)
        if result is None or not form or form == "raw":
            return result
        if "%" not in form or not isinstance(result, str):
            message = f"`${{{body}}}`: there is no form {form!r}"
            self._note(path, message, "Use `raw`, or for times a format such as %Y-%m-%d.")
            return None
        try:
            return _zoned(result).strftime(form)
        except ValueError:
            self._note(
                path, f"`${{{body}}}`: {result!r} is not a time", "Write a time such as 2026-01-31T06:00."
            )
            return None

    # --- texts

    def fill(self, value: Value, path: FieldPath, words: Mapping[str, Word]) -> Value:
        """Returns the value with its references replaced. References within the section `parameters` of the
        file are refused."""
        match value:
            case YamlMapping():
                return _copy(
                    value, {key: self.fill(item, (*path, key), words) for key, item in value.items()}
                )
            case YamlList():
                return self._items(value, path, words)
            case str() if "${" in value:
                return self._text(value, path, words)
        return value

    def _items(self, value: YamlList, path: FieldPath, words: Mapping[str, Word]) -> YamlList:
        items = YamlList(value.line)
        for number, item in enumerate(value):
            filled, line = self.fill(item, (*path, number), words), value.lines.get(number, value.line)
            several = filled if isinstance(filled, YamlList) and not isinstance(item, YamlList) else [filled]
            # several items, because a reference to a list within a list of texts adds all items of that list
            for one in several:
                items.lines[len(items)] = line
                items.append(one)
        return items

    def _text(self, text: str, path: FieldPath, words: Mapping[str, Word]) -> Value:
        if path[0] == "parameters":
            self._note(path, "a parameter's default cannot refer to another parameter")
            return text
        whole = REFERENCE.fullmatch(text)
        if whole and whole[1] is not None and self._is_known(whole[1], words):
            return self._find(whole[1], path, words)
        try:
            return self._by_kind(text, path, words)
        except (UnsafeError, InputError) as error:
            self._note(path, error.message, error.hint)
            return text

    def _by_kind(self, text: str, path: FieldPath, words: Mapping[str, Word]) -> str:
        kind = _kind_of(path)
        if kind is _TextKind.SHELL:
            return fill_shell(text, lambda found: _shown(self._value(found, path, words)))
        if kind is _TextKind.TEXT:
            return REFERENCE.sub(lambda found: self._in_text(found, path, words), text)
        text = self._raw(text, path, words)
        values = {
            body: _given(value)
            for body in references_of(text)
            if (value := self._value(_reference(body), path, words)) is not None
        }
        if len(values) < len(references_of(text)):
            return text
        if kind is _TextKind.SQL:
            return literals(text, values)
        return self._query(text, str(path[1]), values, words)

    def _query(self, text: str, job: str, values: dict[str, Given], words: Mapping[str, Word]) -> str:
        """Returns the query unchanged, because its values are bound where the query is executed."""
        if not values:
            return text.replace("$${", "${")
        for body in list(values):
            name = body.partition(":")[0]
            plain = words.get(name, self._times.get(name, _EXAMPLE.get(name)))
            values.setdefault(name, values[body] if plain is None else _given(plain))
        self.queries[job] = values
        return text

    def _raw(self, text: str, path: FieldPath, words: Mapping[str, Word]) -> str:
        """Returns the text with the values of raw references inserted."""

        def paste(match: re.Match[str]) -> str:
            if match[1] is None or not match[1].endswith(":raw"):
                return match[0]
            value = _shown(self._value(match, path, words))
            shown = value if isinstance(value, str) else ", ".join(value or ())
            return shown.replace("${", "$${")

        return REFERENCE.sub(paste, text)

    def _in_text(self, match: re.Match[str], path: FieldPath, words: Mapping[str, Word]) -> str:
        if match[1] is None:
            return "${"
        value = _shown(self._value(match, path, words))
        if isinstance(value, tuple):
            raise InputError(
                f"`{match[0]}` is a list and cannot be a part of a text",
                hint="Write nothing but the reference in the text. Then the items of the list are added.",
            )
        return match[0] if value is None else value

    def _is_known(self, body: str, words: Mapping[str, Word]) -> bool:
        name = body.partition(":")[0]
        return name in words or name in DUE

    def _value(self, match: re.Match[str], path: FieldPath, words: Mapping[str, Word]) -> Word | None:
        """Returns the value of a reference. Returns None if the reference is not replaced now because it is
        read later, or if it is wrong."""
        body = match[1]
        if match[0].endswith("}") and self._is_known(body, words):
            return self._find(body, path, words)
        if body.startswith("env:") and path[2:4] in _READ_BY_JOB and path[-1] != "query":
            # not filled in here, because the value is read where the job runs and must be stored nowhere
            return None
        if body.startswith("secret:") and self._may_be_secret(path):
            return None
        if body.startswith("secret:"):
            message = (
                f"`{match[0]}`: secrets can be used in `env` of a command, in `url`, `path`, `headers` and "
                "`credentials` of a source, in `track` and in `registry_login`"
            )
        elif body.startswith("env:"):
            message = (
                f"`{match[0]}`: environment variables cannot be used here; declare a parameter "
                "and pass it with --set"
            )
        elif not match[0].endswith("}"):
            message = "`${` without a closing `}`"
        else:
            name = body.partition(":")[0]
            message = f"there is no parameter `{name}`{did_you_mean(name, words)}"
        self._note(path, message, _LITERAL)
        return None

    def _may_be_secret(self, path: FieldPath) -> bool:
        """Returns whether a reference to a secret is allowed at this path of the document."""
        return path[2:4] in _SECRETS_OF_JOB or (path[2:4] in _READ_BY_JOB and path[-1] != "query")

    def _with_due(self, name: str, job: YamlMapping) -> YamlMapping:
        """Records which due times a command uses. Each due time is added to the `env` of the command, under
        the name of its environment variable."""
        command = job.get("command")
        fields = command if isinstance(command, YamlMapping) else None
        run = command if fields is None else fields.get("run")
        env = fields.get("env") if fields is not None else None
        own = env if isinstance(env, YamlMapping) else YamlMapping(job.line)
        text = " ".join(str(one) for one in (*(run if isinstance(run, YamlList) else [run]), *own.values()))
        names = [one for one in dict.fromkeys(_VARIABLE.findall(text)) if one not in own]
        if not names:
            return job
        path: FieldPath = ("jobs", name, "command")
        added = _copy(own, {**own, **{one: self._time(_ENVIRONMENT[one], path) for one in names}})
        made = _copy(fields or YamlMapping(job.line), {**(fields or {"run": run}), "env": added})
        return _copy(job, {**job, "command": made})


def _kind_of(path: FieldPath) -> _TextKind:
    """Returns the kind of text at this path of the document."""
    if len(path) < 3 or path[0] != "jobs":
        return _TextKind.TEXT
    match path[2:]:
        case ("command",) | ("command", "run"):
            return _TextKind.SHELL
        case ("sink", "source", "sql", "query"):
            return _TextKind.QUERY
        case ("dataset", "sql") | ("dataset", "features", _) | ("sink", "metrics", _):
            return _TextKind.SQL
        case ("dataset", *_, "known_at") | ("sink", "constraints", *_, "expression"):
            return _TextKind.SQL
    return _TextKind.TEXT


def _reference(body: str) -> re.Match[str]:
    match = REFERENCE.fullmatch(f"${{{body}}}")
    assert match is not None  # never None, because the text was found with the same pattern
    return match


def _is_list(value: Value) -> TypeGuard[YamlList]:
    return isinstance(value, YamlList) and all(isinstance(item, Single) for item in value)


def _zoned(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _like(default: Word, text: str) -> Word:
    """Parses `text` as a value of the same type as `default`. Raises ValueError."""
    if isinstance(default, YamlList):
        return _like_list(default, text)
    value = scalar(text)
    if isinstance(default, str):
        return text
    same = (
        isinstance(value, bool) if isinstance(default, bool) else isinstance(value, YamlInteger | YamlFloat)
    )
    if same and isinstance(value, Single):
        return value
    expected = "true or false" if isinstance(default, bool) else "a number"
    raise ValueError(f"expected {expected} like its default {_one(default)}, got {show_value(text)}")


def _like_list(default: YamlList, text: str) -> YamlList:
    """Parse a list: `[a, b]`, or `a,b`."""
    items = YamlList(default.line)
    if text.lstrip().startswith("["):
        try:
            (document,) = parse_documents(text, "--set")
        except (PipelineError, ValueError) as error:
            raise ValueError(f"{text!r} is not a list such as [a, b]") from error
        value = document.value
        if not isinstance(value, YamlList) or not _is_list(value):
            raise ValueError(f"{text!r} is not a list such as [a, b]")
        words = [_one(one) for one in value if isinstance(one, Single)]
    else:
        words = [one.strip() for one in text.split(",")] if text else []
    for number, one in enumerate(words):
        items.lines[number] = default.line
        items.append(_like_any(default, one))
    return items


def _like_any(default: YamlList, text: str) -> Single:
    """Parses an item of a list whose items have one type or several types."""
    if not default or any(isinstance(one, str) for one in default):
        return text
    like = default[0]
    assert isinstance(like, Single)  # certain, because `_is_list` was true for the default
    value = _like(like, text)
    assert isinstance(value, Single)
    return value


def _one(word: Single) -> str:
    if isinstance(word, bool):
        return str(word).lower()
    return word if isinstance(word, str) else word.text


def _shown(value: Word | None) -> str | tuple[str, ...] | None:
    if isinstance(value, YamlList):
        return tuple(_one(item) for item in value if isinstance(item, Single))
    return None if value is None else _one(value)


def _given(value: Word) -> Given:
    if isinstance(value, YamlList):
        return tuple(_plain(item) for item in value if isinstance(item, Single))
    return _plain(value)


def _plain(value: Single) -> str | int | float | bool:
    match value:
        case YamlInteger():
            return int(value)
        case YamlFloat():
            return float(value)
    return value


def _copy(fields: YamlMapping, items: Mapping[str, Value]) -> YamlMapping:
    copy = YamlMapping(fields.line)
    copy.lines = dict(fields.lines)
    copy.update(items)
    return copy
