"""Defines the contextual features of a service.

`python -m gridmill.online.define` reads a `FeatureQuestion` from standard input, stores the definition below
the storage root, and writes a `FeatureAnswer` to standard output.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gridmill.codec import decode, encode, fingerprint
from gridmill.domain.frozen import replace
from gridmill.domain.service_features import (
    FeatureAnswer,
    FeatureDefinition,
    FeatureQuestion,
    features_folder,
)
from gridmill.domain.storage_uri import below
from gridmill.errors import GridmillError, to_body
from gridmill.online.definition import OnlineDefinition, define_online
from gridmill.online.features import check_rules
from gridmill.telemetry import turn_off_telemetry


def define(question: FeatureQuestion) -> FeatureAnswer:
    """Store the definition of the features. Raises InputError that names each feature that cannot be computed
    by key, StorageError."""
    root, settings = Path(question.root), question.settings
    made = define_online(
        question.dataset,
        question.spec,
        question.inputs,
        root,
        columns=question.columns,
        sent=settings.sent,
        sequence=question.sequence,
        rules=settings.rules,
        policy=settings.policy,
    )
    check_rules(made.rules, made.plan)
    if not made.is_needed:
        return FeatureAnswer()
    base = features_folder(question.service)
    view = f"view-{_hash(made.plan.fingerprint, made.units, settings.reach_back_seconds)}"
    made = replace(made, view=f"../{view}")
    definition = f"definition-{_hash(made)}"
    made.save(below(root, f"{base}/{definition}"))
    _remove_others(below(root, base), (f"{base}/{definition}", f"{base}/{view}", *question.kept))
    return FeatureAnswer(definition=_described(made, f"{base}/{definition}", f"{base}/{view}", question))


def _described(
    made: OnlineDefinition, folder: str, view: str, question: FeatureQuestion
) -> FeatureDefinition:
    names = question.table_names()
    return FeatureDefinition(
        folder=folder,
        view=view,
        tables={name: names[name] for name in made.plan.tables},
        request=dict(made.plan.request),
    )


def _hash(*parts: object) -> str:
    return fingerprint(*parts)[:16]


def _remove_others(base: Path, kept: Sequence[str]) -> None:
    """Delete the folders of definitions and views that no version of the service needs."""
    names = {uri.rpartition("/")[2] for uri in kept}
    for folder in base.iterdir():
        if folder.name not in names:
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
