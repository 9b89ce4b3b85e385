"""Nothing is timed that Triton's interpreter runs: that time says nothing of a GPU."""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any, NoReturn
from unittest import mock

REFUSAL = "runs in Triton's interpreter: correctness only, never timed"


@contextlib.contextmanager
def forbidden() -> Iterator[None]:
    """Inside the block a kernel that would be interpreted raises NotImplementedError when it is launched.

    Nothing that can be known before the launch is certain: TRITON_INTERPRET counts when a kernel is decorated
    and not afterwards, a backend may import its kernels at the first call, and torch imports Triton for its
    own ends.
    """
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from triton.runtime.interpreter import InterpretedFunction

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(REFUSAL)

    with mock.patch.object(InterpretedFunction, "run", refuse):
        yield
