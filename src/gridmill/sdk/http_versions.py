"""The use cases of versions over HTTP."""

from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from gridmill.codec import decode, encode
from gridmill.errors import InputError
from gridmill.model.alias import Alias
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.compared import ModelComparison
from gridmill.model.look import Preview, VersionDiff
from gridmill.model.parcel import Moved
from gridmill.model.space import HISTORY_DAYS, Usage, Waste
from gridmill.model.stored import Verified
from gridmill.model.view import Removal, RunRemoval, VersionView

T = TypeVar("T")


class Sender(Protocol):
    """Sends requests to a control node."""

    def _get(self, path: str, kind: type[T], /, **asked: Any) -> T: ...  # noqa: ANN401  query values

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: dict[str, Any] | None = None,
        media: str = "application/json",
    ) -> bytes: ...


class HttpVersions:
    """Implements gridmill.ports.versions for a class that can `_get` and `_send`."""

    def artifacts(
        self: Sender, *, kind: ArtifactKind | None = None, name: str | None = None
    ) -> tuple[Artifact, ...]:
        """See Versions."""
        return self._get("/artifacts", tuple[Artifact, ...], kind=kind and kind.value, name=name)

    def artifact(self: Sender, artifact_id: str) -> Artifact:
        """See Versions."""
        return self._get(f"/artifacts/{quoted(artifact_id)}", Artifact)

    def version(self: Sender, artifact_id: str) -> VersionView:
        """See Versions."""
        return self._get(f"/versions/{quoted(artifact_id)}", VersionView)

    def preview(self: Sender, artifact_id: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """See Versions."""
        return self._get(f"/previews/{quoted(artifact_id)}", Preview, rows=rows, rejects=rejects)

    def diff(self: Sender, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """See Versions."""
        return self._get("/diffs", VersionDiff, before=before, after=after, key=list(key))

    def compare(self: Sender, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """See Versions."""
        return self._get(f"/comparisons/{quoted(name)}", ModelComparison, version=list(versions))

    def verify(self: Sender, reference: str = "") -> tuple[Verified, ...]:
        """See Versions."""
        return decode(self._send("POST", "/verify", params={"reference": reference}), tuple[Verified, ...])

    def remove_artifact(
        self: Sender, artifact_id: str, *, force: bool = False, dry_run: bool = False
    ) -> Removal:
        """See Versions."""
        asked = {"force": force, "dry_run": dry_run}
        return decode(self._send("DELETE", f"/artifacts/{quoted(artifact_id)}", params=asked), Removal)

    def backup(self: Sender, pipelines: tuple[str, ...], path: str) -> Moved:
        """See Projects."""
        asked = {"pipeline": list(pipelines), "path": path}
        return decode(self._send("POST", "/backup", params=asked), Moved)

    def restore(self: Sender, path: str) -> Moved:
        """See Projects."""
        return decode(self._send("POST", "/restore", params={"path": path}), Moved)

    def usage(self: Sender) -> tuple[Usage, ...]:
        """See Housekeeping."""
        return self._get("/usage", tuple[Usage, ...])

    def clean(self: Sender, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[Waste, ...]:
        """See Housekeeping."""
        asked = {"days": days, "dry_run": dry_run}
        return decode(self._send("POST", "/clean", params=asked), tuple[Waste, ...])

    def remove_run(self: Sender, run_id: str, *, dry_run: bool = False) -> RunRemoval:
        """See Housekeeping."""
        return decode(
            self._send("DELETE", f"/runs/{quoted(run_id)}", params={"dry_run": dry_run}), RunRemoval
        )

    def aliases(self: Sender, *, name: str | None = None) -> tuple[Alias, ...]:
        """See Versions."""
        return self._get("/aliases", tuple[Alias, ...], name=name)

    def set_alias(self: Sender, alias: Alias, *, expected: int | None = None) -> Alias:
        """See Versions."""
        path = f"/aliases/{quoted(alias.id)}"
        return decode(self._send("PUT", path, body=encode(alias), params={"expected": expected}), Alias)

    def remove_alias(self: Sender, alias_id: str) -> None:
        """See Versions."""
        self._send("DELETE", f"/aliases/{quoted(alias_id)}")


def quoted(name: str) -> str:
    """A name in a path; "." and ".." would be folded away by HTTP clients and are refused."""
    if name.strip("./") == "":
        raise InputError(f"{name!r} is no name")
    return quote(name, safe="/@") if "/" in name else quote(name, safe="@")
