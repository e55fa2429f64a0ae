"""The tasks of jobs: start, end and retries, and the end of a job.

Sources: https://cloud.google.com/batch/docs/automate-task-retries,
https://cloud.google.com/batch/docs/set-timeouts, https://cloud.google.com/batch/docs/delete-job,
https://cloud.google.com/batch/docs/cancel-job, for the texts of events
https://cloud.google.com/batch/docs/troubleshooting, and for the variables
https://cloud.google.com/batch/docs/create-run-basic-job#environment-variables
"""

from collections.abc import Sequence

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.containers import Image
from gridmill.testing.cloud.gcp_batch.records import (
    Event,
    ExitCode,
    Job,
    JobState,
    Machine,
    Policy,
    Runnable,
    Task,
    TaskState,
)
from gridmill.testing.cloud.gcp_batch.world import STATUS_CHANGED, World

GRACE_SECONDS = 10.0
"""How long a container has between SIGTERM and SIGKILL. Batch documents no time; this is the default of
Docker."""
_SHELL = Image(entry_point=("/bin/sh", "-c"))
_NO_IMAGE = 125
"""The exit code of Docker if a container cannot be started."""
_REASONS = {
    ExitCode.PREEMPTED: " due to Spot VM preemption",
    ExitCode.VM_LOST: " due to Batch no longer receives VM updates",
    ExitCode.OVER_MAXIMUM: " due to task runs over the maximum runtime",
}


def _changed(world: World, task: Task, state: TaskState, at: float, code: int | None = None) -> Task:
    """Returns a task in a new state, with an event."""
    machine = world.machines.get(task.vm_id)
    zone = machine.zone if machine is not None else ""
    place = f" on zones/{zone}/instances/{task.vm_id}" if task.vm_id else ""
    cause = "" if code is None else f"{_REASONS.get(code, '')} with exit code {code}"
    event = Event(
        type=STATUS_CHANGED,
        description=f"Task state is updated from {task.state} to {state}{place}{cause}.",
        time=at,
        task_state=state,
        exit_code=code,
    )
    task = replace(task, state=state, events=(*task.events, event))
    world.update_task(task, at)
    return task


# start


def assign(world: World, task: Task, machine: Machine, now: float) -> None:
    """Plans the start of a task on its machine."""
    task = replace(task, vm_id=machine.id, run=world.new_id())
    world.update_task(task, now)
    if machine.created_at == now:
        _plan_end(world, machine)
    run = task.run
    world.agenda.at(max(now, machine.ready_at), lambda at: _assigned(world, task.name, run, at))


def _plan_end(world: World, machine: Machine) -> None:
    """Chooses a random end time for a new machine."""
    faults, at = world.faults, machine.created_at
    preemption = faults.death_after(faults.spot_lifetime_seconds) if machine.is_spot else None
    if preemption is not None:
        world.agenda.at(at + preemption, lambda then: preempt(world, machine.id, then))
    death = faults.death_after(faults.lifetime_seconds)
    if death is not None:
        world.agenda.at(at + death, lambda then: break_machine(world, machine.id, then))


def _present(world: World, name: str, run: str) -> Task | None:
    """Returns a task if its present container is the given one, otherwise None."""
    task = world.tasks.get(name)
    return task if task is not None and task.run == run and not task.state.is_over else None


def _assigned(world: World, name: str, run: str, at: float) -> None:
    task = _present(world, name, run)
    if task is None:
        return
    _changed(world, task, TaskState.ASSIGNED, at)
    if world.faults.never_starting_next > 0:
        world.faults.never_starting_next -= 1
        return
    world.agenda.at(at + world.faults.starting_seconds, lambda then: _running(world, name, run, then))


def _running(world: World, name: str, run: str, at: float) -> None:
    task = _present(world, name, run)
    if task is None:
        return
    task = _changed(world, task, TaskState.RUNNING, at)
    job = world.job(task.job)
    if job.state == JobState.SCHEDULED:
        world.set_state(job, JobState.RUNNING, at)
    if job.spec.max_run_seconds is not None:
        until = at + job.spec.max_run_seconds
        world.agenda.at(until, lambda then: _time_out(world, name, task.retries, then))
    _run_step(world, job, task, at)


def _run_step(world: World, job: Job, task: Task, at: float) -> None:
    runnable = job.spec.runnables[task.step]
    image = _image(world, runnable)
    if image is None:
        _ended(world, task, _NO_IMAGE, at)
        return
    environment = dict(job.spec.environment) | dict(runnable.environment) | _own_variables(job, task)
    name, run = task.name, task.run
    world.containers.start(
        run, image, runnable.command, environment, lambda _, code: _exited(world, name, run, code)
    )


def _image(world: World, runnable: Runnable) -> Image | None:
    if not runnable.image:
        return _SHELL
    image = world.images.get(runnable.image)
    if image is not None and runnable.entry_point:
        return replace(image, entry_point=(runnable.entry_point,))
    return image


def _own_variables(job: Job, task: Task) -> dict[str, str]:
    return {
        "BATCH_TASK_COUNT": str(job.spec.task_count),
        "BATCH_TASK_INDEX": str(task.index),
        "BATCH_TASK_RETRY_ATTEMPT": str(task.retries),
    }


# end


def _exited(world: World, name: str, run: str, code: int) -> None:
    with world.lock:
        at = world.settle()
        task = _present(world, name, run)
        machine = world.machines.get(task.vm_id) if task is not None else None
        if task is None or machine is None or machine.is_dead:
            return
        job = world.job(task.job)
        is_last = task.step + 1 == len(job.spec.runnables)
        if code == 0 and task.end_code is None and not is_last and not job.state.is_ending:
            task = replace(task, step=task.step + 1, run=world.new_id())
            world.update_task(task, at)
            _run_step(world, job, task, at)
        else:
            _ended(world, task, code if task.end_code is None else task.end_code, at)
        world.settle()


