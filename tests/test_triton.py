"""The Triton backends beyond the contract: the torch operator around their kernels, their launches, their tiles."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import implementations

# Not triton itself: the interpreter has to be asked for before that is imported, which the backend does.
pytest.importorskip("implementations.online_triton", exc_type=ImportError)
if torch.cuda.is_available():
    pytest.skip("kernels are compiled where there is a GPU", allow_module_level=True)

from triton.runtime.errors import OutOfResources

from implementations import _triton_attention, _triton_launch, _triton_tuning
from implementations._triton_launch import View
from implementations._triton_tiles import Tile
from implementations._triton_tuning import CHOSEN, TuningKey, tile_for
from verification import budget, oracle

ATTEND = {name: implementations.load(name).attend for name in ("online_triton", "two_pass_triton")}

each_backend = pytest.mark.parametrize("attend", ATTEND.values(), ids=ATTEND)


def tensors(
    queries: int = 5, keys: int = 7, dtype: torch.dtype = torch.float32, requires_grad: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with 4 heads that share 2 kv heads, and value_dim != head_dim."""
    random = torch.Generator().manual_seed(0)
    shapes = ((2, 4, queries, 8), (2, 2, keys, 8), (2, 2, keys, 16))
    q, k, v = (torch.randn(shape, generator=random).to(dtype).requires_grad_(requires_grad) for shape in shapes)
    return q, k, v


