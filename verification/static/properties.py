"""What has to hold for a configuration that ships; each property that it breaks gives a sentence.

No machine instruction says which product of the source it belongs to. So each tl.dot is followed through the compiler:
it is a tt.dot in Triton's first dialect, and in the last one (there once or more often, since loops are pipelined) its
operands or its name say which unit will do it.
"""

import re

import torch

from verification.static.architectures import ARCHITECTURES
from verification.static.configurations import Configuration
from verification.static.machine_code import MachineCode

_PRODUCT = re.compile(r"^.*(?:tt\.dot|ttng\.warp_group_dot|ttng\.tc_gen5_mma) .*$", flags=re.MULTILINE)
# wgmma, tcgen05; and mma.sync or mfma, which want the operands in a layout of their own.
_ON_TENSOR_CORE = re.compile(r"ttng\.|parent = #mma")


def faults(
    configuration: Configuration, code: MachineCode, shared: int, programs: int, first: str, last: str
) -> list[str]:
    """The properties that it breaks; `first` and `last` are the kernel in Triton's dialects, `shared` is in bytes."""
    found = []
    if code.spill_bytes:
        found.append(f"{code.spill_bytes} bytes of registers are spilled")
    if code.stack_bytes:
        found.append(f"{code.stack_bytes} bytes of stack are used")
    limit = ARCHITECTURES[configuration.architecture].shared_per_program
    if shared > limit:
        found.append(f"{shared} bytes of shared memory are wanted, and {limit} is all that a program may have")
    if not programs:
        found.append("no multiprocessor has room for one program")
    products = _PRODUCT.findall(last)
    if len(products) < len(_PRODUCT.findall(first)) or not products:
        found.append(f"{len(products)} products are left of {len(_PRODUCT.findall(first))}")
    instructions = sum(code.tensor_core.values())
    if configuration.dtype == torch.float32:
        reduced = instructions - code.float_products
        if reduced or "inputPrecision" in first:
            found.append(f"float32 products round their operands, in {reduced} tensor-core instructions")
        return found
    aside = sum(not _ON_TENSOR_CORE.search(product) for product in products)
    if aside:
        found.append(f"{aside} of {len(products)} products are not done by the tensor cores")
    if code.float_products:
        found.append(f"{code.float_products} tensor-core instructions multiply float32")
    if not instructions:
        found.append("there is no tensor-core instruction")
    return found
