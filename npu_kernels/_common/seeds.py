"""Random numbers that depend on their purpose and a seed alone."""

from __future__ import annotations

import hashlib

import torch


def stream(purpose: str, seed: int, block: int = 0) -> torch.Generator:
    """Return a generator on the CPU that depends on these three alone."""
    digest = hashlib.blake2b(f"fit:{purpose}:{seed}:{block}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