def assert_within_budget(out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    exact = oracle.attention(q, k, v)
    allowed = budget.of_output(q, k, v, exact, facts=implementations.load("online_triton").facts)
    assert budget.ratio(out, exact.output, allowed).max() <= 1


def some_keys(keys: int = 7) -> Tensor:
    return torch.arange(keys) % 3 != 1


class Launches:
    """Stands in for the kernels: keeps what each launch was given and runs nothing."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []
        self.arguments: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: Callable[[dict[str, Any]], tuple[int, ...]]) -> Callable[..., None]:
        def run(*arguments: Any, **constants: Any) -> None:
            self.grids.append(grid(constants))
            self.arguments.append(arguments)

        return run


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    recorded = Launches()
    monkeypatch.setattr(_triton_launch, "KERNEL_FUNCTIONS", dict.fromkeys(_triton_launch.KERNEL_FUNCTIONS, recorded))
    return recorded


# The operator.


@pytest.mark.parametrize(("passes", "masked"), [("online", True), ("two_pass", False)])
def test_the_operator_is_what_torch_takes_it_for(passes: str, masked: bool) -> None:
    q, k, v = tensors()
    mask = some_keys()[None, None, None] if masked else None
    torch.library.opcheck(_triton_attention._ATTENTION, (q, k, v, mask, True, 0.3, passes))


def test_the_operator_of_the_backward_pass_is_what_torch_takes_it_for() -> None:
    q, k, v = tensors(requires_grad=False)
    out, lse = _triton_attention._ATTENTION(q, k, v, None, True, 0.3, "online")
    torch.library.opcheck(_triton_attention._ATTENTION_BACKWARD, (out, q, k, v, None, out, lse, True, 0.3))


@each_backend
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
# torch 2.13 warns of itself while it imports inductor.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_in_one_graph_it_gives_the_same_bits(attend: implementations.Attend, compiler: str) -> None:
    if compiler == "inductor":
        if attend is not ATTEND["online_triton"]:
            pytest.skip("the operator is the same, and inductor takes half a minute to start")
        if shutil.which("c++") is None and shutil.which("g++") is None:
            pytest.skip("inductor needs a C++ compiler")

    def model(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        # The products with one number lie around the operator for a compiler to do something with.
        return attend((q * 2).mT.contiguous().mT, k, v, mask=mask, causal=True) * 3

    q, k, v = tensors()
    compiled = torch.compile(model, fullgraph=True, backend=compiler)
    out, right = compiled(q, k, v, some_keys()), model(q, k, v, some_keys())
    assert torch.equal(out, right)
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    for grad, right_grad in zip(grads, torch.autograd.grad(right.sum(), (q, k, v)), strict=True):
        assert torch.equal(grad, right_grad)


@each_backend
def test_under_autocast_it_casts_as_torch_s_own_attention_does(attend: implementations.Attend) -> None:
    q, k, v = tensors()
    half = [tensor.detach().half().requires_grad_() for tensor in (q, k, v)]
    mixed = (q, k.detach().half().requires_grad_(), v)
    with torch.autocast("cpu", torch.float16):
        out = attend(q, k, v)
        mixed_out = attend(*mixed)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")(q, k, v)
    right = attend(half[0], half[1], half[2])
    assert out.dtype == theirs.dtype == torch.float16
    assert torch.equal(out, right)
    assert torch.equal(mixed_out, right)
    assert torch.equal(compiled, right)
    right_grads = torch.autograd.grad(right.sum(), half)
    for grad, right_grad in zip(torch.autograd.grad(out.sum(), (q, k, v)), right_grads, strict=True):
        assert grad.dtype == torch.float32
        assert torch.equal(grad, right_grad.float())


@each_backend
def test_autocast_leaves_float64_alone(attend: implementations.Attend) -> None:
    q, k, v = tensors(dtype=torch.float64)
    with torch.autocast("cpu", torch.float16), pytest.raises(NotImplementedError, match="float64"):
        attend(q, k, v)


# Gradients.


@each_backend
@pytest.mark.parametrize("loss", [torch.sum, lambda out: out.square().sum()], ids=["sum", "squares"])
@pytest.mark.parametrize("wanted", [0, 1, 2], ids="qkv")
def test_a_second_derivative_raises(attend: implementations.Attend, loss: Callable[..., Tensor], wanted: int) -> None:
    """With a plain sum the incoming gradient needs no gradient itself: what is lost then is lost in silence."""
    leaves = tensors()
    (grad,) = torch.autograd.grad(loss(attend(*leaves)), leaves[wanted], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(grad.sum(), leaves, allow_unused=True)


def test_a_gradient_for_one_input_is_that_for_all_of_them() -> None:
    leaves = tensors()
    right = torch.autograd.grad(ATTEND["online_triton"](*leaves).sum(), leaves)
    for wanted in range(3):
        some = [leaf.detach().requires_grad_(i == wanted) for i, leaf in enumerate(leaves)]
        ATTEND["online_triton"](some[0], some[1], some[2]).sum().backward()
        for i, leaf in enumerate(some):
            assert (leaf.grad is not None) == (i == wanted)
            assert leaf.grad is None or torch.equal(leaf.grad, right[i])


def test_no_gradient_of_the_output_is_no_gradient_of_the_inputs() -> None:
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, out: Tensor) -> Tensor:
            return out.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:  # type: ignore[override]
            return None

    leaves = tensors()
    Cut.apply(ATTEND["online_triton"](*leaves)).sum().backward()
    assert [leaf.grad for leaf in leaves] == [None] * 3


def test_the_log_sum_exp_is_no_way_for_a_gradient() -> None:
    out, lse = _triton_attention._ATTENTION(*tensors(), None, False, 0.3, "online")
    assert out.requires_grad
    assert not lse.requires_grad


# Launches.


@pytest.mark.parametrize("shape", [(7,), (5, 1), (1, 4, 1, 7), (2, 1, 5, 7)], ids=str)
def test_a_mask_is_read_where_it_lies(launches: Launches, shape: tuple[int, ...]) -> None:
    mask = torch.ones(shape, dtype=torch.bool)
    saved: list[Tensor] = []
    q, k, v = tensors()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        out = ATTEND["online_triton"](q, k, v, mask=mask)
    torch.autograd.grad(out.sum(), q)
    assert len(launches.arguments) == 3
    for arguments in launches.arguments:
        read: View = arguments[3]
        assert read.data.data_ptr() == mask.data_ptr()
        assert read.data.untyped_storage().nbytes() == mask.numel()
        assert read.data.shape == (2, 4, 5, 7)
        axes = (1,) * (4 - len(shape)) + shape
        assert [stride == 0 for stride in read.stride] == [axis == 1 for axis in axes]
    assert mask.numel() in [tensor.numel() for tensor in saved if tensor.dtype == torch.bool]


def test_the_incoming_gradient_is_read_where_it_lies(launches: Launches) -> None:
    q, k, v = tensors()
    out = ATTEND["online_triton"](q, k, v)
    grads = {
        "expanded": torch.ones(1).expand(out.shape),
        "permuted": torch.ones(16, 5, 4, 2).permute(3, 2, 1, 0),
        "strided": torch.ones(2, 4, 5, 32)[..., ::2],
    }
    for grad in grads.values():
        launches.arguments.clear()
        torch.autograd.grad(out, q, grad, retain_graph=True)
        for arguments in launches.arguments:
            assert arguments[4].data.data_ptr() == grad.data_ptr()
            assert arguments[4].stride == grad.stride()


def test_there_is_one_axis_of_programs(launches: Launches) -> None:
    """A grid's second and third axis end at 65535."""
    q = torch.zeros(1, 1, 1, 1).expand(300, 300, 65, 1).requires_grad_()
    out = ATTEND["online_triton"](q, q, q)
    torch.autograd.grad(out, q, torch.zeros(1).expand(out.shape))
    # Blocks of 64 queries, 64 queries and 64 keys; 65 of either are 2 blocks.
    assert launches.grids == [(300 * 300 * 2,)] * 3


@each_backend
def test_what_lies_behind_the_diagonal_is_not_read(attend: implementations.Attend) -> None:
    """The loop over the keys ends at the diagonal: a NaN in a later block of keys meets no product, not even by 0."""
    q, k, v = tensors(queries=100, keys=100, requires_grad=False)
    k, v = k.clone(), v.clone()
    k[:, :, 64:], v[:, :, 64:] = float("nan"), float("nan")
    out = attend(q, k, v, causal=True)
    assert out[:, :, :64].isfinite().all()
    assert out[:, :, 64:].isnan().all()


# Tiles.

TUNING_KEY = TuningKey("sm_90", "online", torch.float16, 8, 16, causal=False, masked=False)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[TuningKey, Any]]:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # a torch without CUDA raises
    CHOSEN.clear()
    yield CHOSEN
    CHOSEN.clear()


