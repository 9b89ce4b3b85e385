"""Which tile a call runs with: the one that ships or, for a large call on a GPU, the fastest of the candidates.

Candidates are timed once in a process for each tuning key, and the choice stands from then on, so that the same call
gives the same bits. A small call takes the tile that ships: each candidate has to be compiled before it is timed, which
takes seconds. `CHOSEN` holds what was chosen and the times.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from implementations._triton_tiles import Tile, candidates

# Multiply-adds of the two products of a forward pass. At the 1e15 operations a second that the tensor cores of the
# largest GPUs reach at most, fewer are done in the time of one launch, whatever the tile.
WORTH_TIMING = 1 << 32

# (run the kernel once, quantiles=...) -> milliseconds at these quantiles; as triton.testing.do_bench
Clock = Callable[..., list[float]]


class TuningKey(NamedTuple):
    """What a tile is chosen for: all that a kernel is compiled for, and nothing of the lengths."""

    architecture: str
    kernel: str
    dtype: torch.dtype
    dim: int
    value_dim: int
    causal: bool
    masked: bool


class Choice(NamedTuple):
    """The tile chosen, and the median time of each candidate, infinite for one that does not fit on the GPU."""

    tile: Tile
    milliseconds: dict[Tile, float]


CHOSEN: dict[TuningKey, Choice] = {}


def tile_for(
    tuning_key: TuningKey,
    multiply_adds: int,
    kernel: Any,
    grid: Callable[[dict[str, Any]], tuple[int]],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    clock: Clock | None = None,
) -> Tile:
    """The tile for a launch of that kernel; candidates are timed on this very launch, with Triton's clock by default.

    In the interpreter each kernel has one candidate, and nothing is timed.
    """
    tiles = _candidates(tuning_key)
    if len(tiles) == 1 or multiply_adds < WORTH_TIMING:
        return tiles[0]
    if tuning_key not in CHOSEN:
        # While a CUDA graph is captured no clock can run; the graph and what comes after it keep the tile that ships.
        capturing = torch.cuda.is_current_stream_capturing()
        times = {} if capturing else _times(tiles, kernel, grid, arguments, constants, clock)
        CHOSEN.setdefault(tuning_key, Choice(min(times, key=times.__getitem__, default=tiles[0]), times))
    return CHOSEN[tuning_key].tile


@functools.cache
def _candidates(tuning_key: TuningKey) -> tuple[Tile, ...]:
    widest = max(tuning_key.dim, tuning_key.value_dim)
    return candidates(tuning_key.architecture, tuning_key.kernel, tuning_key.dtype, widest)


def _times(
    tiles: tuple[Tile, ...],
    kernel: Any,
    grid: Callable[[dict[str, Any]], tuple[int]],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    clock: Clock | None,
) -> dict[Tile, float]:
    import triton  # not above: `_triton_kernels` says first whether kernels are interpreted

    configs = {
        triton.Config({"BLOCK_Q": t.queries, "BLOCK_K": t.keys}, num_warps=t.warps, num_stages=t.stages): t
        for t in tiles
    }
    # A tuner for one tuning key, since Triton's own key holds neither the dtype of a view nor the candidates.
    tuner = triton.autotune(list(configs), key=[], do_bench=clock)(kernel)
    tuner.run(*arguments, grid=grid, warmup=False, **constants)
    return {configs[config]: times[0] for config, times in tuner.configs_timings.items()}
