"""The article's own claims, one test each, to be read beside it. They need no backend but the readable one."""

import math

import pytest
import torch

import implementations

eager = implementations.load("eager")


def standard_error(samples: int) -> float:
    """Of the variance of that many normal numbers, relative: sqrt(2 / n)."""
    return math.sqrt(2 / samples)


@pytest.mark.parametrize("d_k", [16, 64, 256, 1024])
def test_scaled_scores_have_variance_one_and_unscaled_ones_d_k(d_k: int) -> None:
    """2.3: q . k is a sum of d_k products of variance 1, so its variance is d_k; dividing by sqrt(d_k) makes it 1."""
    torch.manual_seed(0)
    q, k = torch.randn(400, d_k, dtype=torch.float64), torch.randn(400, d_k, dtype=torch.float64)
    scores = q @ k.T
    # Rows share their query and columns their key, so there are some 400 independent numbers, not 400 x 400.
    five_sigma = 5 * standard_error(400)
    assert abs(scores.var().item() / d_k - 1) < five_sigma
    assert abs((scores / math.sqrt(d_k)).var().item() - 1) < five_sigma


def test_without_scaling_the_softmax_saturates_and_its_gradient_vanishes() -> None:
    """2.3: large scores make the weights one-hot, and the gradient of a one-hot softmax, diag(p) - p p^T, is zero."""
    torch.manual_seed(0)
    d_k, keys = 1024, 64
    q, k = torch.randn(keys, d_k), torch.randn(keys, d_k)

    def typical_gradient(scores: torch.Tensor) -> tuple[float, float]:
        p = scores.softmax(dim=-1)
        jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        return p.amax(dim=-1).median().item(), jacobian.flatten(1).norm(dim=-1).median().item()

    largest_scaled, gradient_scaled = typical_gradient(q @ k.T / math.sqrt(d_k))
    largest_raw, gradient_raw = typical_gradient(q @ k.T)
    assert largest_raw > 0.99 > 0.5 > largest_scaled
    assert gradient_raw < gradient_scaled / 10


def test_the_worked_example_has_the_causal_pattern() -> None:
    """5: in "<start> I am fine" each word attends to itself and what came before: a lower triangle of weights."""
    torch.manual_seed(0)
    words = ["<start>", "I", "am", "fine"]
    q, k = torch.randn(1, 1, len(words), 8), torch.randn(1, 1, len(words), 8)
    weights = eager.attend(q, k, torch.eye(len(words))[None, None], causal=True)[0, 0]
    attends_to = {
        word: [w for w, p in zip(words, row.tolist(), strict=True) if p > 0]
        for word, row in zip(words, weights, strict=True)
    }
    assert attends_to == {
        "<start>": ["<start>"],
        "I": ["<start>", "I"],
        "am": ["<start>", "I", "am"],
        "fine": ["<start>", "I", "am", "fine"],
    }
    assert weights[0, 0] == 1


def test_every_row_of_weights_is_a_distribution() -> None:
    """2.4: softmax maps any scores to numbers between 0 and 1 that sum to 1."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 7, 8, dtype=torch.float64), torch.randn(1, 1, 5, 8, dtype=torch.float64)
    weights = eager.attend(q, k, torch.eye(5, dtype=torch.float64)[None, None])
    assert ((weights > 0) & (weights < 1)).all()
    roundings = 5 * torch.finfo(torch.float64).eps  # one for each of the five terms
    assert (weights.sum(dim=-1) - 1).abs().max() <= roundings


@pytest.mark.parametrize(("d_model", "heads", "head_dim"), [(512, 8, 64), (4096, 32, 128)])
def test_the_shapes_of_the_two_models(d_model: int, heads: int, head_dim: int) -> None:
    """4.2: 512 = 8 heads of 64 and 4096 = 32 heads of 128; x and y are (batch, seq, d_model)."""
    layer = implementations.SelfAttention(d_model, heads, device="meta")
    x = torch.empty(2, 3, d_model, device="meta")
    q, k, v = eager.project(x, layer.W_QKV.weight, heads, heads)
    assert q.shape == k.shape == v.shape == (2, heads, 3, head_dim)
    assert layer(x).shape == x.shape


@pytest.mark.parametrize("d_model", [512, 4096])
def test_the_number_of_parameters_does_not_depend_on_the_heads(d_model: int) -> None:
    """4.2: W_Q, W_K, W_V and W_O hold 4 d_model^2 numbers, however many heads share them."""
    for heads in (1, 2, 8, 32):
        layer = implementations.SelfAttention(d_model, heads, device="meta")
        assert sum(weight.numel() for weight in layer.parameters()) == 4 * d_model**2


def test_heads_are_independent() -> None:
    """4.3: the heads are independent, so changing one head's input changes no other head's output."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, 5, 64) for _ in range(3))
    before = eager.attend(q, k, v)
    q, k, v = q.clone(), k.clone(), v.clone()
    for tensor in (q, k, v):
        tensor[:, 3] += 1
    after = eager.attend(q, k, v)
    assert [head for head in range(8) if not torch.equal(before[:, head], after[:, head])] == [3]
