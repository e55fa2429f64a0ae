"""The table of commands. The module of a command is imported only when the command is called."""

import shlex
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gridmill.cli.examples import shown
from gridmill.cli.invocation import invocation
from gridmill.errors import InputError
from gridmill.version import __version__

COMMANDS = {
    "run": ("gridmill.cli.run:run", "Run a pipeline and show its progress."),
    "plan": ("gridmill.cli.plan:plan", "Show what a run would do: jobs, reasons, sizes, time."),
    "validate": ("gridmill.cli.validate:validate", "Check a pipeline file and its data."),
    "init": ("gridmill.cli.init:init", "Write a small working pipeline with its data."),
    "apply": ("gridmill.cli.plan:apply", "Store a pipeline and its resources without running it."),
    "backfill": ("gridmill.cli.backfill:backfill", "Run a pipeline over a range of time."),
    "resume": ("gridmill.cli.run:resume", "Continue a failed or stopped run."),
    "stop": ("gridmill.cli.run:stop", "Stop a run or a job, or pause a schedule."),
    "start": ("gridmill.cli.run:start", "Start a run, a schedule, a backfill or a service."),
    "update": ("gridmill.cli.services:update", "Change the version or the replicas of a service."),
    "promote": (
        "gridmill.cli.services:promote",
        "Accept the canary of a service, or a new version for an alias.",
    ),
    "rollback": ("gridmill.cli.services:rollback", "Return a service or an alias to the version before."),
    "status": ("gridmill.cli.status:status", "Show the state of the grid or of a run."),
    "logs": ("gridmill.cli.logs:logs", "Print the logs of jobs."),
    "show": ("gridmill.cli.show:show", "Show one run, job, resource, model, ..."),
    "list": ("gridmill.cli.show:list_all", "List runs, resources, models, ..."),
    "costs": ("gridmill.cli.leases:costs", "Show the cost of rented machines."),
    "preview": ("gridmill.cli.artifacts:preview", "Show the first rows or the files of a version."),
    "diff": ("gridmill.cli.artifacts:diff", "Show the differences between two versions."),
    "verify": ("gridmill.cli.verify:verify", "Compare the files of versions with their stored hashes."),
    "compare": ("gridmill.cli.artifacts:compare", "Compare versions of a model."),
    "du": ("gridmill.cli.disk:du", "Show used disk space."),
    "clean": ("gridmill.cli.disk:clean", "Delete old versions, leftovers and history."),
    "predict": ("gridmill.cli.predict:predict", "Predict many rows with the version of a service."),
    "export": ("gridmill.cli.export:export", "Write the rows of a version, or a model, to a file."),
    "path": ("gridmill.cli.export:path", "Print the folder of a version."),
    "backup": ("gridmill.cli.archive:backup", "Write pipelines with their versions into an archive."),
    "restore": ("gridmill.cli.archive:restore", "Restore the pipelines of an archive."),
    "import": ("gridmill.cli.imports:import_noun", "Make a version of a model from an ONNX file."),
    "recover": ("gridmill.cli.recover:recover", "Restore lost records from the storage root."),
    "build": ("gridmill.cli.images:build", "Build an image for rented machines."),
    "offers": ("gridmill.cli.offers:offers", "List machines that can be rented, with their prices."),
    "reap": ("gridmill.cli.reap:reap", "Find and end rented machines, without a home."),
    "ssh": ("gridmill.cli.ssh:ssh", "Open a shell on a rented machine."),
    "remove": ("gridmill.cli.remove:remove", "Delete a resource, pipeline, run, version, ..."),
    "add": ("gridmill.cli.sites:add", "Add a site, a cloud provider or a secret."),
    "nodes": ("gridmill.cli.sites:nodes", "Show provider nodes and what runs there."),
    "configure": (
        "gridmill.cli.configure:configure",
        "Create or change a resource, a site, a project or an alias.",
    ),
    "alter": (
        "gridmill.cli.configure:alter",
        "Change settings of a resource, or parts of a sink.",
    ),
    "advise": ("gridmill.cli.advise:advise", "Recommend a number of workers for a job."),
    "report": ("gridmill.cli.run:report", "Write the report of a run."),
    "schema": ("gridmill.cli.plan:schema", "Print the JSON Schema of pipeline files."),
    "up": ("gridmill.cli.up:up", "Start the control node with its REST API, or a farm."),
    "down": ("gridmill.cli.up:down", "Stop the control node."),
    "farm": ("gridmill.cli.farm:farm", "Manage the tenants of the farm on this machine."),
    "join": ("gridmill.cli.join:join", "Make this machine a provider node of a grid."),
    "doctor": ("gridmill.cli.doctor:doctor", "Check this machine: Python, folders, limits, packages."),
    "version": ("gridmill.cli.doctor:version", "Print the version."),
}


class LazyGroup(TyperGroup):
    """The group of all commands of Gridmill. The group stores the name and the help line of each command.
    The group imports the module of a command only when the command is resolved."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  Typer's own
        super().__init__(**settings)
        for name, (_, line) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  Typer's own
        """Return the command itself instead of its placeholder in the group."""
        args = as_one(args)
        refuse_renamed(args)
        name, stub, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else stub, rest


RENAMED = {"import": "restore"}
"""The former names of commands. `import model` is a command of its own."""


def refuse_renamed(words: list[str]) -> None:
    """Raise InputError if the words begin with the former name of a command."""
    new = RENAMED.get(words[0]) if words else None
    if words[:2] == ["import", "model"] or all(word[:1] == "-" for word in words[1:]):
        return
    if new is not None:
        again = shlex.join(["gridmill", new, *words[1:]])
        raise InputError(f"`gridmill {words[0]}` is now `gridmill {new}`", hint=f"Write `{again}`.")


def as_one(words: list[str]) -> list[str]:
    """Replace the words `start backfill` by the command `backfill`, because its options differ from the
    options of `start`."""
    return words[1:] if words[:2] == ["start", "backfill"] else words


def load(name: str) -> Any:  # noqa: ANN401  Typer's own
    """Import and return the command with this name."""
    module, _, function = COMMANDS[name][0].partition(":")
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command(name, epilog=shown(name))(getattr(import_module(module), function))
    return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gridmill {__version__}")
        raise typer.Exit


@app.callback()
def gridmill(
    context: typer.Context,
    home: Annotated[
        Path | None, typer.Option(help="Folder of the grid. Default: GRIDMILL_HOME, else ~/.gridmill.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Call the control node at http://HOST:PORT.")] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Run machine learning pipelines, from raw data to predictions, on one machine or many.

    Each command has --json. `gridmill COMMAND --help` shows the options and examples of a command.
    """
    context.obj = replace(invocation(context), home=home, url=url)
