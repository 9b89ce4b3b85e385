"""Which tile each Triton kernel ships with: by architecture, kernel, dtype and head dim.

An architecture is "sm_80", "sm_90", "sm_100" (NVIDIA), "gfx942" (AMD) or "interpreter". A kernel is one of
KERNEL_NAMES: "online" and "two_pass" are the forward kernel with one pass over the keys and with two, "grad_q" and
"grad_kv" are shared.
"""

from typing import NamedTuple

import torch

KERNEL_NAMES = ("online", "two_pass", "grad_q", "grad_kv")


class Tile(NamedTuple):
    """What one program holds: a block of queries against a block of keys; and how Triton schedules it."""

    queries: int
    keys: int
    warps: int
    stages: int


class Tiles(NamedTuple):
    """One tile for each kernel of a backend."""

    forward: Tile
    grad_q: Tile
    grad_kv: Tile


def _choices(*tiles: tuple[int, int, int, int]) -> tuple[Tile, ...]:
    return tuple(Tile(*tile) for tile in tiles)


# By kernel and the larger head dim: the tile that ships, and behind it those that a GPU times it against. Of the tiles
# for which `python -m verification.static` finds nothing spilled and every product on the tensor cores, the one with
# the fewest instructions for each pair of a query and a key ships, or where that is close, the one that leaves room
# for more programs; no speed was measured. wgmma wants 64 rows for every four warps. gfx942 has four SIMDs, one for
# each warp of a program here, 512 registers a lane, and 64 KiB of shared memory.
# On NVIDIA two stages even where overlapping loads gains nothing: with them a tile is copied to shared memory without
# passing through registers. All of gfx942 has one stage, and so has grad_kv in float32 at 256.
_SM_80 = {
    "online": {
        64: _choices((128, 64, 8, 3), (64, 64, 4, 3)),
        128: _choices((128, 64, 8, 2), (64, 64, 4, 2)),
        256: _choices((64, 32, 8, 2), (64, 32, 4, 2)),
    },
    "two_pass": {
        64: _choices((128, 64, 8, 3), (64, 64, 4, 3)),
        128: _choices((128, 32, 8, 2), (64, 32, 4, 2)),
        256: _choices((64, 32, 8, 2)),
    },
    "grad_q": {
        64: _choices((64, 64, 4, 2), (64, 64, 8, 2)),
        128: _choices((64, 64, 8, 2), (64, 32, 4, 2)),
        256: _choices((64, 32, 8, 2), (32, 32, 4, 2)),
    },
    "grad_kv": {
        64: _choices((64, 64, 8, 2), (32, 64, 4, 2)),
        128: _choices((32, 64, 8, 2)),
        256: _choices((32, 32, 8, 2)),
    },
}
_SM_90 = {
    "online": {
        64: _choices((128, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3)),
        128: _choices((128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2)),
        256: _choices((128, 32, 8, 2), (64, 32, 4, 2)),
    },
    "two_pass": {
        64: _choices((128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3)),
        128: _choices((128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2)),
        256: _choices((128, 32, 8, 2)),
    },
    "grad_q": {
        64: _choices((64, 64, 4, 2), (128, 64, 8, 2), (64, 128, 4, 2)),
        128: _choices((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2)),
        256: _choices((128, 32, 8, 2)),
    },
    "grad_kv": {
        64: _choices((64, 128, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2), (32, 128, 8, 2)),
        128: _choices((32, 128, 8, 2), (16, 128, 8, 2)),
        256: _choices((32, 32, 4, 2), (32, 32, 8, 2)),
    },
}
_SM_100 = {
    "online": {
        64: _choices((128, 64, 4, 3), (128, 128, 8, 2)),
        128: _choices((128, 128, 8, 2), (128, 64, 8, 2)),
        256: _choices((128, 32, 8, 2)),
    },
    "two_pass": {
        64: _choices((128, 64, 4, 3)),
        128: _choices((128, 64, 8, 2)),
        256: _choices((128, 32, 8, 2)),
    },
    "grad_q": {
        64: _choices((128, 64, 8, 2), (64, 64, 4, 2)),
        128: _choices((64, 64, 4, 2), (64, 64, 8, 2)),
        256: _choices((128, 32, 8, 2), (64, 32, 4, 2)),
    },
    "grad_kv": {
        64: _choices((64, 128, 8, 2), (32, 64, 8, 2)),
        128: _choices((32, 128, 8, 2), (32, 64, 8, 2)),
        256: _choices((32, 64, 8, 2)),
    },
}
_GFX942 = {
    "online": {
        64: _choices((128, 64, 4, 1), (64, 64, 4, 1)),
        128: _choices((128, 64, 4, 1), (64, 32, 4, 1)),
        256: _choices((64, 32, 4, 1), (32, 32, 4, 1)),
    },
    "two_pass": {
        64: _choices((128, 64, 4, 1), (64, 64, 4, 1)),
        128: _choices((128, 64, 4, 1), (64, 64, 4, 1)),
        256: _choices((32, 32, 4, 1)),
    },
    "grad_q": {
        64: _choices((64, 64, 4, 1), (64, 32, 4, 1)),
        128: _choices((64, 32, 4, 1), (64, 64, 4, 1)),
        256: _choices((32, 16, 4, 1), (32, 32, 4, 1)),
    },
    "grad_kv": {
        64: _choices((32, 64, 4, 1), (64, 64, 4, 1)),
        128: _choices((32, 64, 4, 1), (32, 32, 4, 1)),
        256: _choices((16, 32, 4, 1), (32, 32, 4, 1)),
    },
}
HALF = {"sm_80": _SM_80, "sm_90": _SM_90, "sm_100": _SM_100, "gfx942": _GFX942}

