"""Reads the machine code of a compiled kernel: from NVIDIA's machine code by cuobjdump, from AMD's assembly as text.

A loop is a natural loop of the control-flow graph: a back edge, the head that dominates it, and the blocks between.
Waits that the assembler has moved out of line belong to their loop.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

# Tensor-core instructions by the name that PTX and the AMD ISA have for them.
TENSOR_CORE = {
    "mma.sync": re.compile(r"\b[HIDQ]MMA\b"),
    "wgmma": re.compile(r"[HIQ]GMMA\b"),
    "tcgen05": re.compile(r"UTC[HIQO]MMA\b"),
    "mfma": re.compile(r"v_mfma_"),
}
# cp.async, the bulk and tensor copies of Hopper and newer; AMD's loads from memory straight to LDS.
ASYNC_COPY = re.compile(r"LDGSTS|UBLKCP|UTMALDG|UTMASTG|global_load_lds|(?:global|buffer)_load\w* .*\blds$")
# Those that multiply float32 without rounding it: AMD alone has them.
FLOAT_PRODUCT = re.compile(r"v_mfma_f32_\w*(?<![bx])f32\b")
MULTIPLY_ADD = re.compile(r"FFMA|v_(?:pk_)?fmac?_f32|v_dot2c?_")


class Instruction(NamedTuple):
    """One instruction, the place it may jump to, and whether the next one may follow it."""

    place: str
    text: str
    jump: str | None
    falls_through: bool


class Loop(NamedTuple):
    """A loop that multiplies tiles and holds no other that does: its instructions, and those that multiply."""

    instructions: int
    products: int


class MachineCode(NamedTuple):
    """What one compiled kernel takes; registers and bytes are those of one thread, instructions are counted once."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    tensor_core: dict[str, int]
    float_products: int  # of these, those that multiply float32 without rounding it
    async_copies: int
    loops: tuple[Loop, ...]


def read_cuda(sass: str, usage: str) -> MachineCode:
    """From what cuobjdump says under -sass and -res-usage.

    Only spilled registers are stored to local memory: the kernels index no array of their own.
    """
    code = _from_sass(sass)
    used = dict(re.findall(r"\b(REG|STACK):(\d+)", usage))
    stores = [re.match(r"STL(?:\.(\d+))?\b", _without_predicate(step.text)) for step in code]
    spilled = sum(int(store[1] or 32) // 8 for store in stores if store)
    return _read(code, int(used["REG"]), spilled, int(used["STACK"]))


def read_hip(assembly: str) -> MachineCode:
    """From LLVM's assembly for AMD, which ends with what the kernel takes.

    Scalar registers are spilled to lanes of vector registers, which takes no memory: only spills of the latter count.
    """
    used = {name: int(number) for name, number in re.findall(r"\.(\w+):\s+(\d+)\n", assembly)}
    spilled = 4 * used["vgpr_spill_count"]
    return _read(_from_amdgcn(assembly), used["vgpr_count"], spilled, used["private_segment_fixed_size"])


def _read(code: Sequence[Instruction], registers: int, spilled: int, stack: int) -> MachineCode:
    kinds = Counter(kind for step in code for kind, name in TENSOR_CORE.items() if name.search(step.text))
    return MachineCode(
        registers=registers,
        spill_bytes=spilled,
        stack_bytes=stack,
        tensor_core=dict(kinds),
        float_products=sum(bool(FLOAT_PRODUCT.search(step.text)) for step in code),
        async_copies=sum(bool(ASYNC_COPY.search(step.text)) for step in code),
        loops=_inner_loops(code),
    )


def _without_predicate(text: str) -> str:
    return re.sub(r"^@!?U?P\w+ ", "", text)


def _from_sass(sass: str) -> list[Instruction]:
    code = []
    for place, text in re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", sass, flags=re.MULTILINE):
        jump = re.search(r"\b(?:BRA|CALL\.REL)\b.* 0x([0-9a-f]+)$", text)
        ends = re.match(r"(?:BRA[.\w]* 0x|EXIT|RET|BRX|JMP)", text)  # under a predicate it may fall through
        if text != "NOP":
            code.append(Instruction(place, text, jump[1].zfill(4) if jump else None, not ends))
    return code


def _from_amdgcn(assembly: str) -> list[Instruction]:
    code: list[Instruction] = []
    places: list[str] = []
    same: dict[str, str] = {}
    for line in assembly.splitlines():
        label = re.match(r"(\.LBB\w+):", line)
        step = re.match(r"\t([a-z]\w+(?:\s[^;]*)?)", line)
        if label:
            places.append(label[1])
        elif step:
            text = step[1].strip()
            place = places[0] if places else f"+{len(code)}"
            same.update(dict.fromkeys(places, place))
            places = []
            jump = re.match(r"s_c?branch\w*\s+(\.LBB\w+)", text)
            ends = re.match(r"s_branch|s_endpgm|s_setpc", text)
            code.append(Instruction(place, text, jump[1] if jump else None, not ends))
    return [step._replace(jump=same.get(step.jump) if step.jump else None) for step in code]


def _inner_loops(code: Sequence[Instruction]) -> tuple[Loop, ...]:
    """Those that multiply tiles and hold no other that does, in the order of the code.

    By tensor-core instructions, and in a kernel without any by multiply-adds: a division is made of those too.
    """
    products = {at for at, step in enumerate(code) if any(name.search(step.text) for name in TENSOR_CORE.values())}
    products = products or {at for at, step in enumerate(code) if MULTIPLY_ADD.search(step.text)}
    loops = [body for body in _loops(code) if body & products]
    inner = sorted((body for body in loops if not any(other < body for other in loops)), key=min)
    return tuple(Loop(len(body), len(body & products)) for body in inner)


def _loops(code: Sequence[Instruction]) -> list[frozenset[int]]:
    """The natural loops, each as the instructions in it."""
    blocks = _blocks(code)
    start = {block.start: number for number, block in enumerate(blocks)}
    at = {step.place: index for index, step in enumerate(code)}
    after: list[list[int]] = []
    for block in blocks:
        last = code[block.stop - 1]
        follows = [at[last.jump]] if last.jump in at else []
        if last.falls_through and block.stop < len(code):
            follows.append(block.stop)
        after.append([start[index] for index in follows])
    before: list[list[int]] = [[] for _ in blocks]
    for number, followers in enumerate(after):
        for follower in followers:
            before[follower].append(number)
    bodies: dict[int, frozenset[int]] = {}
    for number, followers in enumerate(after):
        for head in followers:
            if number not in _reach(0, after, without=head):
                body = _reach(number, before, without=head) | {head}
                bodies[head] = bodies.get(head, frozenset()) | body
    return [frozenset(index for number in body for index in blocks[number]) for body in bodies.values()]


def _blocks(code: Sequence[Instruction]) -> list[range]:
    """The basic blocks: only their first instruction is jumped to, only their last one jumps."""
    targets = {step.jump for step in code if step.jump}
    after_a_jump = {index + 1 for index, step in enumerate(code) if step.jump or not step.falls_through}
    starts = sorted({0, *(index for index, step in enumerate(code) if step.place in targets), *after_a_jump})
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(code)], strict=True) if start < stop]


def _reach(start: int, neighbours: Sequence[Sequence[int]], without: int) -> frozenset[int]:
    """What can be reached from `start` on ways that avoid `without`."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        block = waiting.pop()
        if block not in seen and block != without:
            seen.add(block)
            waiting.extend(neighbours[block])
    return frozenset(seen)
