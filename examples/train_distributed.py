"""One model, or a thousand, trained on several processes or machines.

    torchrun --nproc-per-node 2 examples/train_distributed.py               # one model, rows over
    the ranks (DDP)
    torchrun --nproc-per-node 2 examples/train_distributed.py --models 1000 # a thousand models,
    models over the ranks

On several machines add ``--nnodes N --rdzv-backend c10d --rdzv-endpoint HOST:PORT`` and run the
same line on each.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from npu_kernels import NAU, NPU
from npu_kernels.interop.sharding import shard_models


def batch(rows: int, generator: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
    """Inputs in (0.1, 2) and their sum, product, quotient and square root."""
    x = torch.rand(rows, 2, generator=generator) * 1.9 + 0.1
    a, b = x.T
    return x.to(device), torch.stack([a + b, a * b, a / b, a.sqrt()], 1).to(device)


def main() -> None:
    """Train and print the loss, of many models the best one's, on rank 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())

    torch.manual_seed(0)
    models = None if arguments.models == 1 else arguments.models
    model: nn.Module = nn.Sequential(NPU(2, 6, num_models=models), NAU(6, 4, num_models=models)).to(
        device
    )
    if models is None:
        model = DistributedDataParallel(model)
        seed = rank  # every rank has its own rows
    else:
        model = shard_models(model, init_device_mesh(device, (ranks,)))
        seed = 0  # every model sees the same rows
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    generator = torch.Generator().manual_seed(seed)
    losses = torch.zeros(1)
    for _ in range(arguments.steps):
        x, target = batch(100, generator, device)
        y = model(x)
        if models is None:
            losses = (y - target).square().mean().unsqueeze(0)
        else:  # [K]: a model's loss is its own, so the sum trains all of them
            losses = (y.to_local() - target).square().mean((1, 2))
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    best = losses.detach().min()
    dist.all_reduce(best, dist.ReduceOp.MIN)
    if rank == 0:
        print(
            f"{arguments.models} model(s) on {ranks} rank(s): best loss {best.item():.4f}",
            flush=True,
        )
    dist.destroy_process_group()
    if device == "cpu":
        # A thread of gloo drops the last collective's tensors some time after it; where Python ends
        # meanwhile, torch
        # aborts (pytorch#190489), and torchrun takes that for a failure. All is done: leave without
        # Python's end.
        os._exit(0)


if __name__ == "__main__":
    main()
