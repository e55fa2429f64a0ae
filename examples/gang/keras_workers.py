"""An ordinary Keras script for several workers: each finds the others in TF_CONFIG, which `gridmill` sets.

As in TensorFlow's tutorial on multi-worker training with Keras, on points made here: their gradients are
averaged over all workers at each step, so that all keep the same weights. Keras 3 cannot do that: this wants
the package tf-keras, and TF_USE_LEGACY_KERAS=1 before TensorFlow is imported.
"""

import json
import os

import numpy as np
import tensorflow as tf

BATCH, STEPS, EPOCHS = 32, 20, 3
task = json.loads(os.environ["TF_CONFIG"])["task"]

strategy = tf.distribute.MultiWorkerMirroredStrategy()


def points():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(BATCH * STEPS, 4)).astype("float32")
    return inputs, (inputs.sum(axis=1) > 0).astype("float32")


def batches():
    data = tf.data.Dataset.from_tensor_slices(points()).repeat().batch(BATCH * strategy.num_replicas_in_sync)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options)


with strategy.scope():
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input((4,)), *layers])
    model.compile(
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.1),
    )

losses = model.fit(batches(), epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0).history["loss"]
weights = sum(float(np.abs(part).sum()) for part in model.get_weights())
print(
    f"{task['type']} {task['index']} of {strategy.num_replicas_in_sync}:",
    f"loss {losses[0]:.4f} to {losses[-1]:.4f}, weights {weights:.6f}",
    flush=True,
)
