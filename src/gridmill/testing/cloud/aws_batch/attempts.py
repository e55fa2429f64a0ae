"""The attempts of jobs: start, end and retries.

Sources: https://docs.aws.amazon.com/batch/latest/userguide/job_states.html,
https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html,
https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html,
https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html, for nodes
https://docs.aws.amazon.com/batch/latest/userguide/job-lifecycle.html, and for the texts
https://aws.amazon.com/blogs/compute/introducing-retry-strategies-for-aws-batch/
"""

from collections.abc import Sequence

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.aws_batch.records import Attempt, Instance, Job, Status
from gridmill.testing.cloud.aws_batch.retries import is_retried
from gridmill.testing.cloud.aws_batch.world import World

EXITED = "Essential container in task exited"
TIMED_OUT = "Job attempt duration exceeded timeout"
NOT_STARTED = "Task failed to start"
CHILD_FAILED = "Array Child Job failed"
MAIN_EXITED = "Main node exited"
GRACE_SECONDS = 30.0
"""How long a container has between SIGTERM and SIGKILL."""


def host_terminated(instance_id: str) -> str:
    """Returns the reason of an attempt whose instance ended."""
    return f"Host EC2 (instance {instance_id}) terminated."


# start


def begin(world: World, job: Job, placed: Sequence[Job]) -> None:
    """Plans the start of a job that has a place, or of the main node of a job with nodes."""
    for one in placed:
        instance = world.instances.get(one.instance_id)
        if instance is not None and instance.launched_at == one.placed_at and instance.jobs == (one.id,):
            _plan_end(world, instance)
    if job.is_gang:
        world.update(replace(job, status_reason=""), world.now())
    ready = max(_ready_at(world, one) for one in placed)
    first = placed[job.main_node] if job.is_gang else placed[0]
    world.agenda.at(ready, lambda at: _starting(world, first.id, first.task, at))


def _ready_at(world: World, job: Job) -> float:
    instance = world.instances.get(job.instance_id)
    placed_at = job.placed_at or 0.0
    return placed_at if instance is None else max(placed_at, instance.ready_at)


def _plan_end(world: World, instance: Instance) -> None:
    """Chooses a random end time for a new instance."""
    faults, at = world.faults, instance.launched_at
    reclaim = faults.death_after(faults.spot_lifetime_seconds) if instance.is_spot else None
    if reclaim is not None:
        world.agenda.at(at + reclaim, lambda then: reclaim_instance(world, instance.id, then))
    death = faults.death_after(faults.lifetime_seconds)
    if death is not None:
        world.agenda.at(at + death, lambda then: break_instance(world, instance.id, then))


def _present(world: World, job_id: str, task: str) -> Job | None:
    """Returns a job if its present attempt is the one with the given task, otherwise None."""
    job = world.jobs.get(job_id)
    return job if job is not None and job.task == task and not job.status.is_over else None


def _starting(world: World, job_id: str, task: str, at: float) -> None:
    job = _present(world, job_id, task)
    if job is None or job.status != Status.RUNNABLE:
        return
    job = replace(job, status=Status.STARTING, status_reason="")
    world.update(job, at)
    _mirror(world, job, at)
    if world.faults.never_starting_next > 0:
        world.faults.never_starting_next -= 1
        return
    world.agenda.at(at + world.faults.starting_seconds, lambda then: _running(world, job_id, task, then))


def _running(world: World, job_id: str, task: str, at: float) -> None:
    job = _present(world, job_id, task)
    if job is None or job.status != Status.STARTING:
        return
    image = world.images.get(job.container.image)
    if image is None:
        reason = f"CannotPullContainerError: failed to resolve ref {job.container.image}: not found"
        finish(world, job, at, exit_code=None, reason=reason, status_reason=NOT_STARTED)
        return
    job = replace(job, status=Status.RUNNING, started_at=at)
    world.update(job, at)
    command = tuple(_substituted(word, dict(job.parameters)) for word in job.container.command)
    environment = dict(job.container.environment) | _own_variables(world, job)
    world.containers.start(
        task, image, command, environment, lambda _, code: _exited(world, job_id, task, code)
    )
    if job.timeout_seconds is not None and not job.is_node:
        world.agenda.at(at + job.timeout_seconds, lambda then: _time_out(world, job_id, task, then))
    if job.is_node:
        _main_runs(world, job, at)


def _main_runs(world: World, node: Job, at: float) -> None:
    parent = _mirror(world, node, at)
    if parent is None:
        return
    for other in world.latest(parent):
        if other.id != node.id and other.task:
            _starting(world, other.id, other.task, at)
    if parent.timeout_seconds is not None:
        until = at + parent.timeout_seconds
        world.agenda.at(until, lambda then: _time_out(world, node.id, node.task, then))