def candidates() -> tuple[Tile, ...]:
    return _triton_tuning.candidates("sm_90", "online", torch.float16, 16)


class Clock:
    """Runs each kernel once and says that it took the next of `milliseconds`; None: it does not fit on the GPU."""

    def __init__(self, *milliseconds: float | None) -> None:
        self.milliseconds = list(milliseconds)

    def __call__(self, kernel_call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        kernel_call()
        time = self.milliseconds.pop(0)
        if time is None:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return [time] * len(quantiles)


def forward_as_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, list[Tile]]:
    """The output, and the tile of the launch itself, when tiles are chosen as on sm_90 and timed by that clock."""
    launched: list[Tile] = []

    def choose(*launch: Any) -> Tile:
        launched.append(tile_for(*launch, clock=clock))
        return launched[-1]

    monkeypatch.setattr(_triton_launch, "tile_for", choose)
    monkeypatch.setattr(_triton_launch, "_architecture", lambda _: "sm_90")
    return ATTEND["online_triton"](q, k, v), launched


def test_a_large_call_runs_with_the_fastest_tile_from_then_on(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[TuningKey, Any]
) -> None:
    monkeypatch.setattr(_triton_tuning, "WORTH_TIMING", 0)
    q, k, v = tensors(dtype=torch.float16, requires_grad=False)
    right = ATTEND["online_triton"](q, k, v)
    times: list[float | None] = [3.0 + i for i in range(len(candidates()))]
    times[-1] = 1.0
    clock = Clock(*times)
    out, first = forward_as_on_a_gpu(monkeypatch, clock, q, k, v)
    again, second = forward_as_on_a_gpu(monkeypatch, clock, q, k, v)
    assert first == second == [candidates()[-1]]
    assert not clock.milliseconds  # all were timed, and none a second time
    assert chosen == {TUNING_KEY: (candidates()[-1], dict(zip(candidates(), times, strict=True)))}
    assert torch.equal(again, out)
    assert_within_budget(right, q, k, v)
    assert_within_budget(out, q, k, v)


def test_a_tile_that_does_not_fit_is_not_chosen(monkeypatch: pytest.MonkeyPatch, chosen: dict[TuningKey, Any]) -> None:
    monkeypatch.setattr(_triton_tuning, "WORTH_TIMING", 0)
    fits = [2.0] * (len(candidates()) - 1)
    _, launched = forward_as_on_a_gpu(monkeypatch, Clock(None, *fits), *tensors(dtype=torch.float16))
    assert launched == [candidates()[1]]
    assert chosen[TUNING_KEY].milliseconds[candidates()[0]] == float("inf")


def test_a_small_call_takes_the_tile_that_ships(monkeypatch: pytest.MonkeyPatch, chosen: dict[TuningKey, Any]) -> None:
    _, launched = forward_as_on_a_gpu(monkeypatch, Clock(), *tensors(dtype=torch.float16))
    assert launched == [candidates()[0]]
    assert not chosen


