"""This module has the use cases of versions and their aliases."""

from gridmill.control.ledger import Transaction
from gridmill.control.removable import check_removal, plan_removal, removed_uris
from gridmill.control.steps.latest import note_set
from gridmill.control.steps.lineage import code_of, names_of, version_view
from gridmill.control.steps.promotions import moved_alias, note_user_decision
from gridmill.control.steps.references import best_by, find_alias, find_version, versions_of
from gridmill.control.usecases.base import UseCases
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind, check_alias, split_reference
from gridmill.domain.comparison import (
    LAST,
    ArtifactQuery,
    ModelComparison,
    Preview,
    VersionDiff,
    check_models,
    differences,
    key_of_rows,
    references_of,
    side_by_side,
)
from gridmill.domain.frozen import replace
from gridmill.domain.metrics import read_metric
from gridmill.domain.naming import suggestion
from gridmill.domain.promotion import Promotion, approved, expired, refused, returned
from gridmill.domain.run import Attempt
from gridmill.domain.version_manifest import VerificationResult, manifest_uri
from gridmill.domain.views import RemovalPreview, VersionView
from gridmill.errors import InputError, NotFoundError, StaleVersionError, explained
from gridmill.plugins import find
from gridmill.ports.pages import PAGE_ITEMS, Page, page_request
from gridmill.ports.store import Order