def _mirror(world: World, node: Job, at: float) -> Job | None:
    """Copies the state of the main node to its job, and returns the job. For other jobs it does nothing."""
    if not node.is_node:
        return None
    parent = world.find(node.parent)
    if node.index != parent.main_node:
        return None
    parent = replace(
        parent,
        status=node.status,
        status_reason=node.status_reason,
        task=node.task,
        started_at=node.started_at,
        exit_code=node.exit_code,
        reason=node.reason,
    )
    world.update(parent, at)
    return parent


def _substituted(word: str, parameters: dict[str, str]) -> str:
    """Replaces the placeholders `Ref::name` of a command.

    Source: https://docs.aws.amazon.com/batch/latest/userguide/job_definition_parameters.html#parameters
    """
    return parameters.get(word.removeprefix("Ref::"), word) if word.startswith("Ref::") else word


def _own_variables(world: World, job: Job) -> dict[str, str]:
    found = {
        "AWS_BATCH_CE_NAME": job.environment,
        "AWS_BATCH_JOB_ATTEMPT": str(len(job.attempts) + 1),
        "AWS_BATCH_JOB_ID": job.id,
        "AWS_BATCH_JQ_NAME": job.queue,
    }
    if job.is_node:
        parent = world.find(job.parent)
        found |= {
            "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(parent.main_node),
            "AWS_BATCH_JOB_NODE_INDEX": str(job.index),
            "AWS_BATCH_JOB_NUM_NODES": str(len(parent.nodes)),
        }
        if job.index != parent.main_node:
            found["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "127.0.0.1"
    elif job.parent:
        found["AWS_BATCH_JOB_ARRAY_INDEX"] = str(job.index)
        found["AWS_BATCH_JOB_ARRAY_SIZE"] = str(world.find(job.parent).size)
    return found


# end


def _exited(world: World, job_id: str, task: str, code: int) -> None:
    with world.lock:
        at = world.settle()
        job = _present(world, job_id, task)
        instance = world.instances.get(job.instance_id) if job is not None else None
        if job is not None and not (instance is not None and instance.is_dead):
            finish(world, job, at, exit_code=code, reason="", status_reason=EXITED)
            world.settle()


def finish(
    world: World, job: Job, at: float, *, exit_code: int | None, reason: str, status_reason: str
) -> None:
    """Ends the present attempt of a job, and the job if it is not retried."""
    status_reason = job.end_reason or status_reason
    attempt = Attempt(
        started_at=job.started_at,
        stopped_at=at,
        status_reason=status_reason,
        exit_code=exit_code,
        reason=reason,
        log_stream=job.log_stream,
        task=job.task,
        instance_id=job.instance_id,
    )
    world.release(job, at)
    job = replace(
        job,
        attempts=(*job.attempts, attempt),
        status_reason=status_reason,
        exit_code=exit_code,
        reason=reason,
        stopped_at=at,
    )
    has_succeeded = exit_code == 0 and not job.end_reason
    is_again = not has_succeeded and not job.end_reason and is_retried(job.retry, job.attempts)
    if job.is_node:
        _finish_node(world, job, at, has_succeeded, is_again)
    elif is_again:
        world.wait(_waiting_again(job), at)
    else:
        _over(world, job, at, has_succeeded)


def _waiting_again(job: Job) -> Job:
    return replace(
        job, task="", instance_id="", environment="", placed_at=None, started_at=None, stopped_at=None,
        exit_code=None, reason="",
    )  # fmt: skip


def _over(world: World, job: Job, at: float, has_succeeded: bool) -> None:
    world.update(replace(job, status=Status.SUCCEEDED if has_succeeded else Status.FAILED), at)
    if job.parent and not job.is_node:
        _child_over(world, job.parent, at)


def _child_over(world: World, parent_id: str, at: float) -> None:
    world.open_children[parent_id] -= 1
    if world.open_children[parent_id]:
        return
    parent = world.find(parent_id)
    has_failed = any(one.status == Status.FAILED for one in world.latest(parent))
    world.update(
        replace(
            parent,
            status=Status.FAILED if has_failed else Status.SUCCEEDED,
            status_reason=parent.end_reason or (CHILD_FAILED if has_failed else ""),
            stopped_at=at,
        ),
        at,
    )


def _finish_node(world: World, node: Job, at: float, has_succeeded: bool, is_again: bool) -> None:
    parent = world.find(node.parent)
    if node.index != parent.main_node:
        # The end of another node has no consequence for the job.
        _over(world, node, at, has_succeeded)
        return
    for other in world.latest(parent):
        if other.id != node.id and not other.status.is_over:
            _stop_node(world, other, at)
    parent = replace(
        parent, attempts=node.attempts, status_reason=node.status_reason, exit_code=node.exit_code,
        reason=node.reason, stopped_at=at, task=node.task,
    )  # fmt: skip
    world.update(node, at)
    if is_again:
        for one in tuple(world.latest(parent)):
            world.wait(_waiting_again(one), at, enters=False)
        world.wait(_waiting_again(parent), at)
        return
    _over(world, node, at, has_succeeded)
    _over(world, parent, at, has_succeeded)


def _stop_node(world: World, node: Job, at: float) -> None:
    task = node.task
    world.containers.stop(task)
    world.agenda.at(at + GRACE_SECONDS, lambda _: world.containers.kill(task))
    world.release(node, at)
    attempt = Attempt(
        started_at=node.started_at, stopped_at=at, status_reason=MAIN_EXITED, exit_code=None, reason="",
        log_stream=node.log_stream, task=task, instance_id=node.instance_id,
    )  # fmt: skip
    world.update(
        replace(
            node,
            status=Status.FAILED,
            status_reason=MAIN_EXITED,
            attempts=(*node.attempts, attempt),
            stopped_at=at,
        ),
        at,
    )


# requests and faults


def cancel(world: World, job: Job, reason: str, at: float, *, terminates: bool = False) -> None:
    """Cancels a job that has not started. With `terminates`, a job that has started is ended, too. A job that
    is over stays as it is."""
    if job.status.is_over or job.is_terminated or (job.is_cancelled and not terminates):
        return
    if job.is_array:
        world.update(_marked(job, reason, terminates), at)
        for child in tuple(world.latest(job)):
            cancel(world, child, reason, at, terminates=terminates)
    elif job.is_gang and job.status.is_placed:
        if terminates:
            world.update(_marked(job, reason, terminates), at)
            main = world.find(f"{job.id}#{job.main_node}")
            cancel(world, main, reason, at, terminates=True)
    elif not job.status.is_placed:
        world.update(_marked(job, reason, terminates), at)
        world.agenda.at(at + world.faults.cancel_seconds, lambda then: _cancelled(world, job.id, then))
    elif terminates:
        _end(world, _marked(job, reason, terminates), at)


def _marked(job: Job, reason: str, terminates: bool) -> Job:
    if terminates:
        return replace(job, is_terminated=True, end_reason=reason)
    return replace(job, is_cancelled=True, end_reason=reason)


def _cancelled(world: World, job_id: str, at: float) -> None:
    job = world.find(job_id)
    if job.status.is_over:
        return
    if job.status.is_placed:  # it has started in the meantime
        if job.is_terminated:
            _end(world, job, at)
        else:
            world.update(replace(job, is_cancelled=False, end_reason=""), at)
        return
    world.waiting.pop(job.id, None)
    for one in (*world.latest(job), job):
        if not one.status.is_over:
            world.release(one, at)
            over = replace(one, status_reason=job.end_reason, stopped_at=at, task="", instance_id="")
            _over(world, over, at, has_succeeded=False)
    world.needs_scheduling()


def _end(world: World, job: Job, at: float) -> None:
    """Ends a job that has a place, without a retry. `job.end_reason` is shown."""
    world.update(job, at)
    if job.status == Status.STARTING:
        finish(world, job, at, exit_code=None, reason="", status_reason=job.end_reason)
        return
    world.containers.stop(job.task)
    task = job.task
    world.agenda.at(at + GRACE_SECONDS, lambda _: world.containers.kill(task))


def _time_out(world: World, job_id: str, task: str, at: float) -> None:
    job = _present(world, job_id, task)
    if job is not None and job.status == Status.RUNNING and not job.end_reason:
        _end(world, replace(job, end_reason=TIMED_OUT), at)


def reclaim_instance(world: World, instance_id: str, at: float) -> None:
    """Gives a Spot instance its notice. It is terminated when the notice has passed."""
    instance = world.instances.get(instance_id)
    if instance is not None and instance.is_spot:
        end = at + world.faults.notice_seconds
        world.agenda.at(end, lambda then: terminate_instance(world, instance_id, then))


def break_instance(world: World, instance_id: str, at: float) -> None:
    """Breaks a machine. Its processes end at once, and AWS Batch sees it some time later."""
    instance = world.instances.get(instance_id)
    if instance is None or instance.is_dead:
        return
    world.instances[instance_id] = replace(instance, is_dead=True)
    for job_id in instance.jobs:
        world.containers.kill(world.find(job_id).task)
    lost_at = at + world.faults.lost_after_seconds
    world.agenda.at(lost_at, lambda then: terminate_instance(world, instance_id, then))


def terminate_instance(world: World, instance_id: str, at: float) -> None:
    """Ends an instance and the attempts on it."""
    instance = world.instances.get(instance_id)
    if instance is None:
        return
    for job_id in instance.jobs:
        job = world.find(job_id)
        world.containers.kill(job.task)
        if job.status == Status.RUNNABLE and not job.is_node:  # the instance was still booting
            world.release(job, at)
            world.wait(_waiting_again(job), at)
            continue
        finish(world, job, at, exit_code=None, reason="", status_reason=host_terminated(instance_id))
    if instance_id in world.instances:
        world.end_instance(world.instances[instance_id], at)
