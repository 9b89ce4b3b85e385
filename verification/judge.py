"""What every call of a backend must keep to, and the comparison with the oracle."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor

import implementations
from implementations import Backend, Facts, SelfAttention
from verification import budget, oracle
from verification.problems import Problem


@dataclass
class Evidence:
    """What happened to one subject in one test.

    problems judged, calls answered, refusals by reason, the worst error over budget by dtype and by number of keys
    (as LENGTHS names them), and a behaviour that was confirmed
    """

    problems: int = 0
    calls: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    worst: dict[str, dict[str, float]] = field(default_factory=dict)
    stated: str | None = None

    @property
    def refused(self) -> int:
        """How many calls were refused."""
        return sum(self.refusals.values())


# Begins the reason of a skip that is no refusal: there was no time, no memory or no device to ask with.
LEFT_OUT = "left out: "


class DeviceLost(BaseException):
    """The GPU answers nothing more in this process, as after an illegal access.

    No Exception: hypothesis would look for a smaller problem, and take the smallest, since all fail from now on.
    """


# By the most keys; what is longer is "over" the last.
LENGTHS = {16: "1-16", 64: "17-64", 256: "65-256"}


def length_of(keys: int) -> str:
    """The entry of LENGTHS for so many keys."""
    return next((name for most, name in LENGTHS.items() if keys <= most), f"over {max(LENGTHS)}")


# What oracle and judge compute with. A backend may not replace it: the oracle would be the first to be fooled.
_RELIED_ON: dict[Any, tuple[str, ...]] = {
    torch: ("einsum", "softmax", "where", "expm1", "equal", "arange", "ones_like", "zeros_like", "maximum", "minimum"),
    torch.autograd: ("grad",),
    torch.Tensor: (
        *("abs", "amax", "any", "clone", "detach", "double", "expand_as", "max", "nan_to_num", "repeat_interleave"),
        *("sum", "view", "__add__", "__eq__", "__le__", "__matmul__", "__mul__", "__sub__", "__truediv__"),
    ),
}
_TORCH = [(owner, name, getattr(owner, name)) for owner, names in _RELIED_ON.items() for name in names]


class Subject:
    """A backend under judgement on a device.

    >>> Subject("online").attend(q, k, v, causal=True)

    layer_type  the layer that is built round it; another one only where the layer itself is under judgement
    """

    def __init__(
        self,
        backend: str | Backend,
        device: str | torch.device = "cpu",
        layer_type: type[SelfAttention] = SelfAttention,
    ) -> None:
        self.backend = implementations.load(backend) if isinstance(backend, str) else backend
        self.device = torch.device(device)
        self.layer_type = layer_type
        self.evidence = Evidence()

    def __repr__(self) -> str:
        device = "" if self.device.type == "cpu" else f", {str(self.device)!r}"
        return f"Subject({self.backend.name!r}{device})"

    @property
    def interpreted(self) -> bool:
        """Its kernels run in Triton's interpreter, thousands of times slower than anywhere else."""
        return self._triton_is_interpreted is True

    @property
    def compiles(self) -> bool:
        """Its kernels are Triton's and compiled, which takes seconds for each new kind of problem."""
        return self._triton_is_interpreted is False

    @property
    def _triton_is_interpreted(self) -> bool | None:
        return getattr(sys.modules.get(getattr(self.backend.attend, "__module__", "")), "INTERPRETED", None)

    @property
    def facts(self) -> Facts:
        return self.backend.facts

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """The backend's answer, once it has the right shape, dtype and device, new memory, and left its inputs alone.

        A refusal (NotImplementedError) is counted, and hypothesis draws another problem in its place.
        """
        __tracebackhide__ = True
        given = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
        before = {name: tensor.detach().clone() for name, tensor in given.items()}
        with self._in_the_subject():
            out = self.backend.attend(q, k, v, mask=mask, causal=causal, scale=scale)
        self.evidence.calls += 1
        wanted = (*q.shape[:3], v.shape[3])
        assert isinstance(out, Tensor), f"the output is a {type(out).__name__}; wanted a torch.Tensor"
        assert tuple(out.shape) == wanted, f"the output has shape {tuple(out.shape)}; wanted {wanted}"
        assert out.dtype == q.dtype, f"the output is {out.dtype}; wanted {q.dtype}, the dtype of q"
        assert out.device == q.device, f"the output is on {out.device}; wanted {q.device}, the device of q"
        for name, tensor in given.items():
            assert _same_bits(tensor, before[name]), f"the call changed its input {name}"
            assert not _share_memory(out, tensor), f"the output lies in the memory of the input {name}"
        return out

    def gradients(
        self, problem: Problem, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, grad_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dQ, dK and dV for that gradient of the output, with the shapes and dtypes of q, k and v."""
        __tracebackhide__ = True
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        out = self.attend(leaves[0], leaves[1], leaves[2], **problem.options(mask))
        assert out.requires_grad, "the output does not require a gradient although q, k and v do"
        grad_q, grad_k, grad_v = self.gradients_of(out, leaves, grad_out)
        return grad_q, grad_k, grad_v

    def gradients_of(
        self,
        out: Tensor,
        leaves: Sequence[Tensor],
        grad_out: Tensor,
        *,
        create_graph: bool = False,
        retain_graph: bool | None = None,
    ) -> list[Tensor]:
        """The gradients of an output of `attend` with respect to leaves of it, with their shapes and dtypes."""
        __tracebackhide__ = True
        if not leaves:
            return []
        before = grad_out.detach().clone()
        with self._in_the_subject():
            if _forbids_grad(out):
                kept = [leaf.grad for leaf in leaves]
                for leaf in leaves:
                    leaf.grad = None
                out.backward(grad_out, create_graph=create_graph, retain_graph=retain_graph)
                grads = [leaf.grad for leaf in leaves]
                for leaf, before_it in zip(leaves, kept, strict=True):
                    leaf.grad = before_it
            else:
                grads = torch.autograd.grad(
                    out, leaves, grad_out, allow_unused=True, create_graph=create_graph, retain_graph=retain_graph
                )
        assert _same_bits(grad_out, before), "the backward pass changed the gradient it was given"
        answers: list[Tensor] = []
        for grad, leaf in zip(grads, leaves, strict=True):
            wanted = f"{tuple(leaf.shape)} {leaf.dtype}"
            assert grad is not None, f"a tensor {wanted} requires a gradient and gets none"
            told = f"{tuple(grad.shape)} {grad.dtype}"
            assert told == wanted, f"a gradient is {told}; wanted {wanted}"
            answers.append(grad)
        return answers

    @contextmanager
    def _in_the_subject(self) -> Iterator[None]:
        """Round what runs the subject's code: a warning is no error, a refusal is counted, torch stays whole.

        In this project's own tests a warning is an error, and would be taken for a fault of a kernel that warns.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                yield
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)  # or what a kernel does wrong is raised by whoever comes next
        except NotImplementedError as refusal:
            told = str(refusal)
            if not told:
                raise AssertionError("it refuses without a reason: NotImplementedError wants one") from refusal
            self.evidence.refusals[told] = self.evidence.refusals.get(told, 0) + 1
            raise UnsatisfiedAssumption(told) from refusal
        except RuntimeError as error:
            if self.device.type == "cuda" and _is_lost(self.device):
                raise DeviceLost(str(error)) from error
            raise
        finally:
            _assert_torch_is_whole()

    def compare(self, problem: Problem, name: str, answer: Tensor, right: Tensor, allowed: Tensor) -> None:
        """Fails unless |answer - right| <= allowed everywhere; a NaN in the answer fails."""
        __tracebackhide__ = True
        if answer.dtype == torch.float64 and problem.dtype == "float64":
            allowed = 2 * allowed  # the oracle, in float64 too, is as uncertain as the answer
        ratio = budget.ratio(answer, right, allowed)
        if not ratio.numel():
            return
        worst = ratio.max().item()
        by_length, length = self.evidence.worst.setdefault(problem.dtype, {}), length_of(problem.keys)
        by_length[length] = max(by_length.get(length, 0.0), worst)
        assert worst <= 1, _told(name, answer, right, allowed, ratio)

    def compare_gradients(
        self, problem: Problem, answers: Sequence[Tensor], right: Sequence[Tensor], allowed: Sequence[Tensor], told: str
    ) -> None:
        """`compare` for dQ, dK and dV; `told` ends their names."""
        __tracebackhide__ = True
        for letter, answer, exact, budgeted in zip("QKV", answers, right, allowed, strict=True):
            self.compare(problem, f"gradient of {letter}{told}", answer, exact, budgeted)

    def layer(self, d_model: int, heads: int, kv_heads: int, seed: int) -> SelfAttention:
        """A layer round this subject, its calls held to the same; one seed and one size give the same weights."""
        torch.manual_seed(seed)
        judged = replace(self.backend, attend=self.attend)
        layer = self.layer_type(d_model, heads, kv_heads=kv_heads, backend=judged, device=self.device)
        return layer.requires_grad_(False)

    def exact(self, problem: Problem, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> oracle.Exact:
        """The right answer."""
        return oracle.attention(q, k, v, **problem.options(mask))

    def budget(self, problem: Problem, q: Tensor, k: Tensor, v: Tensor, exact: oracle.Exact) -> Tensor:
        """How far from it the output may be."""
        return budget.of_output(q, k, v, exact, facts=self.facts, scale=problem.scale)

    def exact_gradients(
        self, problem: Problem, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, grad_out: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The right dQ, dK and dV in float64, and how far from them the answers may be."""
        right, exact = oracle.gradients(q, k, v, grad_out, **problem.options(mask))
        return right, budget.of_gradients(q, k, v, grad_out, exact, facts=self.facts, scale=problem.scale)


def _forbids_grad(out: Tensor) -> bool:
    """Whether a checkpoint of the reentrant kind is in the graph: it wants `.backward()`, not `torch.autograd.grad`."""
    waiting, known = [out.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        known.add(node)
        waiting += [before for before, _ in node.next_functions]
    return False


def _is_lost(device: torch.device) -> bool:
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _assert_torch_is_whole() -> None:
    for owner, name, part in _TORCH:
        if getattr(owner, name) is not part:
            setattr(owner, name, part)
            raise AssertionError(f"the call replaced {owner.__name__}.{name}")


def one_may_be_refused() -> AbstractContextManager[None]:
    """Inside the block a refusal ends the block, where otherwise it ends the problem."""
    return suppress(UnsatisfiedAssumption)


def assert_no_leak(
    changed: Tensor, before: Tensor, told: str, keys: Sequence[int], changed_at: Callable[[int], Tensor]
) -> None:
    """As `assert_same_bits`; the sentence goes on to say which query attends to which of those keys.

    changed_at  gives `before` with that key alone changed; called for few keys only, as a shrunk problem has them
    """
    __tracebackhide__ = True
    if torch.equal(changed, before):
        return
    for key in keys if len(keys) <= 8 else ():
        seen_by = (changed_at(key) != before).any(dim=-1).nonzero()
        if len(seen_by):
            batch, head, query = seen_by[0].tolist()
            told += f"; query {query} of sample {batch}, head {head} attends to key {key}"
            break
    assert_same_bits(changed, before, told)


def assert_same_bits(answer: Tensor, wanted: Tensor, told: str) -> None:
    """Fails, with that sentence, unless two tensors of one shape are equal: 0 and -0 are, and so are two NaN."""
    __tracebackhide__ = True
    different = ~((answer == wanted) | (answer.isnan() & wanted.isnan()))
    if not different.any():
        return
    place = tuple(different.nonzero()[0].tolist())
    lines = [
        f"{told}: {different.sum().item()} of {different.numel()} elements differ, the first at {place}: "
        f"{answer[place].item()!r} and {wanted[place].item()!r}"
    ]
    if _is_small(answer):
        lines += ["one:", _matrix(answer, different), "the other:", _matrix(wanted, different)]
    raise AssertionError("\n".join(lines))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    as_integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.detach().view(as_integers), b.detach().view(as_integers))


def _share_memory(a: Tensor, b: Tensor) -> bool:
    return a.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _told(name: str, answer: Tensor, right: Tensor, allowed: Tensor, ratio: Tensor) -> str:
    place = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
    over = ratio > 1
    lines = [
        f"wrong {name} at {place}: {answer[place].item():.6g} where {right[place].item():.6g} is right, "
        f"{ratio[place].item():.3g} times its error budget of {allowed[place].item():.2g} "
        f"({over.sum().item()} of {over.numel()} elements are over budget)"
    ]
    if _is_small(answer):
        lines += ["answer:", _matrix(answer, over), "right:", _matrix(right, over)]
    return "\n".join(lines)


def _is_small(values: Tensor) -> bool:
    """One matrix of at most 4 x 4 numbers, which is read at a glance."""
    if values.ndim < 2:
        return False
    rows, columns = values.shape[-2:]
    return rows <= 4 and columns <= 4 and 0 < values.numel() == rows * columns


def _matrix(values: Tensor, marked: Tensor) -> str:
    """Rows of numbers, the marked ones in brackets."""
    rows: list[str] = []
    for numbers, marks in zip(values.flatten(0, -2).tolist(), marked.flatten(0, -2).tolist(), strict=True):
        told = [f"[{number:.4g}]" if mark else f"{number:.4g} " for number, mark in zip(numbers, marks, strict=True)]
        rows.append("  " + " ".join(f"{text:>11}" for text in told))
    return "\n".join(rows)
