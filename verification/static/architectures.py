"""The resources of a multiprocessor of each architecture, and how many programs of a kernel fit on it at once.

A program is a CUDA block or an AMD workgroup; a multiprocessor is an SM or a compute unit. Each resource allows

    programs = what the multiprocessor has // what one program takes, rounded up to the unit of allocation

and the scarcest of them decides:

registers       belong to a warp. NVIDIA allocates them to a warp 256 at a time, 65536 in four equal parts, so that
                warps come in fours: (65536 // registers of a warp) // 4 * 4 // warps. AMD has 512 for each lane of a
                SIMD and allocates 8 at a time: four SIMDs hold 4 * (512 // registers) warps.
shared memory   NVIDIA reserves 1 KiB for each program, and allocates 128 bytes at a time; AMD 512.
tensor memory   of sm_100 alone: 512 columns.
warps, programs have a maximum of their own.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and the rounding of the
occupancy calculator in Nsight Compute; PTX ISA, "Tensor Memory"; for gfx942 the CDNA 3 ISA guide and LLVM's
AMDGPUBaseInfo.cpp, which also writes the warps that a SIMD holds into the assembly: a test compares.
"""

from typing import NamedTuple


class Architecture(NamedTuple):
    """Limits of a multiprocessor; memory in bytes, registers of 32 bits."""

    warp_size: int
    shared_per_program: int
    shared: int
    shared_reserved: int
    shared_unit: int
    registers_per_lane: int  # of all warps of one part; a warp's registers are this many times its size
    registers_unit: int  # for each lane
    warps: int
    programs: int
    tensor_columns: int = 0


PARTS = 4  # both vendors: four schedulers or SIMDs, each with registers of its own

ARCHITECTURES = {
    "sm_80": Architecture(32, 163 * 1024, 164 * 1024, 1024, 128, 512, 8, 64, 32),
    "sm_90": Architecture(32, 227 * 1024, 228 * 1024, 1024, 128, 512, 8, 64, 32),
    "sm_100": Architecture(32, 227 * 1024, 228 * 1024, 1024, 128, 512, 8, 64, 32, 512),
    "gfx942": Architecture(64, 64 * 1024, 64 * 1024, 0, 512, 512, 8, 32, 16),
}


def occupancy(name: str, warps: int, registers: int, shared: int, tensor_columns: int) -> tuple[int, str]:
    """(programs a multiprocessor, what limits them), for a program of so many warps; registers are those of a lane.

    0 programs: one alone does not fit. Where two resources are equally scarce both are named.
    """
    limits = ARCHITECTURES[name]
    warps_of_a_part = limits.registers_per_lane // _rounded_up(max(1, registers), limits.registers_unit)
    allowed = {
        "registers": PARTS * warps_of_a_part // warps,
        "warps": limits.warps // warps,
        "programs": limits.programs,
    }
    taken = _rounded_up(shared + limits.shared_reserved, limits.shared_unit)
    if shared > limits.shared_per_program:
        allowed["shared memory"] = 0
    elif taken:
        allowed["shared memory"] = limits.shared // taken
    if tensor_columns:
        allowed["tensor memory"] = limits.tensor_columns // tensor_columns
    programs = min(allowed.values())
    return programs, " and ".join(resource for resource, number in allowed.items() if number == programs)


def _rounded_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit
