"""Which configurations ship, and so which are compiled: pure data.

The head dims are the widths of the tile table: up to one of them every head dim takes the same tile, and is padded to
the next power of two. Each kernel, dtype and width stands in the table in its causal form, which training uses, and
which holds both loops: the blocks that every query attends to and those at an edge. What else the compiler treats
differently is looked at where registers are scarcest in practice, at head dim 128 in bfloat16:

full      not causal
masked    causal, and a boolean mask of every score: pointers and loads beside everything else
strided   causal, and a slice of something wider whose rows lie an odd number of elements apart: no two elements may be
          loaded at once, and every load has an address of its own
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from implementations._triton_tiles import Tile, tiles
from verification.static.architectures import ARCHITECTURES

COMPILED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEAD_DIMS = (64, 128, 256)
VARIANTS = ("causal", "full", "masked", "strided")
COMPILED_KERNELS = (
    ("online_triton", "forward"),
    ("two_pass_triton", "forward"),
    ("both", "grad_q"),
    ("both", "grad_kv"),
)


class Configuration(NamedTuple):
    """One kernel as it is compiled; `backend` is "both" for a kernel that the two share."""

    architecture: str
    backend: str
    kernel: str
    dtype: torch.dtype
    head_dim: int
    variant: str
    tile: Tile

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.architecture} {self.backend} {self.kernel} {dtype} {self.head_dim} {self.variant}"


def shipped() -> Iterator[Configuration]:
    """Every configuration of the table."""
    for architecture in ARCHITECTURES:
        for backend, kernel in COMPILED_KERNELS:
            for dtype in COMPILED_DTYPES:
                for head_dim in HEAD_DIMS:
                    everything = dtype == torch.bfloat16 and head_dim == 128
                    for variant in VARIANTS if everything else VARIANTS[:1]:
                        yield ships(architecture, backend, kernel, dtype, head_dim, variant)


def ships(
    architecture: str, backend: str, kernel: str, dtype: torch.dtype, head_dim: int, variant: str
) -> Configuration:
    """The configuration with the tile that ships."""
    owner = "online_triton" if backend == "both" else backend
    tile = getattr(tiles(architecture, owner, dtype, head_dim), kernel)
    return Configuration(architecture, backend, kernel, dtype, head_dim, variant, tile)
