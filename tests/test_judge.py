"""The judge judged: it rejects what is wrong, accepts what is right, and its oracle and budgets hold on their own."""

import json
import re
import subprocess
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor

import implementations
from implementations import Backend
from verification import budget, oracle
from verification.judge import Subject, assert_same_bits
from verification.mutants.properties import first_counterexample
from verification.problems import AT_THE_LIMIT, DIMS, DTYPES, LAYOUTS, MASKS, SCORES, Problem
from verification.property import PATIENCE, for_all
from verification.test_agreement import test_the_output_agrees_with_the_formula as agreement
from verification.test_calls import test_a_call_leaves_no_trace as no_trace
from verification.test_calls import test_the_output_does_not_depend_on_who_wants_gradients as wants_gradients
from verification.test_causality import test_the_future_does_not_reach_the_past as future
from verification.test_gradients import test_a_second_derivative_is_right_or_raises as second_derivative
from verification.test_gradients import test_the_gradients_agree_with_the_formula as gradients
from verification.test_size import test_nothing_ends_where_a_counter_does as counters

ROOT = Path(__file__).parents[1]
eager = implementations.load("eager")
PLAIN = Problem(batch=2, heads=2, kv_heads=2, queries=5, keys=7, dim=8)


def one_wrong_element(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    out = eager.attend(q, k, v, **options).clone()  # type: ignore[arg-type]
    out[-1, -1, -1, -1] *= 1.001
    return out


def changes_its_input(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    out = eager.attend(q, k, v, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        q.add_(1e-3)
    return out


def hides_failure(q: Tensor, k: Tensor, v: Tensor, **_: object) -> Tensor | None:
    try:
        return q @ k  # the shapes do not fit
    except RuntimeError:
        return None


GARBAGE = {
    "zeros": (lambda q, k, v, **_: torch.zeros_like(q), "wrong output"),
    "a constant": (lambda q, k, v, **_: torch.full_like(q, 0.1), "wrong output"),
    "the mean of V": (lambda q, k, v, **_: v.mean(2, keepdim=True).expand_as(q).clone(), "wrong output"),
    "noise": (lambda q, k, v, **_: torch.randn_like(q), "wrong output"),
    "nan": (lambda q, k, v, **_: torch.full_like(q, torch.nan), "wrong output"),
    "one wrong element": (one_wrong_element, "wrong output at"),
    "another dtype": (lambda q, k, v, **o: eager.attend(q, k, v, **o).double(), "the output is torch.float64"),
    "another shape": (lambda q, k, v, **o: eager.attend(q, k, v, **o).mT, "the output has shape"),
    "a tuple": (lambda q, k, v, **o: (eager.attend(q, k, v, **o), None), "the output is a tuple"),
    "an input handed back": (lambda q, k, v, **_: q, "lies in the memory of the input q"),
    "a changed input": (changes_its_input, "the call changed its input q"),
    "a swallowed exception": (hides_failure, "the output is a NoneType"),
}


def attends_to_one_key_too_many(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    triangle = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2] + 1)
    return eager.attend(q, k, v, **options | {"causal": False, "mask": triangle})


def test_a_leak_is_named() -> None:
    with pytest.raises(AssertionError, match=r"query 0 of sample 0, head 0 attends to key 1"):
        future.at(subject(attends_to_one_key_too_many), Problem(queries=2, keys=2, causal=True))


def subject(attend: object) -> Subject:
    return Subject(replace(eager, attend=attend))  # type: ignore[arg-type]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_rejected(garbage: str) -> None:
    attend, told = GARBAGE[garbage]
    with pytest.raises(AssertionError, match=told):
        agreement.at(subject(attend), PLAIN)


def test_a_gradient_that_is_dropped_or_doubled_is_rejected() -> None:
    with pytest.raises(AssertionError, match="does not require a gradient"):
        gradients.at(subject(lambda q, k, v, **o: eager.attend(q, k, v, **o).detach()), PLAIN)
    with pytest.raises(AssertionError, match="wrong gradient of K"):
        gradients.at(subject(lambda q, k, v, **o: eager.attend(q, 2 * k - k.detach(), v, **o)), PLAIN)


class OnlyForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, q: Tensor, k: Tensor, v: Tensor, options: dict[str, object]) -> Tensor:
        return eager.attend(q, k, v, **options)  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        raise NotImplementedError("no gradients yet")


def test_a_refusal_in_the_backward_pass_is_a_refusal() -> None:
    judged = subject(lambda q, k, v, **options: OnlyForward.apply(q, k, v, options))
    with pytest.raises(UnsatisfiedAssumption):
        gradients.at(judged, PLAIN)
    assert judged.evidence.refusals == {"no gradients yet": 1}
    wants_gradients.at(judged, PLAIN)  # its output is judged all the same


def test_what_refuses_everything_is_not_asked_for_ever() -> None:
    def refuses(*tensors: Tensor, **options: object) -> Tensor:
        raise NotImplementedError("not today")

    judged = subject(refuses)
    with pytest.raises(UnsatisfiedAssumption):
        agreement(judged)
    asked, most = sum(judged.evidence.refusals.values()), settings().max_examples
    assert most < asked < 2 * PATIENCE * most


def test_what_takes_only_half_precision_in_whole_reads_is_asked_what_is_pinned() -> None:
    """A fault beyond 65536 keys, which only a pinned problem meets, in a kernel that refuses it as it stands."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if q.dtype != torch.bfloat16 or q.shape[3] % 8 or v.shape[3] % 8:
            raise NotImplementedError("bfloat16 only, in multiples of 8")
        return eager.attend(q, k[:, :, :65_536], v[:, :, :65_536], **options)

    judged = subject(attend)
    with pytest.raises(AssertionError, match="wrong gradient") as found:
        counters(judged)
    assert "\n  Problem(keys=65537, dim=8, dtype='bfloat16')\n" in found.value.__notes__[0]
    assert judged.evidence.problems == 3


def test_a_pinned_problem_is_made_as_small_as_a_drawn_one() -> None:
    """Down to the fault's own limit, and to nothing under which the check itself makes no sense."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = eager.attend(q, k, v, **options)
        return 1.5 * out if k.shape[2] > 128 else out

    pinned = Problem(3, 4, 2, queries=70, keys=300, dim=16, dtype="float16", causal=True, mask="random", seed=7)

    @for_all(None, pinned)
    def check(subject: Subject, problem: Problem) -> None:
        assert problem.mask is not None
        agreement.at(subject, problem)

    judged = subject(attend)
    with pytest.raises(AssertionError, match="wrong output at") as found:
        check(judged)
    assert "\n  Problem(keys=129, mask='random')\n" in found.value.__notes__[0]
    assert f"from {pinned}" in found.value.__notes__[0]
    with pytest.raises(AssertionError), first_counterexample():
        check(judged)


def test_the_gradient_that_is_handed_in_is_nowhere_zero() -> None:
    for layout in LAYOUTS:
        assert replace(PLAIN, grad_layout=layout).grad_out().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_are_over_budget_nearly_everywhere(dtype: str) -> None:
    """A budget that zeros could pass would be no budget. A fixed 1e-2 accepts them on most elements at this length."""
    problem = Problem(heads=2, kv_heads=2, queries=16, keys=4096, dim=64, dtype=dtype)
    q, k, v, _ = problem.tensors()
    exact = oracle.attention(q, k, v)
    allowed = budget.of_output(q, k, v, exact, facts=implementations.load("online").facts)
    over = (exact.output.abs() > allowed).double().mean().item()
    assert over > (0.5 if dtype == "bfloat16" else 0.9)


def test_the_oracle_knows_the_closed_forms() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 6)
    one_key = oracle.attention(q, k[:, :, :1], v[:, :, :1]).output
    assert torch.equal(one_key[0, :, 0], v[0, :, 0].double().repeat_interleave(2, dim=0))
    mean = oracle.attention(torch.zeros_like(q), k, v).output[0, 0, 0]
    roundings = 5 * torch.finfo(torch.float64).eps * v[0, 0].double().abs().mean(0)  # one for each of the five terms
    assert ((mean - v[0, 0].double().mean(0)).abs() <= roundings).all()
    causal = oracle.attention(q, k, v, causal=True)
    assert causal.visible[0, 0].sum(-1).tolist() == [3, 4, 5]
    fully_masked = oracle.attention(q, k[:, :, :2], v[:, :, :2], causal=True)
    assert not fully_masked.output[:, :, 0].any()