class VersionUseCases(UseCases):
    """The use cases of versions of sinks, datasets, models, predictions and files."""

    def artifacts(
        self,
        *,
        kind: ArtifactKind | None = None,
        name: str | None = None,
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[Artifact]:
        """Return the versions that are not removed, newest first."""
        request = page_request(int, "artifacts", limit, cursor, kind, name)
        return self._page_by_position(
            Artifact,
            request,
            Order.NEWEST_FIRST,
            parent=name,
            selects=lambda one: not one.removed and kind in (None, one.kind),
        )

    def artifact(self, artifact_id: str) -> Artifact:
        """Return a version by its number or an alias. A name without a number or alias means the newest
        version."""
        with self._node.lock:
            return find_version(self._control.catalog, artifact_id)

    def version(self, artifact_id: str) -> VersionView:
        """Return a version with its names and its lineage."""
        with self._node.lock:
            return version_view(self._control.catalog, artifact_id)

    def aliases(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alias]:
        """Return the aliases that users have set."""
        request = page_request(tuple, "aliases", limit, cursor, name)
        return self._page_by_key(Alias, request, parent=name)

    def set_alias(self, alias: Alias, *, expected: int | None = None) -> Alias:
        """Set an alias of a version, or move it to another version."""
        check_alias(alias)
        with self._node.changing() as transaction:
            if alias.number is not None:
                self._check_alive(f"{alias.name}@{alias.number}")
            else:
                self._check_measured(alias)
            before = find_alias(self._ledger, alias.id)
            if expected is not None and (before.number if before else 0) != expected:
                raise StaleVersionError(_moved(alias, before, expected))
            if before is not None:
                self._ledger.fetch(Alias, alias.id)
            promotion = expired(before.promotion, transaction.now) if before is not None else None
            kept = replace(alias, changed=transaction.now, promotion=promotion)
            transaction.put(kept)
            note_set(self._control.storage, self._control.problems, transaction, before, kept)
        return kept

    def _check_alive(self, artifact_id: str) -> None:
        artifact = find_version(self._control.catalog, artifact_id)
        if artifact.removed:
            raise NotFoundError(
                f"{artifact.id} was removed", hint="Choose a version that exists: `gridmill list artifacts`."
            )

    def _check_measured(self, alias: Alias) -> None:
        """Raise InputError if no version has the metric of a new alias, because otherwise the mistake would
        appear only when the alias is used."""
        find_version(self._control.catalog, alias.name)
        metric = read_metric(alias.metric)[0]
        metric_names = {
            name for version in versions_of(self._ledger, alias.name) for name in version.output.metrics
        }
        if metric not in metric_names:
            hint = suggestion(metric, metric_names, f"Known metrics are {', '.join(sorted(metric_names))}.")
            raise InputError(f"no version of {alias.name!r} was measured by {metric!r}", hint=hint)

    def remove_alias(self, alias_id: str) -> None:
        """Delete an alias of a version. The call also succeeds if the alias does not exist."""
        with self._node.changing() as transaction:
            self._delete_alias(transaction, alias_id)

    def promote_alias(self, alias_id: str) -> Alias:
        """Move an alias to the version that waits for approval."""
        with self._node.changing() as transaction:
            before = self._ledger.fetch(Alias, alias_id)
            promotion = approved(before.promotion, alias_id, before.version, transaction.now)
            return self._move_alias(transaction, before, promotion.measured.candidate, promotion)

    def rollback_alias(self, alias_id: str) -> Alias:
        """Refuse the version that waits for approval, or return an alias to the version before."""
        with self._node.changing() as transaction:
            before = self._ledger.fetch(Alias, alias_id)
            if before.promotion is None or not before.promotion.is_waiting:
                promotion = returned(before.promotion, alias_id, before.version, transaction.now)
                return self._move_alias(transaction, before, promotion.measured.serving, promotion)
            after = replace(before, promotion=refused(before.promotion, alias_id, transaction.now))
            transaction.put(after)
            note_user_decision(transaction, after)
            return after

    def _move_alias(
        self, transaction: Transaction, before: Alias, version: str, promotion: Promotion
    ) -> Alias:
        self._check_alive(version)
        after = moved_alias(before.id, version, promotion, transaction.now)
        transaction.put(after)
        note_set(self._control.storage, self._control.problems, transaction, before, after)
        note_user_decision(transaction, after)
        return after

    def _delete_alias(self, transaction: Transaction, alias_id: str) -> None:
        before = find_alias(self._ledger, alias_id)
        if before is not None:
            self._ledger.fetch(Alias, alias_id)
            transaction.delete(Alias, alias_id)
            note_set(self._control.storage, self._control.problems, transaction, before, None)

    def preview(self, artifact_id: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """Return the first rows of a version, or its files."""
        one = self._existing(artifact_id)
        root = self._control.storage.location
        seen = find("looks", "process")(ArtifactQuery(root=root, artifact=one, rows=rows, rejects=rejects))
        preview: Preview = seen.preview
        return preview

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """Return the differences between two versions."""
        old, new = self.artifact(before), self.artifact(after)
        made = VersionDiff(before=old.id, after=new.id, differences=tuple(differences(old, new)))
        shared = key or key_of_rows(new)
        why = _rows_why_not(old, new, shared, key or key_of_rows(old))
        if why:
            return replace(made, rows_why=why)
        root = self._control.storage.location
        question = ArtifactQuery(
            root=root, artifact=self._existing(old.id), other=self._existing(new.id), key=shared
        )
        try:
            return replace(made, rows=find("looks", "process")(question).changes)
        except InputError as error:
            if key:
                raise
            return replace(made, rows_why=explained(error))

    def verify(self, reference: str = "") -> tuple[VerificationResult, ...]:
        """Read the whole content of versions, and compare it with their manifests. The method does not hold
        the node's lock while it reads."""
        name, number = split_reference(reference)
        if number:
            return tuple(self._control.storage.verify([self._existing(reference)]))
        kept = (one for one in self._list(Artifact, newest_first=True) if not one.removed)
        versions_to_check = [
            one for one in kept if not name or name in (one.name, one.name.partition("/")[0])
        ]
        if name and not versions_to_check:
            raise NotFoundError(f"there is no {name!r}", hint="See `gridmill list artifacts`.")
        return tuple(self._control.storage.verify(reversed(versions_to_check)))

    def compare(self, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """Compare versions of a model, side by side."""
        control = self._control
        with self._node.lock:
            if versions or "@" in name:
                artifacts = [find_version(control.catalog, one) for one in references_of(name, versions)]
            else:
                artifacts = [
                    *reversed(versions_of(control.ledger, find_version(control.catalog, name).name)[:LAST])
                ]
            models = check_models(artifacts, name)
            views = [
                VersionView(
                    artifact=one, names=names_of(control.catalog, one), bundle=code_of(control.ledger, one)
                )
                for one in models
            ]
            seconds = {one.id: took for one in models if (took := self._seconds(one)) is not None}
            return side_by_side(views, seconds, best_by(control.ledger, models[0].name))

    def _seconds(self, artifact: Artifact) -> float | None:
        """Return the duration of the attempt that made the version, in seconds. The result is None if the
        attempt no longer has a record."""
        record = self._ledger.store.get(Attempt, artifact.attempt_id)
        attempt = record.noun if record is not None and isinstance(record.noun, Attempt) else None
        return attempt.use.wall_seconds if attempt is not None and attempt.use is not None else None

    def _existing(self, artifact_id: str) -> Artifact:
        one = self.artifact(artifact_id)
        if one.removed:
            raise NotFoundError(f"{one.id} was removed", hint="Its record is kept: `gridmill show`.")
        return one

    def remove_artifact(
        self, artifact_id: str, *, force: bool = False, dry_run: bool = False
    ) -> RemovalPreview:
        """Delete the content of one version or of all versions of a name. The records of these versions are
        kept as removed, for the lineage."""
        if dry_run:
            with self._node.lock:
                return plan_removal(self._control.catalog, artifact_id)[0]
        return self._remove(artifact_id, force=force)

    def _remove(self, artifact_id: str, *, force: bool = False, of_table: bool = False) -> RemovalPreview:
        with self._node.changing() as transaction:
            plan, versions = plan_removal(self._control.catalog, artifact_id, of_table=of_table)
            check_removal(plan, force=force)
            for version in versions:
                transaction.put(replace(self._ledger.fetch(Artifact, version.id), removed=True))
            for alias_id in plan.aliases:
                self._delete_alias(transaction, alias_id)
            self._control.catalog.newest_artifacts.pop(versions[0].name, None)
            self._control.catalog.versions.clear()
        for uri in removed_uris(self._ledger, versions):  # without the lock, because it may take long
            self._control.storage.remove(uri)
        for version in versions:
            self._control.storage.remove(manifest_uri(version.name, version.number))
        return plan


_TABLES = (ArtifactKind.SINK, ArtifactKind.DATASET, ArtifactKind.PREDICTION)


def _rows_why_not(old: Artifact, new: Artifact, key: tuple[str, ...], old_key: tuple[str, ...]) -> str:
    if old.kind not in _TABLES or new.kind not in _TABLES:
        return (
            "the two versions have no rows"
            if old.kind == new.kind
            else "the two versions are not of the same kind"
        )
    if old.removed or new.removed:
        return "one of the two versions was removed"
    if not key or key != old_key:
        return "name the columns that identify a row: --key COLUMN,COLUMN"
    return ""


def _moved(alias: Alias, before: Alias | None, expected: int) -> str:
    stands = f"names version {before.number or f'best by {before.metric}'}" if before else "is not set"
    return f"{alias.id} {stands}; version {expected or 'none'} was expected"
