"""Compiles a configuration as the launcher launches it, for a GPU that is not there.

The backend's own forward or backward pass runs on tensors without memory, under a driver that names the wanted
architecture. Where Triton would compile for that driver a hook takes what it was given (the types, which of them are
aligned, the constants, the options) and compiles that, and nothing is launched.

To be imported only in a process that compiles: kernels are compiled or interpreted as the environment has it when they
are imported. `table` starts such processes.
"""

import subprocess
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from implementations import _triton_attention, _triton_launch
from verification.static.architectures import ARCHITECTURES
from verification.static.configurations import Configuration
from verification.static.machine_code import MachineCode, read_cuda, read_hip

BATCH, HEADS = 2, 3


class StubDriver:
    """A driver without a device: all that a launch asks of one before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return f"{self.target.backend} {self.target.arch}"

    def get_current_stream(self, device: str) -> int:
        return 0


def compiled(configuration: Configuration) -> CompiledKernel:
    """What Triton's compiler makes of it; raises what the compiler raises."""
    target = target_of(configuration.architecture)
    launched: dict[str, tuple[Any, dict[str, Any]]] = {}

    def take(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        launched[fn.jit_function.__name__] = fn.jit_function, compile
        return True  # and Triton compiles and launches nothing

    triton.runtime.driver.set_active(StubDriver(target))  # type: ignore[arg-type]
    with (
        mock.patch.object(knobs.runtime, "jit_cache_hook", take),
        mock.patch.object(_triton_launch, "tile_for", return_value=configuration.tile),
        mock.patch.object(_triton_launch, "_architecture", return_value=configuration.architecture),
    ):
        _run(configuration)
    function, given = launched[f"{configuration.kernel}_kernel"]
    source = ASTSource(function, given["signature"], given["constants"], given["configs"][0])
    options = {name: given[name] for name in ("num_warps", "num_stages", "enable_fp_fusion")}
    return triton.compile(source, target=target, options=options)


def target_of(architecture: str) -> GPUTarget:
    """The architecture as Triton's compiler knows it."""
    warp_size = ARCHITECTURES[architecture].warp_size
    if architecture.startswith("sm_"):
        return GPUTarget("cuda", int(architecture.removeprefix("sm_")), warp_size)
    return GPUTarget("hip", architecture, warp_size)


def machine_code(kernel: CompiledKernel) -> MachineCode:
    """What the machine code takes."""
    if "amdgcn" in kernel.asm:
        return read_hip(kernel.asm["amdgcn"])
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(kernel.asm["cubin"])
        sass, usage = (
            subprocess.run(
                [knobs.nvidia.cuobjdump.path, what, str(binary)], capture_output=True, text=True, check=True
            ).stdout
            for what in ("-sass", "-res-usage")
        )
    return read_cuda(sass, usage)


def _run(configuration: Configuration) -> None:
    strided = configuration.variant == "strided"
    length = 1023 if strided else 1024  # no kernel is compiled for a length, but for whether 16 divides it
    passes, causal = configuration.backend.removesuffix("_triton"), configuration.variant != "full"
    q, k, v, out, grad_out = (_tensor(configuration, length) for _ in range(5))
    mask = None
    if configuration.variant == "masked":
        mask = torch.empty(BATCH, HEADS, length, length, dtype=torch.bool, device="meta")
    if configuration.kernel == "forward":
        _triton_attention._forward(q, k, v, mask, causal, 1.0, passes)
        return
    lse = torch.empty(BATCH, HEADS, length, dtype=torch.float32, device="meta")
    _triton_attention._backward(grad_out, q, k, v, mask, out, lse, causal, 1.0)


def _tensor(configuration: Configuration, length: int) -> Tensor:
    width, dtype = configuration.head_dim, configuration.dtype
    if configuration.variant != "strided":
        return torch.empty(BATCH, HEADS, length, width, dtype=dtype, device="meta")
    return torch.empty(BATCH, HEADS, length, width + 1, dtype=dtype, device="meta")[..., 1:]