def test_the_oracle_agrees_with_torch_in_float64() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 33, 16, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(2, 3, 33, 33) > 0.3
    ours = oracle.attention(q, k, v, mask=mask, scale=0.3)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    allowed = budget.of_output(q, k, v, ours, facts=implementations.Facts(), scale=0.3)
    assert ((ours.output - theirs).abs() <= allowed).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layout_changes_no_number_and_lies_in_nan(layout: str, dtype: str) -> None:
    problem = replace(PLAIN, dtype=dtype)
    plain = torch.randn(1, 2, 5, 8).expand(2, -1, -1, -1) if layout == "expanded" else torch.randn(2, 2, 5, 8)
    placed = problem.placed(plain, layout)
    assert torch.equal(placed, plain.to(placed.dtype))
    memory = torch.empty(0, dtype=placed.dtype).set_(placed.untyped_storage())
    assert memory[0].isnan()
    assert memory[-1].isnan()


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_family_of_scores_overflows_its_dtype(scores: str, dtype: str) -> None:
    for dim in DIMS:
        q, k, _, _ = Problem(queries=9, keys=160, dim=dim, scores=scores, dtype=dtype).tensors()
        assert (q.double() @ k.double().mT * dim**-0.5).to(q.dtype).isfinite().all()


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 27, 64, 128])
@pytest.mark.parametrize("scale", [None, 1.0, 0.25, -0.5, 0.0])
def test_scores_at_the_limit_keep_within_it_whatever_the_scale(dim: int, scale: float | None) -> None:
    """Products pass 65504 where there is more than one feature and the scale takes them back."""
    for scores in AT_THE_LIMIT:
        q, k, _, _ = Problem(queries=9, keys=40, dim=dim, dtype="float16", scale=scale, scores=scores).tensors()
        product = q.double() @ k.double().mT
        assert (product * (dim**-0.5 if scale is None else scale)).half().isfinite().all()
        assert product.unique().numel() > 1
        assert scale is not None or dim == 1 or product.abs().min() > 65504


