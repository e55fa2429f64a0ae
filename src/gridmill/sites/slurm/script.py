"""Builds the scripts that run on the cluster, as texts: the batch script, the wrapper of a pod, and the
queries."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.frozen import dataclass
from gridmill.sites.slurm.parse import (
    CLOCK,
    MEMORY_SHARE,
    PARTITION,
    SACCT_FORMAT,
    SINFO_FORMAT,
    SQUEUE_FORMAT,
)
from gridmill.sites.slurm.settings import SlurmSettings

TIDY_DAYS = 7
"""The files of ended pods are deleted after this number of days."""
UNSEEN = 93
"""The exit status of `nodes` if the storage root is not visible on the cluster."""
REFUSED = 92
"""The exit status of `submit` if Slurm rejects the job. The message of Slurm is on standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """A deployment that will be submitted. `job` is the name of its Slurm job, by which the job is found
    later. The pods of the deployment are the tasks of the job, in the same order, and each pod has the size
    `capacity`. `folder` is the folder of the site on the cluster, and `python` is the Python program that
    runs the pods.
    """

    deployment_id: str
    job: str
    pods: tuple[str, ...]
    capacity: Amounts
    folder: str
    python: str
    variables: Mapping[str, str]
    node: str = ""
    """The name of the only node on which the job may run. If `node` is empty, Slurm selects the node."""


def batch_script(batch: BatchJob, wishes: SlurmSettings) -> str:
    """Returns the batch script for sbatch."""
    here = f"{batch.folder}/deployments/{batch.deployment_id}"
    lines = [f"#SBATCH {option}" for option in (*_options(batch, wishes, here), *map(_quoted, wishes.extra))]
    tasks = f"--ntasks={len(batch.pods)} --cpus-per-task={_cpus(batch)} --kill-on-bad-exit=0 --wait=0"
    return "\n".join(
        [
            "#!/bin/sh",
            *lines,
            "# One task for each pod; a pod that ends early does not end the others.",
            f"exec srun {tasks} sh {here}/pod.sh",
            "",
        ]
    )


def _options(batch: BatchJob, wishes: SlurmSettings, here: str) -> list[str]:
    own = {
        "job-name": batch.job,
        "comment": _quoted(f"Gridmill deployment {batch.deployment_id}"),
        "output": f"{here}/log",
        "open-mode": "append",
        "chdir": batch.folder,
    }
    names = [f"--{name}={value}" for name, value in own.items()]
    return [*names, *_requested(batch, wishes), "--no-requeue"]


def request(amounts: Amounts, pods: int, wishes: SlurmSettings) -> str:
    """Returns the options of sbatch for this number of pods of this size."""
    batch = BatchJob(
        deployment_id="", job="", pods=("",) * pods, capacity=amounts, folder="", python="", variables={}
    )
    return " ".join(["sbatch", *_requested(batch, wishes), *map(_quoted, wishes.extra)])


def _requested(batch: BatchJob, wishes: SlurmSettings) -> list[str]:
    options = {
        "ntasks": str(len(batch.pods)),
        "cpus-per-task": str(_cpus(batch)),
        "mem-per-cpu": f"{_memory_mib_per_cpu(batch)}M",
        "gpus-per-task": _gpus(batch, wishes),
        "nodelist": batch.node,
        "partition": wishes.partition,
        "account": wishes.account,
        "qos": wishes.qos,
        "time": str(ceil(wishes.time_limit_seconds / 60)) if wishes.time_limit_seconds else "",
    }
    return [f"--{name}={value}" for name, value in options.items() if value]


def _quoted(option: str) -> str:
    """Quotes an option for sbatch, which reads a script in the same way as a shell."""
    return shlex.quote(option)


def _cpus(batch: BatchJob) -> int:
    """Returns the number of CPUs, rounded up because Slurm assigns only complete CPUs."""
    return max(1, ceil(batch.capacity.cpus - 1e-9))


def _memory_mib_per_cpu(batch: BatchJob) -> int:
    """Returns the memory per CPU, because Slurm selects the nodes of tasks. The result includes the memory
    that the pod itself needs. The value is rounded down, because a pod that is as large as its node must
    still fit."""
    return max(1, int(batch.capacity.memory_bytes / MEMORY_SHARE / MIB / _cpus(batch) + 1e-6))