# True float32 products have no tensor core on NVIDIA, and nothing there differs between the architectures: each thread
# holds whole rows of both operands in its registers.
_FLOAT_NVIDIA = {
    "online": {
        64: _choices((64, 32, 8, 2)),
        128: _choices((32, 16, 8, 2)),
        256: _choices((16, 32, 8, 2)),
    },
    "two_pass": {64: _choices((64, 32, 8, 2)), 128: _choices((32, 16, 8, 2)), 256: _choices((16, 16, 8, 2))},
    "grad_q": {
        64: _choices((32, 32, 8, 2), (32, 16, 4, 2)),
        128: _choices((16, 16, 4, 2)),
        256: _choices((16, 16, 8, 2)),
    },
    "grad_kv": {64: _choices((32, 32, 8, 2)), 128: _choices((16, 16, 8, 2)), 256: _choices((16, 16, 8, 1))},
}
_FLOAT_GFX942 = {
    "online": {64: _choices((64, 32, 4, 1)), 128: _choices((32, 32, 4, 1)), 256: _choices((16, 16, 4, 1))},
    "two_pass": {64: _choices((64, 32, 4, 1)), 128: _choices((32, 32, 4, 1)), 256: _choices((16, 16, 4, 1))},
    "grad_q": {64: _choices((32, 32, 4, 1)), 128: _choices((16, 16, 4, 1)), 256: _choices((16, 16, 4, 1))},
    "grad_kv": {64: _choices((32, 32, 4, 1)), 128: _choices((16, 16, 4, 1)), 256: _choices((16, 16, 4, 1))},
}
FLOAT = {"sm_80": _FLOAT_NVIDIA, "sm_90": _FLOAT_NVIDIA, "sm_100": _FLOAT_NVIDIA, "gfx942": _FLOAT_GFX942}
# In the interpreter the speed of a tile does not matter; with small, unequal ones short inputs have several blocks.
INTERPRETER = {"online": Tile(64, 32, 1, 1), "grad_q": Tile(64, 32, 1, 1), "grad_kv": Tile(32, 64, 1, 1)}


def tiles(architecture: str, backend: str, dtype: torch.dtype, dim: int) -> Tiles:
    """What "online_triton" or "two_pass_triton" ships with; `dim` is the larger of head_dim and value_dim.

    Raises ValueError for a backend that is neither, and what `candidates` raises.
    """
    forward = {"online_triton": "online", "two_pass_triton": "two_pass"}.get(backend)
    if forward is None:
        raise ValueError(f"backend is {backend!r}; wanted online_triton or two_pass_triton")
    return Tiles(*(candidates(architecture, kernel, dtype, dim)[0] for kernel in (forward, "grad_q", "grad_kv")))


def candidates(architecture: str, kernel: str, dtype: torch.dtype, dim: int) -> tuple[Tile, ...]:
    """What is tried for a kernel on a GPU, the tile it ships with first.

    Raises ValueError for a kernel, an architecture or a head dim that the table does not have.
    """
    if kernel not in KERNEL_NAMES:
        raise ValueError(f"kernel is {kernel!r}; wanted one of {', '.join(KERNEL_NAMES)}")
    if architecture == "interpreter":
        return (INTERPRETER["online" if kernel == "two_pass" else kernel],)
    table = (FLOAT if dtype == torch.float32 else HALF)[_nearest(architecture)][kernel]
    widths = [width for width in table if dim <= width]
    if not widths:
        raise ValueError(f"head dim is {dim}; wanted at most {max(table)}")
    return table[min(widths)]


def _nearest(architecture: str) -> str:
    """The newest architecture of the table that is no newer than that one, of the same vendor; else its oldest.

    An instruction set only grows, shared memory does not: where a tile does not fit, Triton says so when it is
    launched, as on sm_86 and sm_120, which have 99 KiB.
    """
    asked = _vendor_and_number(architecture)
    known = {_vendor_and_number(name): name for name in HALF}
    same_vendor = sorted(one for one in known if one[0] == asked[0])
    older = [one for one in same_vendor if one <= asked]
    return known[older[-1] if older else same_vendor[0]]


def _vendor_and_number(architecture: str) -> tuple[str, int]:
    for vendor, base in (("sm_", 10), ("gfx", 16)):
        if architecture.startswith(vendor):
            return vendor, int(architecture.removeprefix(vendor), base)
    raise ValueError(f"architecture is {architecture!r}; wanted sm_NN, gfxNNN or interpreter")
