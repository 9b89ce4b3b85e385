"""Nonsense is a ValueError that says what was given and what is wanted, from every backend alike."""

from typing import Any

import pytest
import torch

import implementations
from implementations._sdpa import is_aligned

CPU = torch.device("cpu")
BACKENDS = [name for name in implementations.names() if implementations.load(name).cannot_run(CPU) is None]


def tensors(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    right = {"q": torch.zeros(2, 6, 5, 8), "k": torch.zeros(2, 3, 7, 8), "v": torch.zeros(2, 3, 7, 8)}
    return right | changed


INVALID = {
    "wrong rank": (
        tensors(q=torch.zeros(6, 5, 8)),
        r"q has shape \(6, 5, 8\); wanted 4 axes \(batch, heads, sequence, head_dim\)",
    ),
    "not floating point": (tensors(k=torch.zeros(2, 3, 7, 8, dtype=torch.int64)), r"k is torch.int64; wanted one of"),
    "dtype mismatch": (
        tensors(v=torch.zeros(2, 3, 7, 8, dtype=torch.float16)),
        r"q, k, v are torch.float32, torch.float32, torch.float16; wanted one dtype",
    ),
    "device mismatch": (
        tensors(v=torch.zeros(2, 3, 7, 8, device="meta")),
        r"q, k, v are on cpu, cpu, meta; wanted one device",
    ),
    "batch mismatch": (
        tensors(q=torch.zeros(3, 6, 5, 8)),
        r"q has a batch of 3 and k, v one of 2; wanted the same batch",
    ),
    "keys without values": (
        tensors(v=torch.zeros(2, 3, 6, 8)),
        r"k has shape \(2, 3, 7, 8\) and v \(2, 3, 6, 8\); wanted the same batch, kv_heads and keys",
    ),
    "head_dim mismatch": (
        tensors(q=torch.zeros(2, 6, 5, 4)),
        r"q has head_dim 4 and k 8; wanted the same, at least 1",
    ),
    "heads that do not divide": (
        tensors(q=torch.zeros(2, 5, 5, 8)),
        r"q has 5 heads and k, v 3; wanted kv_heads that divide heads",
    ),
    "no tensor": (tensors() | {"q": [[1.0]]}, r"q is a list; wanted a torch.Tensor"),
    "float mask": (
        tensors(mask=torch.zeros(5, 7)),
        r"mask is torch.float32; wanted a torch.bool tensor where True means may attend",
    ),
    "mask of another shape": (
        tensors(mask=torch.ones(4, 7, dtype=torch.bool)),
        r"mask has shape \(4, 7\); wanted one broadcastable to \(batch, heads, queries, keys\) = \(2, 6, 5, 7\)",
    ),
}


@pytest.mark.parametrize("invalid", INVALID)
@pytest.mark.parametrize("backend", BACKENDS)
def test_invalid_input_is_a_value_error_with_one_clear_line(backend: str, invalid: str) -> None:
    given: dict[str, Any] = dict(INVALID[invalid][0])
    q, k, v = given.pop("q"), given.pop("k"), given.pop("v")
    with pytest.raises(ValueError, match=INVALID[invalid][1]) as raised:
        implementations.load(backend).attend(q, k, v, **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_empty_inputs_keep_their_shape_or_are_refused(backend: str, empty: str) -> None:
    sizes = {"batch": 2, "queries": 5, "keys": 7} | {empty: 0}
    q = torch.randn(sizes["batch"], 6, sizes["queries"], 8, requires_grad=True)
    k, v = (torch.randn(sizes["batch"], 3, sizes["keys"], 8, requires_grad=True) for _ in range(2))
    try:
        out = implementations.load(backend).attend(q, k, v)
    except NotImplementedError as refusal:
        assert str(refusal)
        return
    assert out.shape == (sizes["batch"], 6, sizes["queries"], 8)
    assert not out.count_nonzero()
    for grad, leaf in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v), strict=True):
        assert grad.shape == leaf.shape
        assert not grad.count_nonzero()


def test_rows_that_begin_between_two_reads_are_known() -> None:
    memory = torch.zeros(2, 3, 8, 24, dtype=torch.float16)
    assert is_aligned(memory)
    assert is_aligned(memory.transpose(1, 2))
    assert is_aligned(memory[..., 8:16])  # 16 bytes on
    assert not is_aligned(memory[..., 4:12])  # 8 bytes on
    assert is_aligned(memory[..., 4:11])  # 14 bytes wide: torch copies it
    assert not is_aligned(torch.zeros(2, 3, 8, 21, dtype=torch.float16)[..., :16])
    assert is_aligned(torch.zeros(1, 1, 1, 21, dtype=torch.float16)[..., :16])  # one row has no next
    assert is_aligned(torch.zeros(2, 3, 8, 20, dtype=torch.float32)[..., :16])


@pytest.mark.parametrize(
    ("message", "raised"),
    [
        ("No available kernel. Aborting execution.", NotImplementedError),
        ("cuDNN Frontend error: [cudnn_frontend] Error: No execution plans", NotImplementedError),
        ("CUDA error: an illegal memory access was encountered", RuntimeError),
    ],
)
def test_what_torch_refuses_is_a_refusal_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch, message: str, raised: type[Exception]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fails)
    with pytest.raises(RuntimeError) as found:
        implementations.load("sdpa_math").attend(*tensors().values())
    assert found.type is raised


@pytest.mark.parametrize(
    ("d_model", "heads", "kv_heads", "message"),
    [
        (10, 3, None, "d_model is 10 and heads 3; wanted heads that divide d_model"),
        (12, 4, 3, "heads is 4 and kv_heads 3; wanted kv_heads that divide heads"),
        (12, 0, None, "d_model is 12 and heads 0; wanted heads that divide d_model"),
    ],
)
def test_a_layer_that_cannot_be_split(d_model: int, heads: int, kv_heads: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        implementations.SelfAttention(d_model, heads, kv_heads=kv_heads)


def test_a_layer_says_what_x_it_wants() -> None:
    with pytest.raises(ValueError, match=r"x has shape \(2, 5\); wanted \(batch, seq, 12\)"):
        implementations.SelfAttention(12, 4)(torch.zeros(2, 5))
