"""A PyTorch model as a custom training: a plain script that finds everything in its environment variables."""

import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def make_network(inputs, classes):
    return torch.nn.Sequential(torch.nn.Linear(inputs, 32), torch.nn.Tanh(), torch.nn.Linear(32, classes))


def main():
    arrays, output = Path(os.environ["GRIDMILL_ARRAYS"]), Path(os.environ["GRIDMILL_OUTPUT"])
    training = json.loads(Path(os.environ["GRIDMILL_TRAINING"]).read_text())
    inputs = torch.from_numpy(np.load(arrays / "inputs.npy").astype(np.float32))
    classes = np.nan_to_num(np.load(arrays / "target.npy"), nan=-1)  # NaN in the test rows
    target = torch.from_numpy(classes.astype(np.int64))
    split = np.load(arrays / "split.npy")
    train, held = (torch.from_numpy(np.flatnonzero(split == number)) for number in (0, 1))

    torch.manual_seed(training["seed"])
    torch.set_num_threads(training["threads"])
    network = make_network(inputs.shape[1], len(training["classes"]))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    loss_of = torch.nn.CrossEntropyLoss()
    for epoch in range(1, 31):
        for rows in train[torch.randperm(len(train))].split(128):
            loss = loss_of(network(inputs[rows]), target[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.inference_mode(), open(os.environ["GRIDMILL_METRICS"], "a") as metrics:
            for name, rows in (("train_loss", train), ("validation_loss", held)):
                value = float(loss_of(network(inputs[rows]), target[rows]))
                metrics.write(json.dumps({"name": name, "value": value, "step": epoch}) + "\n")
    save_file(network.state_dict(), output / "weights.safetensors")


@cache
def load(folder):
    weights = load_file(folder / "weights.safetensors")
    network = make_network(weights["0.weight"].shape[1], weights["2.weight"].shape[0])
    network.load_state_dict(weights)
    return network


def predict(folder, inputs):
    with torch.inference_mode():
        return torch.softmax(load(folder)(torch.from_numpy(inputs.astype(np.float32))), 1).numpy()


if __name__ == "__main__":
    main()