def test_nothing_is_timed_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[TuningKey, Any]
) -> None:
    monkeypatch.setattr(_triton_tuning, "WORTH_TIMING", 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    _, launched = forward_as_on_a_gpu(monkeypatch, Clock(), *tensors(dtype=torch.float16))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    _, later = forward_as_on_a_gpu(monkeypatch, Clock(), *tensors(dtype=torch.float16))
    assert launched == later == [candidates()[0]]
    assert chosen == {TUNING_KEY: (candidates()[0], {})}


def test_nothing_is_timed_in_the_interpreter(monkeypatch: pytest.MonkeyPatch, chosen: dict[TuningKey, Any]) -> None:
    monkeypatch.setattr(_triton_tuning, "WORTH_TIMING", 0)
    q, k, v = tensors()
    ATTEND["two_pass_triton"](q, k, v).sum().backward()
    assert not chosen


# Refusals, and what decides about the interpreter.


@each_backend
@pytest.mark.parametrize(
    ("dtype", "dim", "reason"),
    [
        (torch.float64, 8, "no answer to a float64 question"),
        (torch.bfloat16, 8, "interpreter keeps bfloat16 as raw integers"),
        (torch.float32, 257, "head dims up to 256 fit on chip; given 257 for q, k and 257 for v"),
    ],
)
def test_what_the_kernels_do_not_answer_is_refused(
    attend: implementations.Attend, dtype: torch.dtype, dim: int, reason: str
) -> None:
    q = torch.zeros(1, 1, 2, dim, dtype=dtype)
    with pytest.raises(NotImplementedError, match=reason):
        attend(q, q, q)


def in_a_fresh_process(code: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env=inherited | environment,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_without_a_gpu_the_interpreter_needs_no_asking_and_triton_comes_with_its_backend_only() -> None:
    code = """
import sys, torch, implementations
implementations.load("eager")
print("triton" in sys.modules)
q = torch.ones(1, 1, 2, 4)
print(implementations.load("two_pass_triton").attend(q, q, q).tolist())
"""
    assert in_a_fresh_process(code) == "False\n[[[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]]]\n"


REFUSED = """\
Triton kernels run on CUDA, or on a CPU with TRITON_INTERPRET=1 since before triton was imported; not on cpu here
"""
ASK = """
import torch, implementations
q = torch.ones(1, 1, 2, 4)
try:
    implementations.load("online_triton").attend(q, q, q)
except NotImplementedError as refusal:
    print(refusal)
"""


def test_without_a_gpu_compiled_kernels_are_refused_before_they_are_launched() -> None:
    """Triton would say "0 active drivers ([]). There should only be one."."""
    assert in_a_fresh_process(ASK, TRITON_INTERPRET="0") == REFUSED


def test_kernels_that_came_too_late_for_the_interpreter_are_refused() -> None:
    """Triton's own functions are compiled by then: "Cannot call @triton.jit'd outside of the scope of a kernel"."""
    assert in_a_fresh_process("import triton\n" + ASK) == REFUSED


def test_a_copy_of_the_package_under_another_name_has_its_own_operators() -> None:
    """As the mutants are: what one registers may not replace what the other has."""
    from verification.mutants import CORRECT, load

    variant = next(variant for variant in CORRECT if variant.base == "online_triton")
    before = ATTEND["online_triton"](*tensors())
    attend = load(variant).attend
    assert_within_budget(attend(*tensors()), *tensors())
    assert torch.equal(ATTEND["online_triton"](*tensors()), before)


# torch says so of its own rules for forward mode, which it loads when they are first asked for.
ignores_torch_jit = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@ignores_torch_jit
@each_backend
def test_forward_mode_is_refused(attend: Callable[..., Tensor]) -> None:
    """torch would drop the tangent of an operator that has no rule for it, and call every derivative zero."""
    q, k, v = tensors(requires_grad=False)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda query: attend(query, k, v), (q,), (torch.ones_like(q),))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        attend(q, k, forward_ad.make_dual(v, torch.ones_like(v)))


@ignores_torch_jit
@each_backend
def test_forward_mode_over_the_backward_pass_is_refused(attend: Callable[..., Tensor]) -> None:
    q, k, v = tensors()
    out = attend(q, k, v)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.autograd.grad(out, q, forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out)))