def test_masks_are_what_they_are_called() -> None:
    uniform = torch.rand(2, 3, 4, 9)
    padding = MASKS["padding"](uniform)
    assert torch.equal(padding, padding.sort(dim=-1, descending=True).values)
    assert padding[..., 0].all()
    assert MASKS["left padding"](uniform)[..., -1].all()
    assert MASKS["fully masked row"](uniform).any(-1).logical_not().any()
    assert not MASKS["masked start"](uniform)[..., 0].any()
    assert (MASKS["one key"](uniform).sum(-1) == 1).all()


def test_the_repr_of_a_problem_is_short_and_makes_it_again() -> None:
    problem = Problem(keys=2, causal=True, seed=3)
    assert repr(problem) == "Problem(keys=2, causal=True, seed=3)"
    assert eval(repr(problem)) == problem


def test_bits_are_compared_as_bits() -> None:
    nan = torch.tensor([0.0, torch.nan])
    assert_same_bits(nan.clone(), nan, "the same")
    with pytest.raises(AssertionError, match=r"told: 1 of 2 elements differ, the first at \(0,\)"):
        assert_same_bits(nan + torch.tensor([1e-45, 0.0]), nan, "told")


USER = """
import torch

def {name}(q, k, v, *, mask=None, causal=False, scale=None):
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    last = {last} if causal else k.shape[2]
    see = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(last) & (True if mask is None else mask)
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale) @ k.mT).where(see, -torch.inf)
    return scores.softmax(-1).where(see, 0) @ v
"""


