"""Whether a kernel is Triton's, and whether its interpreter runs it: seen when it is launched, whoever wrote it.

The interpreter (3.6 to 3.9) keeps bfloat16 as raw integers, so that its arithmetic is wrong there and no verdict on a
kernel; such a launch is refused.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

BFLOAT16 = "Triton's interpreter keeps bfloat16 as raw integers, so its arithmetic is wrong there"


@dataclass
class Launches:
    """How many launches of Triton kernels there were, by who ran them."""

    interpreted: int = 0
    compiled: int = 0


_launches = Launches()


@contextmanager
def launches() -> Iterator[Launches]:
    """Counts the launches inside the block."""
    before = Launches(_launches.interpreted, _launches.compiled)
    inside = Launches()
    try:
        yield inside
    finally:
        inside.interpreted = _launches.interpreted - before.interpreted
        inside.compiled = _launches.compiled - before.compiled


def watch() -> None:
    """From now on launches are counted, and one in the interpreter with bfloat16 raises NotImplementedError.

    Called before each call of a subject: a kernel may import Triton in the call before.
    """
    interpreter, jit = (sys.modules.get(f"triton.runtime.{name}") for name in ("interpreter", "jit"))
    if interpreter is not None and os.environ.get("TRITON_INTERPRET") == "1":
        _wrap(interpreter.InterpretedFunction, "interpreted")
    if jit is not None:
        _wrap(jit.JITFunction, "compiled")


def _wrap(kind: Any, counted: str) -> None:
    run = kind.run
    if getattr(run, "counts_launches", False):
        return

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if counted == "interpreted" and any(map(_is_bfloat16, (*args, *kwargs.values()))):
            raise NotImplementedError(BFLOAT16)
        setattr(_launches, counted, getattr(_launches, counted) + 1)
        return run(self, *args, **kwargs)

    counting.counts_launches = True  # type: ignore[attr-defined]
    kind.run = counting


def _is_bfloat16(argument: Any) -> bool:
    if isinstance(argument, tuple):
        return any(map(_is_bfloat16, argument))
    return isinstance(argument, torch.Tensor) and argument.dtype == torch.bfloat16