def _gpus(batch: BatchJob, wishes: SlurmSettings) -> str:
    kind = wishes.gres.partition(":")[2]
    count = batch.capacity.gpus
    return f"{kind}:{count}" if count and kind else str(count or "")


def pod_script(batch: BatchJob, wishes: SlurmSettings) -> str:
    """Returns the script of each task. The script claims its pod, runs it, and ends all processes that the
    pod left. Before a pod starts, mkdir makes the folder `claimed`, and only one process can make it. So a
    pod starts at most once, even if Slurm runs the script again. The mark file `signalled` records that
    Slurm asked the task to end.
    """
    variables = [f"export {name}={shlex.quote(value)}" for name, value in sorted(batch.variables.items())]
    python = shlex.quote(batch.python)
    return "\n".join(
        [
            "#!/bin/sh",
            f"set -- {' '.join(batch.pods)}",
            'shift "$SLURM_PROCID"',
            f"pod={batch.folder}/pods/$1",
            '[ -d "$pod" ] || { echo "$(hostname) does not see $pod" >&2; exit 3; }',
            '[ ! -e "$pod/ended" ] && mkdir "$pod/claimed" 2>/dev/null || exit 0',
            *variables,
            'export GRIDMILL_GPUS="${CUDA_VISIBLE_DEVICES:-}"',
            *([wishes.setup] if wishes.setup else []),
            "trap ': > \"$pod/signalled\"' TERM INT",
            f'{python} -P -m gridmill.pod "$pod" </dev/null >>"$pod/log" 2>&1 &',
            "child=$!",
            '( while [ ! -e "$pod/stop" ]; do sleep 1; done',
            '  kill -TERM "$child"; sleep 5; kill -KILL "$child" ) >/dev/null 2>&1 </dev/null &',
            "watcher=$!",
            'while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done',
            'kill -KILL "$watcher" 2>/dev/null',
            "trap '' TERM INT",  # the cleanup must not end together with the processes that it ends
            f'[ -e "$pod/ended" ] || {python} -P -m gridmill.pod.cleanup "$pod" >>"$pod/log" 2>&1 </dev/null',
            'exit "${code:-0}"',
            "",
        ]
    )


def submit(folder: str, deployment_id: str, job: str, pods: Sequence[str]) -> str:
    """Returns the script that submits a deployment, unless the deployment was submitted before. The script
    reads the files of the deployment as a tar archive from standard input.

    The script checks the queue first, because a crash may have happened after an earlier submission and
    before the submission was recorded. Pods that were torn down before the submission are already claimed.
    If all pods are claimed, the script submits nothing.
    """
    open_pods = " && ".join(f"[ -e pods/{pod}/claimed ]" for pod in pods)
    here = f"deployments/{deployment_id}"
    return f"""umask 077
mkdir -p {folder}/pods {folder}/deployments && cd {folder} || exit 1
[ -e {here}/submitted ] && exit 0
{open_pods} && exit 0
tar -xf - || exit 1
for mark in $(find pods -mindepth 2 -maxdepth 2 -name ended -mtime +{TIDY_DAYS}); do
  rm -rf "${{mark%/ended}}"
done
for old in $(find deployments -mindepth 1 -maxdepth 1 -mtime +{TIDY_DAYS}); do
  set -- pods/"${{old#deployments/}}".*; [ -e "$1" ] || rm -rf "$old"
done
known=$(squeue --noheader --states=all --user="$(id -un)" --name={job} --format=%A) || exit 1
if [ -z "$known" ]; then
  said=$(sbatch {here}/script 2>&1) || {{ echo "$said" >&2; exit {REFUSED}; }}
fi
: > {here}/submitted
"""


def bar(folder: str, pods: Iterable[str]) -> str:
    """Returns the script that prevents unstarted pods from starting, and marks these pods as ended."""
    return "\n".join([*_barred(folder, pods), "exit 0", ""])


