"""One row of the table for each configuration, made in processes that compile and so never interpret."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

import torch

from verification.static.architectures import ARCHITECTURES, occupancy
from verification.static.configurations import Configuration
from verification.static.machine_code import Loop
from verification.static.properties import faults


def rows_of(configurations: Iterable[Configuration], processes: int | None = None) -> Iterator[dict[str, Any]]:
    """One row for each configuration, in their order, each as soon as it and those before it are known.

    They are compiled in processes of their own, as many as there are cores without a number: this one may interpret
    its kernels, and none can do both. Nothing is taken from Triton's cache and nothing left there.
    """
    with (
        TemporaryDirectory() as cache,
        ProcessPoolExecutor(
            processes or os.cpu_count(), get_context("spawn"), initializer=only_compile, initargs=(cache,)
        ) as pool,
    ):
        yield from pool.map(row_of, configurations)


def only_compile(cache: str) -> None:
    """Makes Triton compile in this process, into an empty cache; before a kernel is imported."""
    os.environ.update(TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache)
    torch.set_num_threads(1)


def row_of(configuration: Configuration) -> dict[str, Any]:
    """One row of the JSON, in a process that compiles."""
    from verification.static.compiling import compiled, machine_code  # imports the kernels

    kernel = compiled(configuration)
    code = machine_code(kernel)
    tile, shared = configuration.tile, kernel.metadata.shared
    tensor_columns = getattr(kernel.metadata, "tmem_size", None) or 0
    programs, limited_by = occupancy(configuration.architecture, tile.warps, code.registers, shared, tensor_columns)
    instructions = inner_loop(configuration, code.loops)
    looped_over = tile.queries if configuration.kernel == "grad_kv" else tile.keys
    return {
        "architecture": configuration.architecture,
        "backend": configuration.backend,
        "kernel": configuration.kernel,
        "dtype": str(configuration.dtype).removeprefix("torch."),
        "head_dim": configuration.head_dim,
        "variant": configuration.variant,
        "tile": tile._asdict(),
        "registers": code.registers,
        "spill_bytes": code.spill_bytes,
        "stack_bytes": code.stack_bytes,
        "shared_bytes": shared,
        "shared_limit_bytes": ARCHITECTURES[configuration.architecture].shared_per_program,
        "tensor_core": code.tensor_core,
        "async_copies": code.async_copies,
        "programs_per_multiprocessor": programs,
        "limited_by": limited_by,
        "inner_loop_instructions": instructions,
        "instructions_per_key": round(instructions / looped_over, 2),
        "faults": faults(configuration, code, shared, programs, kernel.asm["ttir"], kernel.asm["ttgir"]),
    }


def inner_loop(configuration: Configuration, loops: Sequence[Loop]) -> int:
    """Instructions of the loop that a long sequence spends its time in, of one warp; of both passes where it has two.

    A pass has two loops: over the blocks that every query attends to, and over those at an edge, with more to do. The
    former is what counts, but under a mask every block is at an edge. A loop that has nothing to do, as the former
    under a mask, may be missing. Of two passes the second multiplies more: there lies the widest step in the number of
    products. Raises ValueError where the machine code looks otherwise.
    """
    loops = sorted(loops, key=lambda loop: loop.products)
    passes = [loops]
    if configuration.backend == "two_pass_triton" and len(loops) > 1:
        steps = [more.products - fewer.products for fewer, more in pairwise(loops)]
        second = steps.index(max(steps)) + 1
        passes = [loops[:second], loops[second:]]
    if any(len(one) not in (1, 2) for one in passes):
        raise ValueError(
            f"{configuration}: one or two inner loops for each pass over the keys were wanted; there are {loops}"
        )
    counts = max if configuration.variant == "masked" else min
    return sum(counts(loop.instructions for loop in one) for one in passes)
