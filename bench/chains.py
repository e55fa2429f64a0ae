"""The same pipeline in five tools: a chain of no-op steps, each needing the one before.

Each function gives the text of a file as that tool's documentation would have one write it.
"""


def gridmill(steps: int) -> str:
    """Every step is a process of its own: `true`. Unchanged steps are not skipped: it is run with --force."""
    lines = ["pipeline: chain", "jobs:"]
    for number in range(steps):
        needs = f"needs: step{number - 1}, " if number else ""
        lines.append(f'  step{number}: {{{needs}command: "true"}}')
    return "\n".join(lines) + "\n"


def metaflow(steps: int) -> str:
    """A flow begins with `start` and finishes with `end`; Metaflow runs each step as a process."""
    names = ["start", *(f"step{number}" for number in range(1, steps - 1)), "end"]
    lines = ["from metaflow import FlowSpec, step", "", "", "class Chain(FlowSpec):"]
    for name, after in zip(names, [*names[1:], None], strict=True):
        body = f"self.next(self.{after})" if after else "pass"
        lines += ["    @step", f"    def {name}(self):", f"        {body}", ""]
    return "\n".join([*lines, 'if __name__ == "__main__":', "    Chain()", ""])


def prefect(steps: int) -> str:
    """Prefect runs tasks inside the flow's process and reports each to its server."""
    return f"""\
from prefect import flow, task


@task
def step(before):
    return before


@flow
def chain():
    value = 0
    for _ in range({steps}):
        value = step(value)


if __name__ == "__main__":
    chain()
"""


def dagster(steps: int) -> str:
    """The default executor runs each op as a process."""
    return f"""\
from dagster import In, Nothing, Out, job, op


@op(out=Out(Nothing))
def first():
    pass


@op(ins={{"before": In(Nothing)}}, out=Out(Nothing))
def step():
    pass


@job
def chain():
    value = first()
    for number in range(1, {steps}):
        value = step.alias(f"step{{number}}")(before=value)
"""


def luigi(steps: int) -> str:
    """Luigi's one worker runs every task inside the one process."""
    return f"""\
import luigi


class Step(luigi.Task):
    number = luigi.IntParameter()
    done = False

    def requires(self):
        return [Step(number=self.number - 1)] if self.number else []

    def run(self):
        self.done = True

    def complete(self):
        return self.done


if __name__ == "__main__":
    if not luigi.build([Step(number={steps} - 1)], local_scheduler=True, workers=1):
        raise SystemExit(1)
"""