def _barred(folder: str, pods: Iterable[str]) -> list[str]:
    lines = [
        f"mkdir -p pods/{pod}; mkdir pods/{pod}/claimed 2>/dev/null && : > pods/{pod}/ended" for pod in pods
    ]
    return ["umask 077", f"mkdir -p {folder}/pods && cd {folder} || exit 1", *lines]


def look(folder: str, pods: Sequence[str], jobs: Iterable[str]) -> str:
    """Returns the script that prints the cluster's time, the jobs with these names from one squeue, and the
    mark files of the pods."""
    marks = " ".join(
        f"pods/{pod}/{mark}" for pod in pods for mark in ("claimed", "stop", "signalled", "ended")
    )
    deployments = " ".join(
        f"deployments/{name}/{mark}"
        for name in dict.fromkeys(map(deployment_of, pods))
        for mark in ("script", "submitted")
    )
    return f"""export SLURM_TIME_FORMAT=%s
echo {CLOCK}$(date +%s)
squeue --noheader --states=all --user="$(id -un)" --name={",".join(jobs)} --Format='{SQUEUE_FORMAT}' || exit 1
cd {folder} 2>/dev/null || exit 0
ls -d {marks} {deployments} 2>/dev/null
exit 0
"""


def account(jobs: Iterable[str]) -> str:
    """Returns the script that runs one sacct for all jobs. The script fails if the cluster has no
    accounting."""
    names = ",".join(jobs)
    which = f'--user="$(id -un)" --name={names} --starttime=now-7days'
    return f"sacct --noheader --parsable2 --noconvert {which} --format={SACCT_FORMAT}\n"


def nodes(root_mark: str) -> str:
    """Returns the script that prints all nodes, and then all partitions. The script ends with the status
    UNSEEN if the given file in the storage root does not exist on the cluster."""
    seen = f"[ -e {shlex.quote(root_mark)} ] || exit {UNSEEN}\n"
    partitions = f"sinfo --all --noheader --format='{PARTITION}%P'\n"
    return f"{seen}sinfo --all --Node --noheader --format='{SINFO_FORMAT}' || exit 1\n{partitions}"


def tear_down(folder: str, pods: Sequence[str], jobs: Mapping[str, str]) -> str:
    """Returns the script that asks pods to end, and cancels the Slurm jobs of these pods that still wait in
    the queue. The keys of `jobs` are deployments.

    The pods check for the file `stop` themselves, so they end even if Slurm does not answer.
    """
    stop_lines = [f": > pods/{pod}/stop" for pod in pods]
    cancelled = ["status=0", *_cancel(jobs, "--state=PENDING "), "exit $status", ""]
    return "\n".join([*_barred(folder, pods), *stop_lines, *cancelled])


KILL = "--signal=KILL --full "
"""The options of `cancel` that end the Slurm job immediately, including its batch script."""


def cancel(folder: str, jobs: Mapping[str, str], options: str = "") -> str:
    """Returns the script that cancels the Slurm jobs all of whose pods have ended or were asked to stop."""
    return "\n".join([f"cd {folder} || exit 1", "status=0", *_cancel(jobs, options), "exit $status", ""])


def _cancel(jobs: Mapping[str, str], options: str) -> list[str]:
    """Returns the commands that cancel Slurm jobs by name, because Slurm may reuse job numbers."""
    return [
        f"""stay=0
for pod in $(cat deployments/{deployment_id}/pods 2>/dev/null); do
  [ -e "pods/$pod/stop" ] || [ -e "pods/$pod/ended" ] || stay=1
done
[ $stay = 1 ] || scancel {options}--user="$(id -un)" --name={job} || status=1"""
        for deployment_id, job in jobs.items()
    ]


def finish(folder: str, pods: Iterable[str]) -> str:
    """Returns the script that marks these pods as permanently ended."""
    lines = [f"mkdir pods/{pod}/claimed 2>/dev/null; : > pods/{pod}/ended" for pod in pods]
    return "\n".join([f"cd {folder} || exit 1", *lines, "exit 0", ""])


def deployment_of(pod_id: str) -> str:
    """Returns the id of the pod's deployment, for example `trainers-3` for the pod `trainers-3.0`."""
    return pod_id.rpartition(".")[0]
