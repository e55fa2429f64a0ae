"""The classic pattern on Slurm with TensorFlow 2: a server per task, variables on the parameter server.

Each worker builds the same graph and learns at its own pace; the parameter server ends when all have said
that they are done.
"""

import os
from contextlib import suppress

import tensorflow as tf
from cluster_spec import cluster_spec

STEPS = 100
v1 = tf.compat.v1
v1.disable_eager_execution()

cluster, job, index = cluster_spec(os.environ)
server = tf.distribute.Server(cluster, job_name=job, task_index=index)
with tf.device("/job:ps/task:0"):
    done = tf.queue.FIFOQueue(len(cluster["worker"]), tf.int32, shared_name="done")

if job == "ps":
    with v1.Session(server.target, config=v1.ConfigProto(device_filters=["/job:ps"])) as session:
        for _ in cluster["worker"]:
            session.run(done.dequeue())
    print(f"ps {index}: all workers are done", flush=True)
else:
    where = v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")
    with v1.device(where):
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("weight", shape=(), initializer=v1.zeros_initializer())
        inputs = tf.random.normal((32,), seed=index)
        loss = tf.reduce_mean((weight * inputs - 3.0 * inputs) ** 2)
        learn = v1.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=step)
        say_done = done.enqueue(index)
    hooks = [v1.train.StopAtStepHook(last_step=STEPS)]
    # without it a session waits for every worker, also for those that have done and ended
    alone = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    found = 0.0
    with v1.train.MonitoredTrainingSession(
        server.target, is_chief=index == 0, hooks=hooks, config=alone
    ) as session:
        while not session.should_stop():
            _, found = session.run([learn, weight])
    print(f"worker {index} of {len(cluster['worker'])}: weight {found:.2f}", flush=True)
    heard = (tf.errors.UnavailableError, tf.errors.AbortedError)  # it has ended before it answered
    with v1.Session(server.target, config=alone) as session, suppress(*heard):
        session.run(say_done)