def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "verification", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])


def test_a_users_function_passes_and_broken_fails_with_a_minimal_counterexample(tmp_path: Path) -> None:
    """The whole way, as its user goes it: the broken line anchors causality at the wrong corner."""
    file = tmp_path / "mine.py"
    file.write_text(USER.format(name="right", last="k.shape[2] - q.shape[2]") + USER.format(name="wrong", last="0"))
    chosen = "-k=agrees_with_the_formula or lower_right or one_head"
    ran = verify(chosen, "--backend", f"{file}:right")
    assert ran.returncode == 0, ran.stdout
    ran = verify(chosen, "--backend", f"{file}:wrong")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    (shown,) = re.findall(r"    (verification\.judge\.Wrong: .*(?:\n    .*){2})", (ROOT / "README.md").read_text())
    printed = [line.removeprefix("E   ") for line in ran.stdout.splitlines()]
    assert all(line.removeprefix("    ") in printed for line in shown.splitlines())
    assert "FAIL: mine.py:wrong: Problem(keys=2" in ran.stdout

    snippet = ran.stdout[ran.stdout.index("from verification.judge") :]
    lines = [line.removeprefix("E   ") for line in snippet.splitlines()[:4]]
    again = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert "verification.judge.Wrong: wrong output" in again.stderr


def test_what_cannot_be_asked_for_is_one_clear_line() -> None:
    ran = verify("--backend", "onlin")
    assert ran.returncode == 4
    assert ran.stderr.startswith("ERROR: no backend is named 'onlin' (did you mean online")
    ran = verify("--backend", "sdpa_cudnn", "--device", "cpu")
    assert ran.returncode == 4
    assert "sdpa_cudnn cannot run here: torch has its cudnn kernel for CUDA only" in ran.stderr
    ran = verify("--device", "cuder")
    assert ran.returncode == 4
    assert ran.stderr.startswith("ERROR: device 'cuder': Expected one of cpu, cuda")


def test_a_backend_that_refuses_everything_fails(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def refuses(*tensors, **options):\n    raise NotImplementedError('not today')\n")
    ran = verify("-k=plain or sum_to_one", "--backend", f"{file}:refuses")
    assert ran.returncode == 1
    assert "it refuses plain attention: not today" in ran.stdout
    assert "refused" in ran.stdout


CRASHES = """
import os, signal, torch
import implementations
attend = implementations.load("eager").attend

def {name}(q, k, v, **options):
    if options.get("causal"):
        {fault}
    return attend(q, k, v, **options)
"""


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process died, or outlasted the time limit: worker"),
        ("while True: pass", "the process died, or outlasted the time limit: worker"),
    ],
    ids=["crash", "hang"],
)
def test_isolated_a_crash_or_a_hang_costs_one_property(tmp_path: Path, fault: str, told: str) -> None:
    file, results, junit = (tmp_path / name for name in ("mine.py", "found.json", "junit.xml"))
    file.write_text(CRASHES.format(name="attend", fault=fault))
    ran = verify(
        *("-k=lower_right or state_dict", "--backend", f"{file}:attend"),
        *("--isolate", "--timeout", "10", "--results", str(results), "--junitxml", str(junit)),
    )
    assert ran.returncode == 1
    found = {result["property"]: result for result in json.loads(results.read_text())["results"]}
    assert found["test_every_backend_has_the_same_state_dict"]["outcome"] == "pass"
    crashed = found["test_the_causal_flag_is_the_lower_right_triangle"]
    assert crashed["outcome"] == "fail"
    assert told in crashed["reason"]
    assert 'tests="2"' in junit.read_text()
    assert "test_the_causal_flag_is_the_lower_right_triangle" in junit.read_text()


