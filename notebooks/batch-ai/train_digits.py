"""Handwritten digits with Horovod, as it was written for Batch AI: folders come as arguments, nothing else is known."""

import argparse
import pathlib

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path, required=True)
parser.add_argument("--model", type=pathlib.Path, required=True)
parser.add_argument("--epochs", type=int, default=30)
chosen = parser.parse_args()

hvd.init()
torch.manual_seed(0)
digits = np.load(chosen.data / "digits.npz")
images = torch.from_numpy(digits["train_images"][hvd.rank() :: hvd.size()])
labels = torch.from_numpy(digits["train_labels"][hvd.rank() :: hvd.size()])

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10),
)  # fmt: skip
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9), model.named_parameters()
)
for epoch in range(chosen.epochs):
    order = torch.randperm(len(images))
    for batch in order.split(32):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

test_images, test_labels = torch.from_numpy(digits["test_images"]), torch.from_numpy(digits["test_labels"])
with torch.no_grad():
    accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
if hvd.rank() == 0:
    torch.save(model.state_dict(), chosen.model / "digits.pt")
    print(f"test accuracy {accuracy:.4f}")
