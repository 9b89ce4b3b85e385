"""A user's own Triton kernel is recognised as interpreted without a flag in its file, and judged in float32."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis.errors import UnsatisfiedAssumption

import implementations
from verification import interpreter
from verification.judge import Subject
from verification.problems import Problem
from verification.property import for_all
from verification.space import problems
from verification.test_agreement import test_the_output_agrees_with_the_formula as agreement

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU a kernel is compiled", allow_module_level=True)

# One program for each row of the output; softmax over all keys at once.
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def _row(q, k, v, out, heads, group, queries, keys, scale, D: tl.constexpr, E: tl.constexpr, DIM: tl.constexpr,
         WIDTH: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr):
    row = tl.program_id(0)
    query, head = row % queries, row // queries
    kv_head = (head // heads) * (heads // group) + head % heads // group
    feature, value, key = tl.arange(0, DIM), tl.arange(0, WIDTH), tl.arange(0, KEYS)
    attended = key < keys
    if CAUSAL:
        attended = attended & (key <= query + keys - queries)
    its_query = tl.load(q + row * D + feature, feature < D, 0.0).to(tl.float32)
    place = (kv_head * keys + key)[:, None]
    its_keys = tl.load(k + place * D + feature, (key < keys)[:, None] & (feature < D), 0.0).to(tl.float32)
    scores = tl.where(attended, tl.sum(its_keys * its_query, 1) * scale, float("-inf"))
    largest = tl.max(scores, 0)
    weights = tl.where(attended, tl.exp(scores - tl.where(largest > float("-inf"), largest, 0.0)), 0.0)
    total = tl.sum(weights, 0)
    its_values = tl.load(v + place * E + value, (key < keys)[:, None] & (value < E), 0.0).to(tl.float32)
    mean = tl.sum(its_values * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * E + value, mean.to(out.dtype.element_ty), value < E)


def attend(q, k, v, *, mask=None, causal=False, scale=None):
    if mask is not None:
        raise NotImplementedError("no masks")
    (batch, heads, queries, dim), keys, width = q.shape, k.shape[2], v.shape[3]
    q, k, v, out = q.contiguous(), k.contiguous(), v.contiguous(), q.new_empty(batch, heads, queries, width)
    next_power = triton.next_power_of_2
    _row[(batch * heads * queries,)](
        q, k, v, out, heads, heads // k.shape[1], queries, keys, dim**-0.5 if scale is None else scale,
        D=dim, E=width, DIM=next_power(dim), WIDTH=next_power(width), KEYS=next_power(keys), CAUSAL=causal,
    )
    return WRONG * out
"""

PLAIN = Problem(batch=2, heads=4, kv_heads=2, queries=3, keys=5, dim=4, value_dim=3, causal=True)


def subject(tmp_path: Path, factor: str = "1.0") -> Subject:
    file = tmp_path / f"times_{factor}.py"
    file.write_text(KERNEL.replace("WRONG", factor))
    return Subject(implementations.load(f"{file}:attend"))


def test_it_is_recognised_without_a_flag(tmp_path: Path) -> None:
    kernel = subject(tmp_path)
    assert kernel.interpreted
    assert not kernel.compiles
    assert not Subject("eager").interpreted
    assert "triton.runtime.interpreter" in sys.modules


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_is_judged_in_what_the_interpreter_computes(tmp_path: Path, dtype: str) -> None:
    problem = replace(PLAIN, dtype=dtype)
    right = subject(tmp_path)
    agreement.at(right, problem)
    assert right.evidence.calls == 1
    assert right.evidence.refusals == {}
    with pytest.raises(AssertionError, match="wrong output"):
        agreement.at(subject(tmp_path, "1.1"), problem)


def test_its_bfloat16_is_refused_by_the_judge(tmp_path: Path) -> None:
    kernel = subject(tmp_path)
    with pytest.raises(UnsatisfiedAssumption):
        agreement.at(kernel, replace(PLAIN, dtype="bfloat16"))
    assert kernel.evidence.refusals == {interpreter.BFLOAT16: 1}
    assert kernel.domain.takes({"dtype": "float32"})
    assert not kernel.domain.takes({"dtype": "bfloat16"})


def test_launches_are_counted_where_they_are_made(tmp_path: Path) -> None:
    kernel = subject(tmp_path)
    agreement.at(kernel, PLAIN)
    with interpreter.launches() as inside:
        agreement.at(kernel, PLAIN)
        agreement.at(kernel, PLAIN)
    assert (inside.interpreted, inside.compiled) == (2, 0)
    with interpreter.launches() as inside:
        agreement.at(Subject("eager"), PLAIN)
    assert (inside.interpreted, inside.compiled) == (0, 0)


def test_a_right_one_passes_pairs_of_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small space: a launch takes milliseconds for each row."""
    monkeypatch.setattr("verification.profiles._STRENGTH", {})
    kernel = subject(tmp_path)
    small = problems(queries=[1, 2, 3], keys=range(1, 6), dim=range(1, 17), heads=[1, 2], kv_heads=1, batch=1)
    for_all(small, strength=3)(agreement.at)(kernel)
    answered, of = kernel.evidence.covered["pairs"]
    assert answered == of > 0
    assert "triples" not in kernel.evidence.covered
    assert set(kernel.evidence.refusals) <= {interpreter.BFLOAT16, "no masks"}
    assert set(kernel.evidence.worst) == {"float32", "float16"}
