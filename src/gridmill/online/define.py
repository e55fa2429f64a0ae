"""Defines the contextual features of a service.

`python -m gridmill.online.define` reads a `FeatureQuestion` from standard input, stores the definition below
the storage root, and writes a `FeatureAnswer` to standard output.
"""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gridmill.codec import decode, encode, fingerprint
from gridmill.domain.frozen import replace
from gridmill.domain.service_features import (
    FeatureAnswer,
    FeatureDefinition,
    FeatureQuestion,
    FeatureStage,
    features_folder,
)
from gridmill.domain.storage_uri import below
from gridmill.errors import GridmillError, to_body
from gridmill.online.chain import (
    check_names,
    check_single_label,
    chosen_rows,
    predicted_features,
    sent_features,
)
from gridmill.online.chain_rows import save_chain_rows
from gridmill.online.definition import OnlineDefinition, define_online
from gridmill.online.features import check_rules
from gridmill.telemetry import turn_off_telemetry

RECENT_SECONDS = 3600.0
"""A folder of a definition or a view is kept for this time after its last change."""


def define(question: FeatureQuestion) -> FeatureAnswer:
    """Store the definition of the features, and those of the stages. Raises InputError that names each
    feature that cannot be computed by key, StorageError."""
    definition = _define(question)
    if definition is None:
        return FeatureAnswer()
    if question.stages:
        check_names(question, definition)
    parts = (uri for part in definition.all_definitions() for uri in (part.folder, part.view))
    base = below(Path(question.root), features_folder(question.service))
    _remove_others(base, (*parts, *question.kept))
    return FeatureAnswer(definition=definition)


def _define(question: FeatureQuestion) -> FeatureDefinition | None:
    root, settings = Path(question.root), question.settings
    is_chain = question.is_stage or bool(question.stages)
    predicted = predicted_features(question)
    # in a chain, the settings of the service are about the features of several versions
    sent = sent_features(question) if is_chain else settings.sent
    made = define_online(
        question.dataset,
        question.spec,
        question.inputs,
        root,
        columns=question.columns,
        sent=(*sent, *(name for columns in predicted.values() for name in columns)),
        sequence=question.sequence,
        rules=settings.rules,
        policy=settings.policy,
    )
    if is_chain:
        rules = {name: rule for name, rule in made.rules.items() if name in made.plan.computed}
        made = replace(made, rules=rules)
    check_rules(made.rules, made.plan)
    stages = tuple(_stages(question, predicted, frozenset(made.plan.sent)))
    if not (made.is_needed or stages or question.is_stage):
        return None
    return _saved(question, made, stages)


def _saved(
    question: FeatureQuestion, made: OnlineDefinition, stages: tuple[FeatureStage, ...]
) -> FeatureDefinition:
    root, base = Path(question.root), features_folder(question.service)
    view = f"view-{_hash(made.plan.fingerprint, made.units, question.settings.reach_back_seconds)}"
    made = replace(made, view=f"../{view}")
    folder = f"{base}/definition-{_hash(made, stages)}"
    made.save(below(root, folder))
    if (rows := chosen_rows(question, stages)) is not None:
        save_chain_rows(below(root, folder), rows)
    names = question.table_names()
    predicted = {name for stage in stages for name in stage.columns}
    request = {name: kind for name, kind in made.plan.request.items() if name not in predicted}
    for stage in stages:
        request = {**stage.definition.request, **request}
    return FeatureDefinition(
        folder=folder,
        view=f"{base}/{view}",
        tables={name: names[name] for name in made.plan.tables},
        request=request,
        stages=stages,
    )


def _stages(
    question: FeatureQuestion, predicted: Mapping[str, Mapping[str, str]], read: frozenset[str]
) -> Iterator[FeatureStage]:
    """Yield the stages whose predictions the model reads, with their definitions."""
    for stage in {one.version.id: one for one in question.stages}.values():
        columns = {name: of for name, of in predicted[stage.version.id].items() if name in read}
        if not columns:
            continue
        check_single_label(stage.version, columns)
        definition = _define(stage.question)
        assert definition is not None
        yield FeatureStage(version=stage.version.id, columns=columns, definition=definition)


def _hash(*parts: object) -> str:
    return fingerprint(*parts)[:16]


def _remove_others(base: Path, kept: Sequence[str]) -> None:
    """Delete the folders of definitions and views that no version of the service needs. A folder that was
    changed lately may belong to another question about the same service, whose answer is not recorded yet."""
    names = {uri.rpartition("/")[2] for uri in kept}
    for folder in base.iterdir():
        with suppress(FileNotFoundError):  # the answer to another question has deleted it
            is_old = time.time() - folder.stat().st_mtime > RECENT_SECONDS
            if folder.name not in names and is_old:
                shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Answer one question."""
    turn_off_telemetry()
    question = decode(sys.stdin.buffer.read(), FeatureQuestion)
    try:
        answer = define(question)
    except GridmillError as error:
        answer = FeatureAnswer(error=to_body(error))
    sys.stdout.buffer.write(encode(answer))


if __name__ == "__main__":
    main()
