"""A TensorFlow model as a custom training, with Keras; its weights are kept as numbers only."""

from functools import cache

import keras


def make_network(inputs, classes):
    layers = [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(classes, activation="softmax")]
    return keras.Sequential([keras.Input((inputs,)), *layers])


def fit(data):
    keras.utils.set_random_seed(data.seed)
    network = make_network(data.inputs.shape[1], len(data.classes))
    network.compile(optimizer=keras.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy")
    history = network.fit(
        data.inputs[data.train],
        data.target[data.train],
        validation_data=(data.inputs[data.validation], data.target[data.validation]),
        epochs=30,
        batch_size=128,
        verbose=0,
    ).history
    for step, (learned, held) in enumerate(zip(history["loss"], history["val_loss"], strict=True), 1):
        data.metric("train_loss", learned, step=step)
        data.metric("validation_loss", held, step=step)
    network.save_weights(data.output / "network.weights.h5")


@cache
def load(folder, inputs):
    network = make_network(inputs, 2)
    network.load_weights(folder / "network.weights.h5")
    return network


def predict(folder, inputs):
    return load(folder, inputs.shape[1]).predict(inputs, verbose=0)
