"""What one backend may not change for the others: torch's global settings, and functions of torch and of the judge."""

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from verification import budget, oracle

_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def _set_deterministic(state: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


# How each is read, and set again.
SETTINGS: dict[str, _Setting] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, torch.set_default_device),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _set_deterministic,
    ),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}

# What oracle and judge compute with: looked at after every call.
_RELIED_ON: dict[Any, tuple[str, ...]] = {
    torch: ("einsum", "softmax", "where", "expm1", "equal", "arange", "ones_like", "zeros_like", "maximum", "minimum"),
    torch.autograd: ("grad",),
    torch.Tensor: (
        *("abs", "amax", "any", "clone", "detach", "double", "expand_as", "max", "nan_to_num", "repeat_interleave"),
        *("sum", "view", "__add__", "__eq__", "__le__", "__matmul__", "__mul__", "__sub__", "__truediv__"),
    ),
    oracle: ("attention", "gradients"),
    budget: ("of_output", "of_gradients", "of_product", "by_trial", "ratio"),
}
# What other backends compute with: looked at after a file is loaded and after every property.
_SHARED = (torch, torch.nn.functional, torch.autograd, torch.linalg)

_FUNCTION = (types.FunctionType, types.BuiltinFunctionType)


@contextmanager
def undone(*, thoroughly: bool = False) -> Iterator[list[str]]:
    """Afterwards torch's settings and the functions are as they were before, and the list names what was changed.

    thoroughly  every function of torch, which takes a moment; otherwise those that the judge computes with
    """
    changed: list[str] = []
    settings = {name: read() for name, (read, _) in SETTINGS.items()}
    functions = _every_function() if thoroughly else _FUNCTIONS
    try:
        yield changed
    finally:
        for name, (read, restore) in SETTINGS.items():
            if read() != settings[name]:
                changed.append(f"torch's {name}")
                restore(settings[name])
        for (owner, name), function in functions.items():
            found = getattr(owner, name, None)
            # torch wraps some of its own, as manual_seed, when its compiler is imported.
            if found is not function and str(getattr(found, "__module__", "")).partition(".")[0] != "torch":
                changed.append(f"{owner.__name__}.{name}")
                setattr(owner, name, function)


def _every_function() -> dict[tuple[Any, str], Any]:
    """Those that the judge relies on as they were at first, and the others as they are now."""
    shared = {
        (module, name): part
        for module in _SHARED
        for name, part in vars(module).items()
        if isinstance(part, _FUNCTION) and not name.startswith("_")
    }
    return shared | _FUNCTIONS


_FUNCTIONS = {(owner, name): getattr(owner, name) for owner, names in _RELIED_ON.items() for name in names}
