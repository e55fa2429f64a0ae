"""This module reads the values of secrets from the store (ports.secrets.Secrets), and finds the records that
refer to a secret."""

from collections.abc import Iterable, Mapping

from gridmill.control.ledger import Ledger
from gridmill.domain.frozen import dataclass
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.secret import Secret, names_in, reference_to
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import NotFoundError
from gridmill.ports.secrets import Vault


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSecrets:
    """The secrets in the store of a control node, with the vault that decrypts them. Every method can be
    called from any thread, and values are never kept in memory."""

    ledger: Ledger
    vault: Vault

    def resolve(self, name: str) -> str:
        """Return the present value of a secret. See ports.secrets.Secrets."""
        record = self.ledger.store.get(Secret, name)
        if record is None or not isinstance(record.noun, Secret):
            raise NotFoundError(f"there is no secret {name!r}", hint=f"To add it: gridmill add secret {name}")
        return self.vault.decrypt(record.noun)


def _named_directly(site: Site) -> tuple[str, ...]:
    """Return the settings of a cloud site whose value is the name of a secret."""
    if site.kind is not SiteKind.CLOUD:
        return ()
    return tuple(name for name in site.settings if name.endswith(("_key", "_token", "secret")))


def users_of_secrets(ledger: Ledger) -> Mapping[str, tuple[str, ...]]:
    """Return the records that refer to each secret, as text such as `pipeline weather`. The caller holds the
    node's lock."""
    users: dict[str, dict[str, None]] = {}

    def note(user: str, texts: Iterable[str]) -> None:
        for name in names_in(texts):
            users.setdefault(name, {})[user] = None

    for pipeline in ledger.read_all(Pipeline):
        for job in pipeline.jobs:
            note(f"pipeline {pipeline.name}", job.secret_fields.values())
    for job_run in ledger.snapshot.job_runs.values():
        note(f"run {job_run.run_id}", job_run.job.secret_fields.values())
    for site in ledger.snapshot.sites.values():
        note(f"site {site.name}", site.settings.values())
        # a cloud provider names a secret directly, for example `secret_access_key: NAME`
        note(f"site {site.name}", (reference_to(site.settings[name]) for name in _named_directly(site)))
    return {name: tuple(found) for name, found in users.items()}
