"""How far learning has come, on disk: whole or not at all, and read by the next attempt of the same job."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

NAME = "checkpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Tensors by name, and facts as JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, number: int) -> None:
    """Make it the newest of `folder`, and remove the others.

    The tensors are written first, under a name of their own; the JSON file that names them is put in place by
    a rename. Whoever is killed in between leaves the one before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"state-{number}.safetensors"
    tensors = {key: value.detach().cpu().contiguous() for key, value in checkpoint.tensors.items()}
    _write(folder / name, to_safetensors(tensors))
    content = {"torch": str(torch.__version__), "state": name, "facts": dict(checkpoint.facts)}
    _write(folder / f".{NAME}.partial", json.dumps(content).encode())
    (folder / f".{NAME}.partial").replace(folder / NAME)
    for old in folder.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest one; None where there is none, or one of another PyTorch or one that cannot be read (it says
    so): learning then begins anew."""
    try:
        content = json.loads((folder / NAME).read_bytes())
        if content["torch"] != str(torch.__version__):
            print(f"the checkpoint is of PyTorch {content['torch']}: beginning anew", flush=True)
            return None
        tensors = from_safetensors((folder / content["state"]).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"the checkpoint cannot be read ({error}): beginning anew", flush=True)
        return None
    return Checkpoint(tensors=tensors, facts=content["facts"])