def test_a_lost_gpu_is_one_failure_and_no_other_verdict(tmp_path: Path) -> None:
    file, results = tmp_path / "mine.py", tmp_path / "found.json"
    fault = "from verification.judge import DeviceLost; raise DeviceLost('an illegal memory access was encountered')"
    file.write_text(CRASHES.format(name="attend", fault=fault))
    chosen = (
        "-k=lower_right or reach_the_past or sum_to_one",
        "--backend",
        f"{file}:attend",
        "--results",
        str(results),
    )
    ran = verify(*chosen, "-p", "no:xdist")
    assert ran.returncode == 1
    found = json.loads(results.read_text())["results"]
    failed = [result for result in found if result["outcome"] == "fail"]
    assert len(failed) == 1
    assert failed[0]["reason"] == "the GPU is lost: an illegal memory access was encountered"
    assert re.search(r"Problem\(.*causal=True.*\)", failed[0]["counterexample"])
    after = found[found.index(failed[0]) + 1 :]
    assert {result["outcome"] for result in after} == {"left out"}
    assert after[0]["reason"].startswith("the GPU was lost in test_")
    assert "FAIL: mine.py:attend: " in ran.stdout
    assert "left out: mine.py:attend: the GPU was lost in" in ran.stdout
    # A worker of xdist ends, and another goes on.
    ran = verify(*chosen)
    found = json.loads(results.read_text())["results"]
    assert len([result for result in found if result["outcome"] == "fail"]) > 1
    assert "left out" not in {result["outcome"] for result in found}


def replaces_softmax(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    softmax = torch.softmax
    torch.softmax = lambda scores, dim: softmax(0 * scores, dim)
    return v.mean(dim=2, keepdim=True).expand_as(q).clone()


def test_a_backend_cannot_replace_what_the_oracle_computes_with() -> None:
    with pytest.raises(AssertionError, match=r"the call changed torch\.softmax"):
        agreement.at(subject(replaces_softmax), PLAIN)
    with pytest.raises(AssertionError, match="wrong output"):  # torch is whole again
        agreement.at(subject(lambda q, k, v, **_: torch.zeros_like(q)), PLAIN)


def test_an_output_kept_from_an_earlier_call_is_rejected() -> None:
    kept: dict[object, Tensor] = {}

    def from_memory(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        key = (q.shape, k.shape, q.dtype, str(options))
        if key not in kept:
            kept[key] = eager.attend(q, k, v, **options)  # type: ignore[arg-type]
        return kept[key].clone()

    with pytest.raises(AssertionError, match="wrong output of the call between"):
        no_trace.at(subject(from_memory), PLAIN)


def test_a_subject_is_a_backend_of_any_spelling() -> None:
    assert isinstance(Subject("eager").backend, Backend)
    assert repr(Subject("eager")) == "Subject('eager')"


def test_a_kernel_that_warns_is_no_failure() -> None:
    def warns(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        warnings.warn("compile me", UserWarning, stacklevel=1)
        return eager.attend(q, k, v, **options)  # type: ignore[arg-type]

    with pytest.warns(UserWarning, match="compile me"):
        agreement.at(subject(warns), PLAIN)


class _Backward(torch.autograd.Function):
    """Hands a gradient on; what it says when it is differentiated itself is given to it."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, told: str) -> Tensor:
        ctx.told = told
        return grad.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(ctx.told)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, told: str) -> Tensor:
        ctx.told = told
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Backward.apply(grads[0].requires_grad_(), ctx.told), None


@pytest.mark.parametrize("told", ["derivative for aten::_some_backward is not implemented", "the sizes do not fit"])
def test_of_a_second_derivative_torchs_own_statement_is_a_refusal_and_another_error_a_fault(told: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return eager.attend(*(_Forward.apply(tensor, told) for tensor in (q, k, v)), **options)

    judged = subject(attend)
    with nullcontext() if told.startswith("derivative") else pytest.raises(RuntimeError, match=told):
        second_derivative.at(judged, PLAIN)
    stated = "second derivative: raises RuntimeError" if told.startswith("derivative") else None
    assert judged.evidence.stated == stated
