"""What small problems do not meet: more programs than a grid axis takes, places far apart in memory, long rows."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from verification.judge import Subject, one_may_be_refused
from verification.memory import with_extra_bytes
from verification.outcome import LeftOut
from verification.problems import Problem
from verification.property import for_all

# One more than 16 bits count, which is also what an axis of a CUDA grid takes; in the interpreter, than 8 bits do.
MANY, MANY_INTERPRETED = 65_537, 257
# A stride that fits in 32 bits, and twice and four times of which are beyond what signed and unsigned ones hold; and
# how far before the first element a signed offset lands that wraps.
FAR, BEFORE = 2**30, 2**31


@for_all(
    None,
    Problem(batch=MANY, keys=2),
    Problem(heads=MANY, kv_heads=1, keys=2),
    Problem(queries=MANY, keys=2),
    Problem(keys=MANY),
)
def test_nothing_ends_where_a_counter_does(subject: Subject, problem: Problem) -> None:
    """Output and gradients with more samples, heads, queries and keys than 65536 are the formula's."""
    if subject.interpreted:
        # A program is slow there, so that samples and heads are many together only, and heads alone are few.
        programs = {"batch": 17, "heads": 16} if problem.batch > 2 else {"heads": min(problem.heads, 17)}
        longer = {name: MANY_INTERPRETED for name in ("queries", "keys") if getattr(problem, name) > 2}
        problem = replace(problem, **programs, **longer)
    q, k, v, mask = problem.tensors()
    subject.assert_right(problem, q, k, v, mask)
    subject.assert_gradients_right(problem, q, k, v, mask, problem.grad_out())


@for_all(
    None,
    Problem(batch=5, queries=4, keys=4, dim=2, mask="random", dtype="float16"),
    Problem(heads=5, kv_heads=5, queries=4, keys=4, dim=2, mask="random", dtype="float16"),
    Problem(queries=5, keys=5, dim=2, mask="random", dtype="float16"),
    Problem(queries=4, keys=4, dim=5, mask="random", dtype="float16"),
)
def test_an_offset_may_pass_32_bits(subject: Subject, problem: Problem) -> None:
    """q, k, v, the mask or dO with a stride of 2^30 elements along the axis of 5: the same output and gradients."""
    q, k, v, mask = problem.tensors()
    assert mask is not None
    inputs = {"q": q, "k": k, "v": v, "mask": mask, "dO": problem.grad_out()}

    def judge(name: str, tensor: Tensor) -> None:
        laid = inputs | {name: _spread(tensor, tensor.shape.index(5))}
        call = laid["q"], laid["k"], laid["v"], laid["mask"]
        subject.assert_right(problem, *call, f"output with {name} spread")
        subject.assert_gradients_right(problem, *call, laid["dO"], f" with {name} spread")

    for name, tensor in inputs.items():
        if 5 in tensor.shape:
            with one_may_be_refused():
                judge(name, tensor)
    if subject.device.type == "cuda":
        torch.cuda.empty_cache()  # other processes share the device


def _spread(tensor: Tensor, axis: int) -> Tensor:
    """The same numbers with a stride of FAR along that axis.

    They lie in the middle of memory that is ours: an offset that wraps then reads what is wrong, and is no fault.
    """
    strides = [*tensor.contiguous().stride()]
    strides[axis] = FAR
    elements = BEFORE + FAR * (tensor.shape[axis] - 1) + tensor.numel()
    if tensor.device.type == "cuda":
        try:
            memory = torch.empty(elements, dtype=tensor.dtype, device=tensor.device)
        except torch.OutOfMemoryError:
            wanted = elements * tensor.element_size() / 2**30
            raise LeftOut(f"{wanted:.0f} GiB are wanted on the device, and were not free") from None
    else:
        # A sparse file: only the few pages that are written exist, on disk and in memory.
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "sparse")
            memory = torch.from_file(path, shared=True, size=elements, dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, strides, BEFORE).copy_(tensor)


@pytest.mark.parametrize("stage", ["forward", "backward", "masked"])
def test_how_extra_memory_grows_with_the_sequence(subject: Subject, stage: str) -> None:
    """Extra memory at n, 2n, 4n tokens: what is linear grows twice as much from 2n to 4n as from n to 2n, what is
    quadratic four times. Nearer to which is what `memory` states; where nothing is stated it is reported.
    """
    shortest = 64 if subject.interpreted else 1024
    sizes = [_extra_bytes(subject, stage, shortest << doubling) for doubling in range(3)]
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    growth = "quadratic" if second > 8**0.5 * first else "linear"
    sizes_found = " + ".join(f"{size} bytes at {shortest << doubling}" for doubling, size in enumerate(sizes))
    subject.evidence.stated = f"extra memory {stage}: {growth}"
    stated = subject.facts.memory
    if stated is not None:
        assert growth == stated, f"extra memory is {growth}; the backend states {stated!r}: {sizes_found}"
    subject.evidence.problems += 1


def _extra_bytes(subject: Subject, stage: str, length: int) -> int:
    problem = Problem(queries=length, keys=length, dim=8, device=str(subject.device))
    q, k, v, _ = problem.tensors()
    if stage != "backward":
        # A mask over the keys alone: written out for every query it would be quadratic.
        padding = torch.arange(length, device=subject.device) < length // 2
        options: dict[str, Any] = {"causal": True} if stage == "forward" else {"mask": padding}
        return with_extra_bytes(lambda: subject.attend(q, k, v, **options), subject.device)[1]
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    grad_out = problem.grad_out()

    def both() -> tuple[Tensor, ...]:
        out = subject.attend(leaves[0], leaves[1], leaves[2], causal=True)
        return tuple(subject.gradients_of(out, leaves, grad_out))

    return with_extra_bytes(both, subject.device)[1]
