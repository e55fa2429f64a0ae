"""The command `import model` makes a version of a model from an ONNX file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.session import Json, emit, session
from gridmill.domain.amounts import show_count


class Importable(StrEnum):
    """The kinds of versions that `import` makes."""

    MODEL = "model"


def import_noun(
    context: typer.Context,
    noun: Annotated[
        Importable, typer.Argument(metavar="model", help="What is imported.", show_default=False)
    ],
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the model. Its versions are NAME/model@1, ..."),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE.onnx", help="The model, as an ONNX file.")],
    signature: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML or JSON file with the features and the predictions. Default: the names in FILE.onnx.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV or JSON file with rows, of which up to 20 are stored with their predictions.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make a version of a model from an ONNX file, for services and prediction jobs.

    Gridmill checks the file and computes it once. If the same files were imported before, the command changes
    nothing and prints their version.
    """
    del noun
    with session(context) as client:
        imported = client.import_model(name, file, signature=signature, samples=samples)
        version = imported.version
    details = version.artifact.output.details
    if json:
        facts = {name: details[name] for name in ("features", "predicts", "imported")}
        return emit({"version": version.id, "new": imported.is_new, **facts})
    if not imported.is_new:
        return print(f"{version.id} has the same files; nothing was changed")
    golden = details["imported"]["golden_rows"]
    print(f"{version.id} imported from {file}: {details['predicts']}")
    print(f"  features: {', '.join(details['features'])}")
    return print(f"  {show_count(golden, 'golden row')}" if golden else "  no golden rows (--samples FILE)")