def _ended(world: World, task: Task, code: int, at: float) -> None:
    """Ends the present try of a task."""
    job = world.job(task.job)
    if job.state.is_ending:
        world.free(task, at)
        world.update_task(replace(task, run=""), at)
        _cleaned_up(world, job, at)
        return
    if code == 0:
        _changed(world, task, TaskState.SUCCEEDED, at, 0)
    else:
        failed = _changed(world, task, TaskState.FAILED, at, code)
        if _is_retried(job.spec.policies, code, task.retries, job.spec.max_retries):
            _retry(world, failed, at)
    world.free(task, at)
    _job_over(world, job.name, at)


def _is_retried(policies: Sequence[Policy], exit_code: int, retries: int, max_retries: int) -> bool:
    """Returns whether a task is retried that has ended with an exit code other than 0. The first policy that
    names the exit code decides. A failure that no policy names gets the opposite of their action, and is
    retried if there are no policies. `retries` is the number of retries so far."""
    if retries >= max_retries:
        return False
    for policy in policies:
        if exit_code in policy.exit_codes:
            return policy.retries
    return not any(policy.retries for policy in policies)


def _retry(world: World, task: Task, at: float) -> None:
    again = _changed(world, task, TaskState.PENDING, at)
    again = replace(again, retries=task.retries + 1, vm_id="", run="", step=0, end_code=None)
    world.update_task(again, at)
    world.wait(again)


def _job_over(world: World, name: str, at: float) -> None:
    """Ends a job whose tasks are all over."""
    job = world.job(name)
    tasks = list(world.latest(job))
    if not all(one.state.is_over for one in tasks):
        return
    failed = next((one for one in tasks if one.state == TaskState.FAILED), None)
    if failed is None:
        world.set_state(job, JobState.SUCCEEDED, at)
    else:
        world.set_state(job, JobState.FAILED, at, _why(failed))
    world.end_idle_machines(name, at)


def _why(task: Task) -> str:
    return (
        f"Job failed due to task failure. Specifically, task with index {task.index} failed due to the "
        f'following task event: "{task.events[-1].description}"'
    )


# requests and faults


def stop(world: World, job: Job, state: JobState, why: str, at: float) -> None:
    """Ends a job: the job gets the given state, and its tasks are stopped."""
    job = world.set_state(job, state, at, why)
    for name in list(world.tasks_of_waiting(job.name)):
        del world.waiting[name]
    for task in list(world.latest(job)):
        if task.run and not task.state.is_over:
            _stop_task(world, task, at)
    _cleaned_up(world, job, at)


def _stop_task(world: World, task: Task, at: float) -> None:
    if task.state == TaskState.RUNNING:
        run = task.run
        world.containers.stop(run)
        world.agenda.at(at + GRACE_SECONDS, lambda _: world.containers.kill(run))
        return
    world.free(task, at)
    world.update_task(replace(task, run=""), at)


def _cleaned_up(world: World, job: Job, at: float) -> None:
    """Completes the deletion or cancellation of a job that has no more running tasks."""
    if any(task.run and not task.state.is_over for task in world.latest(job)):
        return
    world.end_idle_machines(job.name, at)
    if job.state == JobState.CANCELLATION_IN_PROGRESS:
        job = world.set_state(job, JobState.CANCELLED, at)
    elif job.state == JobState.DELETION_IN_PROGRESS:
        world.forget(job.name, at)
    for name, operation in list(world.operations.items()):
        if operation.target == job.name and operation.ended_at is None:
            world.operations[name] = replace(operation, ended_at=at)


def _time_out(world: World, name: str, retries: int, at: float) -> None:
    task = world.tasks.get(name)
    if task is not None and task.state == TaskState.RUNNING and task.retries == retries:
        task = replace(task, end_code=ExitCode.OVER_MAXIMUM)
        world.update_task(task, at)
        _stop_task(world, task, at)


def preempt(world: World, machine_id: str, at: float) -> None:
    """Gives a Spot VM its notice. It is preempted when the notice has passed."""
    machine = world.machines.get(machine_id)
    if machine is not None and machine.is_spot:
        end = at + world.faults.notice_seconds
        world.agenda.at(end, lambda then: lose_machine(world, machine_id, ExitCode.PREEMPTED, then))


def break_machine(world: World, machine_id: str, at: float) -> None:
    """Breaks a machine. Its processes end at once, and Batch sees it some time later."""
    machine = world.machines.get(machine_id)
    if machine is None or machine.is_dead:
        return
    world.machines[machine_id] = replace(machine, is_dead=True)
    task = world.tasks.get(machine.task)
    if task is not None:
        world.containers.kill(task.run)
    lost_at = at + world.faults.lost_after_seconds
    world.agenda.at(lost_at, lambda then: lose_machine(world, machine_id, ExitCode.VM_LOST, then))


def lose_machine(world: World, machine_id: str, code: int, at: float) -> None:
    """Ends a machine, and the try of the task on it, which gets a reserved exit code."""
    machine = world.machines.get(machine_id)
    if machine is None:
        return
    task = world.tasks.get(machine.task)
    if task is not None and not task.state.is_over:
        world.containers.kill(task.run)
        _ended(world, task, code, at)
    if machine_id in world.machines:
        world.end_machine(world.machines[machine_id], at)
