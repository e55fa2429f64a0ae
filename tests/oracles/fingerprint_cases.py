"""Random edits of a project, each with the jobs whose fingerprints it must change, and no others."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from gridmill.control.steps.provenance import provenance_of
from gridmill.control.steps.source_listing import NOTHING, list_sources
from gridmill.declarations import read_pipeline
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.provenance import Provenance
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import JobState, RunState
from gridmill.storage.bundle import make_bundle
from gridmill.storage.root import StorageRoot
from tests.sim.test_races import simulation

ALL_CODE = frozenset({"clean", "own", "ranks"})
"""Jobs whose code is the whole folder."""
FILES = {
    ".gitignore": "*.tmp\nscratch/\n",
    "data/1.csv": "day,shop,sold\n2024-01-01,a,1\n",
    "data/2.csv": "day,shop,sold\n2024-01-02,b,2\n",
    "shops.csv": "shop,town\na,x\n",
    "src/clean.py": "import helper\n",
    "src/helper.py": "A = 1\n",
    "src/train.py": "print('learns')\n",
    "narrow.py": "print('narrow')\n",
    "lib/a/b.py": "B = 1\n",
    "tool.py": "print('tool')\n",
    "requirements.txt": "six==1.16.0\n",
    "README.md": "Read me.\n",
}
READERS: Mapping[str, frozenset[str]] = {
    "data/1.csv": frozenset({"sales"}),
    "data/2.csv": frozenset({"sales"}),
    "shops.csv": frozenset({"shops"}),
    "src/clean.py": ALL_CODE,
    "src/helper.py": ALL_CODE,
    "src/train.py": ALL_CODE,
    "README.md": ALL_CODE,
    "narrow.py": ALL_CODE | {"narrow"},
    "lib/a/b.py": ALL_CODE | {"narrow"},
    "tool.py": ALL_CODE | {"packed"},
    "requirements.txt": ALL_CODE | {"packed"},
}


def declared() -> dict[str, Any]:
    """A pipeline with every kind of job."""
    return {
        "pipeline": "p",
        "description": "first",
        "parameters": {"x": 1, "y": 20, "unused": "a"},
        "jobs": {
            "sales": {"sink": {"source": "data/*.csv", "columns": {"sold": "float", "day": "timestamp"}}},
            "shops": {"sink": {"source": "shops.csv"}},
            "rows": {
                "dataset": {
                    "basis": {"table": "sales", "time": "day", "entity": ["shop"]},
                    "lags": [{"column": "sold", "steps": [1, 2]}],
                    "label": {"column": "sold", "horizon": "1d"},
                    "split": {"validation": 0.2, "test": 0.2},
                }
            },
            "trees": {"training": {"dataset": "rows", "model": "gbdt", "trees": "${y}"}},
            "own": {
                "training": {
                    "dataset": "rows",
                    "model": "custom",
                    "script": "src/train.py",
                    "options": {"depth": "${x}"},
                }
            },
            "read": {"prediction": {"dataset": "rows", "models": ["trees"]}},
            "clean": {"needs": ["sales"], "command": "python src/clean.py ${x}"},
            "narrow": {"command": {"run": "python narrow.py", "inputs": ["narrow.py", "lib/**/*.py"]}},
            "packed": {
                "command": {"run": "python tool.py", "inputs": ["tool.py"], "environment": "requirements.txt"}
            },
            "ranks": {"command": {"run": "echo", "workers": 2, "env": {"B": "2", "A": "1"}}},
        },
    }


@dataclass
class Project:
    """A folder with code, data and a pipeline file, and a home beside it."""

    place: Path
    random: Random
    declared: dict[str, Any] = field(default_factory=declared)
    name: str = "project"

    @property
    def folder(self) -> Path:
        return self.place / self.name

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.yaml"

    def make(self) -> None:
        for name, text in FILES.items():
            self.write(name, text)
        self.save()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def save(self) -> None:
        """The pipeline file: its keys in any order, with any white space and comments."""
        lines = json.dumps(_shuffled(self.declared, self.random), indent=self.random.randint(1, 4)).split(
            "\n"
        )
        marks = (
            f"# {self.random.random()}\n{line}" if self.random.random() < 0.2 else line for line in lines
        )
        self.file.write_text("\n".join(marks) + "\n" * self.random.randint(1, 3))

    def read(self) -> tuple[Pipeline, Mapping[str, Provenance]]:
        """What each job is made from, its inputs aside."""
        home, pipeline = self.place / "home", read_pipeline(self.file)
        bundle = make_bundle(self.folder, home / "bundles", hashes=home / "cache" / "code.json")
        control = simulation().node.control
        control.storage = control.code.storage = StorageRoot(self.place / "root", home / "bundles")
        run = Run(
            id="p-1",
            pipeline="p",
            order=1,
            state=RunState.ACTIVE,
            created=0.0,
            folder=pipeline.folder,
            bundle=bundle.hash,
            data=pipeline.loads,
            file=pipeline.file,
        )
        listings = list_sources(control.storage, pipeline.jobs, pipeline.folder, 0.0)
        found = {}
        for job in pipeline.jobs:
            job_run = JobRun(
                id=f"p-1/{job.name}",
                run_id="p-1",
                pipeline="p",
                job=job,
                order=0,
                state=JobState.BLOCKED,
                resource="",
            )
            source = listings.get(job.name, NOTHING).files_or_raise()
            found[job.name] = provenance_of(control.code, run, job_run, (), source)
        return pipeline, found

    def some_file(self) -> str:
        return self.random.choice(sorted(READERS))


def _shuffled(value: Any, random: Random) -> Any:
    if not isinstance(value, dict):
        return value
    keys = list(value)
    random.shuffle(keys)
    return {key: _shuffled(value[key], random) for key in keys}


Edit = Callable[[Project], frozenset[str]]
NONE: frozenset[str] = frozenset()


def touch(project: Project) -> frozenset[str]:
    at = project.random.randint(1, 2_000_000_000)
    os.utime(project.folder / project.some_file(), (at, at))
    return NONE


def write_again(project: Project) -> frozenset[str]:
    path = project.folder / project.some_file()
    text, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()
    path.write_bytes(text)
    path.chmod(mode)
    return NONE


def close_to_others(project: Project) -> frozenset[str]:
    path = project.folder / project.some_file()
    path.chmod(path.stat().st_mode ^ 0o044)
    return NONE


def write_the_declaration_otherwise(project: Project) -> frozenset[str]:
    project.save()
    return NONE


def move_the_folder(project: Project) -> frozenset[str]:
    before, project.name = project.folder, f"moved {project.random.random()}"
    before.rename(project.folder)
    return NONE


def ignored_file(project: Project) -> frozenset[str]:
    project.write(project.random.choice(("x.tmp", "scratch/a.py")), str(project.random.random()))
    return NONE


def rules(project: Project) -> frozenset[str]:
    project.write(".gitignore", f"{FILES['.gitignore']}# {project.random.random()}\n")
    return NONE


def empty_folder(project: Project) -> frozenset[str]:
    (project.folder / f"empty{project.random.randint(1, 3)}").mkdir(exist_ok=True)
    return NONE


def other_pipeline(project: Project) -> frozenset[str]:
    project.write("other.yml", f"pipeline: other\njobs:\n  a: {{command: echo {project.random.random()}}}\n")
    return NONE


def another_job(project: Project) -> frozenset[str]:
    seed = project.random.randint(1, 10**9)
    project.declared["jobs"]["another"] = {"training": {"dataset": "rows", "model": "gbdt", "seed": seed}}
    project.save()
    return frozenset({"another"})


def how_it_is_executed(project: Project) -> frozenset[str]:
    job = project.declared["jobs"][project.random.choice(sorted(declared()["jobs"]))]
    job |= project.random.choice(
        ({"retries": project.random.randint(0, 9)}, {"timeout": "1h"}, {"memory": "1GiB"}, {"rows": 7})
    )
    project.save()
    return NONE


def unused_parameter(project: Project) -> frozenset[str]:
    project.declared["parameters"]["unused"] = str(project.random.random())
    project.declared["description"] = str(project.random.random())
    project.save()
    return NONE


def environment_variable(project: Project) -> frozenset[str]:
    os.environ["GRIDMILL_TEST_OF_FINGERPRINTS"] = str(project.random.random())
    return NONE


def content(project: Project) -> frozenset[str]:
    name = project.some_file()
    before = (project.folder / name).read_text()
    project.write(name, f"{before}# {project.random.random()}\n")
    return READERS[name]


def same_size_and_time(project: Project) -> frozenset[str]:
    name = project.some_file()
    path = project.folder / name
    status, text = path.stat(), path.read_text()
    path.write_text(text.replace("\n", "_", 1) if "\n" in text else text.replace("_", "\n", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return READERS[name]


def new_code(project: Project) -> frozenset[str]:
    folder = project.random.choice(("src", "lib"))
    project.write(f"{folder}/new{project.random.random()}.py", "")
    return ALL_CODE | ({"narrow"} if folder == "lib" else NONE)


def new_data(project: Project) -> frozenset[str]:
    project.write(f"data/{project.random.random()}.csv", FILES["data/1.csv"])
    return frozenset({"sales"})


def executable(project: Project) -> frozenset[str]:
    name = project.random.choice(("src/clean.py", "narrow.py"))
    path = project.folder / name
    path.chmod(path.stat().st_mode ^ 0o100)
    return READERS[name]


def parameter(project: Project) -> frozenset[str]:
    name = project.random.choice("xy")
    project.declared["parameters"][name] += 1
    project.save()
    return frozenset({"clean", "own"} if name == "x" else {"trees"})


def declaration(project: Project) -> frozenset[str]:
    jobs, number = project.declared["jobs"], project.random.randint(100, 10**9)
    name, edit = project.random.choice(
        (
            ("rows", lambda job: job["dataset"]["lags"][0].update(steps=[1, number])),
            ("sales", lambda job: job["sink"].update(add={"origin": str(number)})),
            ("trees", lambda job: job["training"].update(seed=number)),
            ("read", lambda job: job["prediction"].update(shards=number)),
            ("ranks", lambda job: job["command"]["env"].update(A=str(number))),
            ("narrow", lambda job: job["command"].update(run=f"python narrow.py {number}")),
        )
    )
    edit(jobs[name])
    project.save()
    return frozenset({name})


UNRELATED: tuple[Edit, ...] = (
    *(touch, write_again, close_to_others, write_the_declaration_otherwise, move_the_folder, ignored_file),
    *(rules, empty_folder, other_pipeline, how_it_is_executed, unused_parameter, environment_variable),
)
RELATED: tuple[Edit, ...] = (
    *(content, same_size_and_time, new_code, new_data, executable, parameter, declaration, another_job),
)


def case(seed: int, folder: Path) -> None:
    """A project that is edited twenty times. Raises AssertionError."""
    random = Random(seed)
    project = Project(folder, random)
    project.make()
    _, before = project.read()
    for _ in range(20):
        edit = random.choice(random.choice((UNRELATED, RELATED)))
        expected = edit(project)
        _, after = project.read()
        changed = {
            name
            for name in after
            if name not in before or before[name].fingerprint != after[name].fingerprint
        }
        assert changed == expected, f"{edit.__name__}: {sorted(changed)} changed, not {sorted(expected)}"
        before = after
