"""The table of the compiled Triton kernels: what ships breaks no property, and what breaks one is found."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from implementations._triton_tiles import Tile
from verification.static import __main__ as command
from verification.static.architectures import ARCHITECTURES, occupancy
from verification.static.configurations import COMPILED_KERNELS, Configuration, shipped, ships
from verification.static.machine_code import Loop, read_cuda, read_hip
from verification.static.table import inner_loop, rows_of

ROOT = Path(__file__).parents[1]

# The command compiles all that ships; here every kernel on every architecture, and once every other choice.
SUBSET = [
    *(ships(name, *kernel, torch.bfloat16, 128, "causal") for name in ARCHITECTURES for kernel in COMPILED_KERNELS),
    ships("sm_80", "both", "grad_kv", torch.float16, 64, "causal"),
    ships("sm_90", "both", "grad_q", torch.float16, 256, "causal"),
    ships("sm_90", "online_triton", "forward", torch.bfloat16, 128, "masked"),
    ships("sm_90", "online_triton", "forward", torch.bfloat16, 128, "strided"),
    *(ships(name, "online_triton", "forward", torch.float32, 64, "causal") for name in ("sm_80", "sm_100", "gfx942")),
]
TENSOR_CORE = {"sm_80": "mma.sync", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}


def test_what_ships_breaks_no_property() -> None:
    rows = list(rows_of(SUBSET))
    assert {str(what): row["faults"] for what, row in zip(SUBSET, rows, strict=True) if row["faults"]} == {}
    for row in rows:
        # The tensor cores of gfx942 multiply float32 without rounding it.
        used = row["dtype"] != "float32" or row["architecture"] == "gfx942"
        assert set(row["tensor_core"]) == ({TENSOR_CORE[row["architecture"]]} if used else set())
        assert row["instructions_per_key"] > 1
        assert row["shared_bytes"] <= row["shared_limit_bytes"]
        assert row["programs_per_multiprocessor"] >= 1
        if row["architecture"] != "gfx942" and row["variant"] != "strided":
            assert row["async_copies"] > 0, "no loads are on their way while something is computed"


def test_a_tile_that_is_too_large_is_a_fault() -> None:
    small = ships("sm_80", "online_triton", "forward", torch.bfloat16, 128, "causal")
    (row,) = rows_of([small._replace(tile=Tile(128, 128, 4, 4))])
    message = "\n".join(row["faults"])
    assert re.search(r"\d+ bytes of registers are spilled", message)
    assert re.search(r"\d+ bytes of stack are used", message)
    assert f"{row['shared_limit_bytes']} is all that a program may have" in message
    assert "no multiprocessor has room" in message


SCORES = 'tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale_log2\n    if EDGE'
FLOAT_SCORES = SCORES.replace("q_tile,", "q_tile.to(tl.float32),").replace("(k_tile)", "(k_tile).to(tl.float32)")


@pytest.mark.parametrize(
    ("architecture", "dtype", "old", "new", "fault"),
    [
        ("sm_80", "bfloat16", SCORES, FLOAT_SCORES, "2 of 4 products are not done by the tensor cores"),
        ("gfx942", "bfloat16", SCORES, FLOAT_SCORES, "tensor-core instructions multiply float32"),
        ("sm_80", "float32", '"ieee"', '"tf32"', "float32 products round their operands"),
        ("sm_100", "float32", '"ieee"', '"tf32"', "float32 products round their operands"),
    ],
    ids=["half not by the tensor cores", "half as float32", "tf32", "tf32 by tcgen05"],
)
def test_a_product_on_the_wrong_unit_is_a_fault(
    architecture: str, dtype: str, old: str, new: str, fault: str, tmp_path: Path
) -> None:
    assert any(fault in found for found in _row_of_changed(tmp_path, architecture, dtype, old, new)["faults"])


def _row_of_changed(folder: Path, architecture: str, dtype: str, old: str, new: str) -> dict[str, Any]:
    """The row of the online kernel from a copy of the kernels with that change."""
    shutil.copytree(ROOT / "implementations", folder / "implementations")
    kernels = folder / "implementations" / "_triton_kernels.py"
    source = kernels.read_text()
    assert old in source
    kernels.write_text(source.replace(old, new))
    changed = f"ships({architecture!r}, 'online_triton', 'forward', torch.{dtype}, 64, 'causal')"
    return _in_a_process_that_compiles(folder, f"row_of({changed})")


def test_occupancy_by_registers_agrees_with_llvm(tmp_path: Path) -> None:
    """LLVM writes how many warps a SIMD holds; a program of four warps has one on each."""
    kernel = "compiled(ships('gfx942', 'both', 'grad_q', torch.bfloat16, 64, 'causal')).asm['amdgcn']"
    assembly = _in_a_process_that_compiles(tmp_path, kernel)
    stated = re.search(r"; Occupancy: (\d+)", assembly)
    assert stated
    assert occupancy("gfx942", 4, read_hip(assembly).registers, 0, 0)[0] == int(stated[1])


def _in_a_process_that_compiles(folder: Path, expression: str) -> Any:
    """The value of the expression; `implementations` is taken from the folder if it is there."""
    script = (
        "import json, sys, torch\n"
        "from verification.static.table import only_compile, row_of\n"
        "from verification.static.configurations import ships\n"
        "only_compile(sys.argv[1])\n"
        "from verification.static.compiling import compiled\n"
        f"print(json.dumps({expression}))\n"
    )
    said = subprocess.run(
        [sys.executable, "-P", "-c", script, str(folder / "cache")],
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_every_kernel_dtype_and_width_ships_on_every_architecture() -> None:
    table = list(shipped())
    assert len(table) == len(set(table)) == 4 * 4 * (3 * 3 + 3)


def test_the_command_fails_where_a_property_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "architecture": "sm_90",
        "backend": "both",
        "kernel": "grad_q",
        "dtype": "bfloat16",
        "head_dim": 128,
        "variant": "causal",
        "tile": {"queries": 64, "keys": 64, "warps": 4, "stages": 2},
        "registers": 255,
        "spill_bytes": 8,
        "stack_bytes": 0,
        "shared_bytes": 98304,
        "shared_limit_bytes": 232448,
        "tensor_core": {"wgmma": 40},
        "async_copies": 64,
        "programs_per_multiprocessor": 2,
        "limited_by": "shared memory",
        "inner_loop_instructions": 422,
        "instructions_per_key": 6.59,
        "faults": ["8 bytes of registers are spilled"],
    }
    file = tmp_path / "static.json"
    monkeypatch.setattr(sys, "argv", ["static", "--json", str(file)])
    monkeypatch.setattr(command, "rows_of", lambda _: iter([row]))
    assert command.main() == 1
    assert "BROKEN: 8 bytes of registers are spilled" in capsys.readouterr().out
    table = json.loads(file.read_text())
    assert (table["schema"], table["kind"], table["rows"]) == (1, "static", [row])
    assert table["provenance"]["versions"]["triton"]
    monkeypatch.setattr(command, "rows_of", lambda _: iter([row | {"spill_bytes": 0, "faults": []}]))
    assert command.main() == 0


@pytest.mark.parametrize(
    ("architecture", "warps", "registers", "shared", "columns", "expected"),
    [
        ("sm_90", 8, 255, 0, 0, (1, "registers")),
        ("sm_90", 8, 128, 0, 0, (2, "registers")),
        ("sm_90", 4, 168, 0, 0, (3, "registers")),
        ("sm_90", 4, 32, 100 * 1024, 0, (2, "shared memory")),
        ("sm_80", 4, 32, 100 * 1024, 0, (1, "shared memory")),
        ("sm_80", 4, 32, 164 * 1024, 0, (0, "shared memory")),
        ("sm_90", 1, 16, 0, 0, (32, "programs")),
        ("sm_90", 16, 32, 0, 0, (4, "registers and warps")),
        ("sm_100", 4, 32, 1024, 256, (2, "tensor memory")),
        ("gfx942", 4, 512, 0, 0, (1, "registers")),
        ("gfx942", 8, 256, 32 * 1024, 0, (1, "registers")),
        ("gfx942", 4, 128, 20 * 1024, 0, (3, "shared memory")),
        ("sm_90", 32, 255, 0, 0, (0, "registers")),
    ],
)
def test_programs_that_fit_on_a_multiprocessor(
    architecture: str, warps: int, registers: int, shared: int, columns: int, expected: tuple[int, str]
) -> None:
    """By hand from the tables that the docstring of `verification.static.architectures` names."""
    assert occupancy(architecture, warps, registers, shared, columns) == expected


SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;      /* 0x0 */
        /*0010*/                   STL.64 [R1], R4 ;           /* 0x0 */
        /*0020*/                   LDGSTS.E.BYPASS.128 [R1], [R2.64] ; /* 0x0 */
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R6, R4 ; /* 0x0 */
        /*0040*/               @P2 BRA 0x00a0 ;                /* 0x0 */
        /*0050*/              @!P0 BRA 0x30 ;                  /* 0x0 */
        /*0060*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4] ; /* 0x0 */
        /*0070*/               @P1 CALL.REL.NOINC 0x90 ;       /* 0x0 */
        /*0080*/                   BRA 0x60 ;                  /* 0x0 */
        /*0090*/                   EXIT ;                      /* 0x0 */
        /*00a0*/              @!P3 BRA 0xa0 ;                  /* 0x0 */
        /*00b0*/                   BRA 0x50 ;                  /* 0x0 */
        /*00c0*/                   NOP;                        /* 0x0 */
"""


