"""Manifests beside the artifacts of earlier releases stay readable, whatever becomes of the store."""

import json
from pathlib import Path

import pytest
from tests.kit.lost_fields import lost

from gridmill.codec import decode, encode
from gridmill.domain.version_manifest import AliasMove, VersionManifest

GOLDEN = Path(__file__).parents[1] / "golden"
MANIFESTS = sorted(GOLDEN.glob("manifests-*/*.json"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_manifest_of_an_earlier_release_reads_back(path: Path):
    manifest = decode(path.read_bytes(), VersionManifest)
    assert lost(json.loads(path.read_text()), json.loads(encode(manifest))) == []


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("manifests-*/*.jsonl")), ids=lambda path: path.stem)
def test_the_moves_of_aliases_of_an_earlier_release_read_back(path: Path):
    for line in path.read_text().splitlines():
        assert lost(json.loads(line), json.loads(encode(decode(line.encode(), AliasMove)))) == []
