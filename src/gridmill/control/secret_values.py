"""This module reads the values of secrets from the store (ports.secrets.Secrets), and finds the records that
refer to a secret."""

from collections.abc import Mapping

from gridmill.control.ledger import Ledger
from gridmill.domain.frozen import dataclass
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.secret import Secret, names_in
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


def users_of_secrets(ledger: Ledger) -> Mapping[str, tuple[str, ...]]:
    """Return the records that refer to each secret, as text such as `pipeline weather`. The caller holds the
    node's lock."""
    users: dict[str, dict[str, None]] = {}
    texts = [
        (f"pipeline {one.name}", job.secret_texts) for one in ledger.read_all(Pipeline) for job in one.jobs
    ]
    for job_run in ledger.snapshot.job_runs.values():
        texts.append((f"run {job_run.run_id}", job_run.job.secret_texts))
    texts += [(f"site {site.name}", tuple(site.settings.values())) for site in ledger.snapshot.sites.values()]
    for user, some in texts:
        for name in names_in(some):
            users.setdefault(name, {})[user] = None
    return {name: tuple(found) for name, found in users.items()}