def test_what_is_read_from_cuda_machine_code() -> None:
    """The first loop has a wait out of line; the second is left by a call that only jumps, as ptxas does for sm_80."""
    code = read_cuda(SASS, "Function k:\n  REG:40 STACK:8 SHARED:0 LOCAL:0")
    assert (code.registers, code.spill_bytes, code.stack_bytes, code.async_copies) == (40, 8, 8, 1)
    assert code.tensor_core == {"mma.sync": 1, "wgmma": 1}
    assert [loop.instructions for loop in code.loops] == [5, 3]


AMDGCN = """
\ts_load_dwordx2 s[0:1], s[4:5], 0x0
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
\tv_mfma_f32_32x32x8_bf16 a[0:15], v[0:1], v[2:3], a[0:15]
\tv_mfma_f32_32x32x2_f32 a[0:15], v0, v2, a[0:15]
\ts_cbranch_scc1 .LBB0_1
; %bb.2:
\ts_endpgm
    .private_segment_fixed_size: 0
    .sgpr_spill_count: 0
    .vgpr_count:     20
    .vgpr_spill_count: 3
"""


def test_what_is_read_from_amd_assembly() -> None:
    code = read_hip(AMDGCN)
    assert (code.registers, code.spill_bytes, code.stack_bytes) == (20, 12, 0)
    assert (code.tensor_core, code.float_products) == ({"mfma": 2}, 1)
    assert [loop.instructions for loop in code.loops] == [3]


def test_the_loop_that_counts() -> None:
    tile = Tile(64, 64, 4, 2)
    causal = Configuration("sm_90", "two_pass_triton", "forward", torch.float16, 64, "causal", tile)
    sweeps = (Loop(10, 4), Loop(13, 4), Loop(20, 8), Loop(26, 8))
    assert inner_loop(causal, sweeps) == 30
    assert inner_loop(causal._replace(variant="masked"), sweeps) == 39
    assert inner_loop(causal._replace(variant="masked"), sweeps[1:]) == 39
    with pytest.raises(ValueError, match="one or two inner loops for each pass over the keys were wanted"):
        inner_loop(causal, [*sweeps, Loop(30, 8)])
    with pytest.raises(ValueError, match="one or two inner loops"):
        inner_loop(causal._replace(backend="online_triton"), sweeps)
