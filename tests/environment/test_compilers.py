"""Horovod is built, installed and trains with the compilers and Pythons of other releases of Debian.

Needs root and a Debian, on which the release is made in a folder of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TORCH = "torch==2.13.0"

TRAIN = """
import torch
import horovod.torch as hvd
hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
sums = hvd.allgather(torch.cat([p.detach().flatten() for p in model.parameters()]).sum().reshape(1))
assert hvd.size() == 2 and sums[0] == sums[1], sums
print("same weights on", hvd.size(), "ranks")
"""


@pytest.fixture(params=["trixie", "forky"])
def release(request: pytest.FixtureRequest) -> Iterator[str]:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("another release of Debian is made by root on a Debian")
    suite = str(request.param)
    subprocess.run([".ci/debian", "up", suite], cwd=REPOSITORY, check=True, timeout=600)
    yield suite
    subprocess.run([".ci/debian", "down", suite], cwd=REPOSITORY, check=True)


def run(suite: str, command: str, timeout: float) -> str:
    done = subprocess.run(
        [".ci/debian", "run", suite, "bash", "-ec", command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_horovod_is_built_and_trains_on(release: str) -> None:
    wheel = max((REPOSITORY / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    root = Path(os.environ.get("DISTDL_SUITES", "/var/tmp/distdl-suites")) / release / "root"
    shutil.copy(wheel, root)
    (root / "train.py").write_text(TRAIN)
    install = "fresh/bin/pip install -q"
    # The environment may be left from an earlier run, with another wheel of the same version.
    again = f"{install} --force-reinstall --no-deps ./{wheel.name}"
    run(release, f"python3 -m venv fresh; {install} {TORCH} numpy ./{wheel.name}; {again}", 1500)
    # An nvcc without libraries, which torch takes for a CUDA toolkit.
    nvcc = "printf '#!/bin/sh\\nexit 1\\n' >/usr/local/bin/nvcc; chmod +x /usr/local/bin/nvcc"
    installed = run(release, f"{nvcc}; rm -rf ~/.cache/distdl*; fresh/bin/distdl install horovod", 1800)
    assert "for torch with Gloo was built and installed" in installed
    # The host's own name may not resolve; a rank finds its address through the loopback interface.
    log = run(release, "GLOO_SOCKET_IFNAME=lo fresh/bin/distdl run -f -p 2 --backend horovod train.py", 600)
    assert "same weights on 2 ranks" in log
