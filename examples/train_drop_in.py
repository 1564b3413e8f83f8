"""An eager model's layers replaced by fused ones, compiled, trained, saved and resumed.

    python examples/train_drop_in.py [--steps 300] [--backend inductor] [--checkpoint FILE]
                                     [--device cuda]

It takes a GPU if there is one. Run it again with the same checkpoint, and it continues from there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from npu_kernels import interop
from npu_kernels.interop import reference_layers
from npu_kernels.optim import Adam
from npu_kernels.training import mse_loss, project_


def batch(rows: int, generator: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
    """Inputs in (0.5, 2) and their ratio."""
    x = (torch.rand(rows, 2, generator=generator) * 1.5 + 0.5).to(device)
    return x, x[:, :1] / x[:, 1:]


def main() -> None:
    """Train for some steps and print the error; the checkpoint holds model and optimizer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--checkpoint", type=Path, default=Path("drop_in.pt"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="default: %(default)s")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    eager = nn.Sequential(reference_layers.RealNPU(2, 8), nn.Linear(8, 1)).to(
        arguments.device
    )  # stands for a model that you have
    model = interop.swap(eager)  # the same weights, computed by the fused kernels
    optimizer = Adam(model.parameters(), 1e-2)  # after the swap
    done = 0
    if arguments.checkpoint.exists():
        state = torch.load(arguments.checkpoint, weights_only=True, map_location=arguments.device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
    compiled = torch.compile(model, fullgraph=True, backend=arguments.backend)

    generator = torch.Generator().manual_seed(done)
    for _ in range(arguments.steps):
        x, target = batch(100, generator, arguments.device)
        optimizer.zero_grad()
        loss = mse_loss(compiled(x), target)
        loss.backward()
        optimizer.step()
        project_(model)  # keeps the relevance gates in [0, 1]
    done += arguments.steps
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
    torch.save(state, arguments.checkpoint)
    x, target = batch(1000, torch.Generator().manual_seed(12345), arguments.device)
    print(f"{done} steps: error {mse_loss(model(x), target).item():.5f}")


if __name__ == "__main__":
    main()
