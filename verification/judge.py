"""What every call of a backend must keep to, and the comparison with the oracle."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

import torch
from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor

import implementations
from implementations import Backend, Facts, SelfAttention
from verification import budget, interpreter, machine, oracle
from verification.domain import Domain
from verification.outcome import DeviceLost, Evidence, LeftOut, length_of
from verification.problems import Problem
from verification.surroundings import undone


class Wrong(AssertionError):
    """A result is over its error budget; `call` is the problem of the very call, where a property makes several."""

    def __init__(self, message: str, call: Problem) -> None:
        super().__init__(message)
        self.call = call


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

    @cached_property
    def domain(self) -> Domain:
        """What it takes where all else is plain."""
        return Domain(self._answers)

    @cached_property
    def _launches(self) -> interpreter.Launches:
        with interpreter.launches() as launches:
            if self.domain.plain is not None:
                self._answers(self.domain.plain)
        return launches

    @property
    def interpreted(self) -> bool:
        """Its kernels run in Triton's interpreter, thousands of times slower than anywhere else."""
        return self._launches.interpreted > 0

    @property
    def compiles(self) -> bool:
        """Its kernels are Triton's and compiled, which takes seconds for each new kind of problem."""
        return self._launches.compiled > 0

    @property
    def slow(self) -> bool:
        """Each new kind of problem takes it a second and more."""
        return self.interpreted or self.compiles

    def _answers(self, problem: Problem) -> bool:
        """Whether it answers, rightly or not: a property will find that out."""
        judge = Subject(self.backend, self.device)  # with evidence of its own
        q, k, v, mask = replace(problem, device=str(self.device)).tensors()
        try:
            judge.attend(q, k, v, **problem.options(mask))
        except UnsatisfiedAssumption:
            return False
        except Exception:
            pass  # no refusal: whoever asks this problem of a property meets it again, and reports it
        return True

    @property
    def facts(self) -> Facts:
        return self.backend.facts

    def assert_right(
        self,
        problem: Problem,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        label: str = "output",
        right: tuple[oracle.Exact, Tensor] | None = None,
    ) -> Tensor:
        """The subject's output for these inputs, once it agrees with the formula within the error budget.

        problem  gives causality and scale; the inputs may be others than its own
        label    what the output is called where it is wrong
        right    what `right` gives for them, where it is known: for a property that makes one call in several ways
        """
        __tracebackhide__ = True
        out = self.attend(q, k, v, **problem.options(mask))
        exact, allowed = right or self.right(problem, q, k, v, mask)
        self.compare(problem, label, out.detach(), exact.output, allowed, exact)
        return out

    def assert_gradients_right(
        self,
        problem: Problem,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        grad_out: Tensor,
        label: str = "",
    ) -> None:
        """dQ, dK and dV for that gradient of the output agree with the formula; `label` ends their names."""
        __tracebackhide__ = True
        answers = self.gradients(problem, q, k, v, mask, grad_out)
        right, allowed = self.exact_gradients(problem, q, k, v, mask, grad_out)
        self.compare_gradients(problem, answers, right, allowed, label)

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
    ) -> list[Tensor]:
        """Of dQ, dK and dV those that the problem wants, for that gradient of the output, shaped as q, k and v."""
        __tracebackhide__ = True
        inputs = zip("QKV", (q, k, v), strict=True)
        given = [tensor.detach().requires_grad_(letter in problem.wanted) for letter, tensor in inputs]
        out = self.attend(given[0], given[1], given[2], **problem.options(mask))
        assert out.requires_grad or self.facts.forward_only, (
            f"the output does not require a gradient although {problem.wanted} do"
        )
        return self.gradients_of(out, [tensor for tensor in given if tensor.requires_grad], grad_out)

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
        if self.facts.forward_only:
            self._refuse("it has no gradients, as it states")
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
            given = f"{tuple(grad.shape)} {grad.dtype}"
            assert given == wanted, f"a gradient is {given}; wanted {wanted}"
            answers.append(grad)
        return answers

    @contextmanager
    def _in_the_subject(self) -> Iterator[None]:
        """Round what runs the subject's code: a warning is no error, a refusal is counted, torch stays whole.

        In this project's own tests a warning is an error, and would be taken for a fault of a kernel that warns.
        """
        interpreter.watch()
        changed: list[str] = []
        try:
            with undone() as changed, warnings.catch_warnings():
                warnings.simplefilter("default")
                yield
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)  # or what a kernel does wrong is raised by whoever comes next
        except NotImplementedError as refusal:
            reason = str(refusal)
            if not reason:
                raise AssertionError("it refuses without a reason: NotImplementedError wants one") from refusal
            self._refuse(reason)
        except RuntimeError as error:
            if self.device.type == "cuda" and _is_lost(self.device):
                raise DeviceLost(str(error)) from error
            raise
        except (KeyboardInterrupt, LeftOut, DeviceLost):
            raise
        except BaseException as end:
            # sys.exit, or an exception by which the tools of a test end, skip or choose tests: a kernel may do neither.
            # What ends a test that takes too long comes in the same way, and has to get through.
            of_tools = type(end).__module__.partition(".")[0] in ("_pytest", "hypothesis")
            if type(end).__name__ == "Failed" or (isinstance(end, Exception) and not of_tools):
                raise
            raise AssertionError(f"the call ends the run: {type(end).__name__}: {end}") from end
        finally:
            assert not changed, f"the call changed {', '.join(changed)}"

    def _refuse(self, reason: str) -> NoReturn:
        self.evidence.refusals[reason] = self.evidence.refusals.get(reason, 0) + 1
        raise UnsatisfiedAssumption(reason)

    def compare(
        self,
        problem: Problem,
        label: str,
        answer: Tensor,
        right: Tensor,
        allowed: Tensor,
        exact: oracle.Exact | None = None,
    ) -> None:
        """Fails unless |answer - right| <= allowed everywhere; a NaN in the answer fails where none is right.

        exact  the call, where `right` is its output: to say of a wrong row that it may attend to nothing
        """
        __tracebackhide__ = True
        if answer.dtype == torch.float64 and problem.dtype == "float64":
            allowed = 2 * allowed  # the oracle, in float64 too, is as uncertain as the answer
        ratio = budget.ratio(answer, right, allowed)
        if self.facts.fully_masked_rows == "nan":
            ratio = torch.where(right.isnan(), 0.0, ratio)  # as it states; a property of its own looks at these rows
        if not ratio.numel():
            return
        worst = ratio.max().item()
        by_length, length = self.evidence.worst.setdefault(problem.dtype, {}), length_of(problem.keys)
        by_length[length] = max(by_length.get(length, 0.0), worst)
        if worst > 1:
            raise Wrong(_message(label, answer, right, allowed, ratio, exact), problem)

    def compare_gradients(
        self,
        problem: Problem,
        answers: Sequence[Tensor],
        right: Sequence[Tensor],
        allowed: Sequence[Tensor],
        label: str,
    ) -> None:
        """`compare` for those of dQ, dK and dV that the problem wants; `label` ends their names."""
        __tracebackhide__ = True
        for letter, answer, exact, budgeted in zip(problem.wanted, answers, right, allowed, strict=True):
            self.compare(problem, f"gradient of {letter}{label}", answer, exact, budgeted)

    def layer(self, d_model: int, heads: int, kv_heads: int, seed: int) -> SelfAttention:
        """A layer round this subject, its calls held to the same; one seed and one size give the same weights."""
        torch.manual_seed(seed)
        judged = replace(self.backend, attend=self.attend)
        layer = self.layer_type(d_model, heads, kv_heads=kv_heads, backend=judged, device=self.device)
        return layer.requires_grad_(False)

    def exact(self, problem: Problem, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> oracle.Exact:
        """The right answer."""
        return oracle.attention(q, k, v, **problem.options(mask), **self.conventions)

    def right(
        self, problem: Problem, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> tuple[oracle.Exact, Tensor]:
        """The right answer, and how far from it the output may be."""
        exact = self.exact(problem, q, k, v, mask)
        return exact, self.budget(problem, q, k, v, exact)

    def budget(self, problem: Problem, q: Tensor, k: Tensor, v: Tensor, exact: oracle.Exact) -> Tensor:
        """How far from it the output may be."""
        return budget.of_output(q, k, v, exact, facts=self.facts, scale=problem.scale)

    def exact_gradients(
        self, problem: Problem, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, grad_out: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Of dQ, dK and dV those that the problem wants, right, in float64; and how far from them answers may be."""
        right, exact = oracle.gradients(q, k, v, grad_out, **problem.options(mask), **self.conventions)
        allowed = budget.of_gradients(q, k, v, grad_out, exact, facts=self.facts, scale=problem.scale)
        wanted = ["QKV".index(letter) for letter in problem.wanted]
        return [right[at] for at in wanted], [allowed[at] for at in wanted]

    def blame_the_machine(
        self, problem: Problem, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, row: int
    ) -> None:
        """Ends the problem, with the finding, where torch's own products let a NaN in that row of q reach another."""
        if machine.attention_leaks(q, k, v, self.exact(problem, q, k, v, mask).weights, row):
            self.evidence.machine = [machine.LEAKING_PRODUCT.title]
            raise UnsatisfiedAssumption(machine.LEAKING_PRODUCT.title)

    def refuse_what_it_states(self, at: Callable[..., None], problem: Problem) -> None:
        """A refusal where a property of something else meets rows that may attend to nothing, and the subject states
        that it gives NaN or a mean for them. `verification/test_agreement.py` judges what is stated.
        """
        stated = self.facts.fully_masked_rows
        if stated == "zero" or (problem.mask is None and not problem.causal) or at.__module__.endswith("agreement"):
            return
        if not self.exact(problem, *problem.tensors()).visible.any(dim=-1).all():
            self._refuse(f"a fully masked row is {stated}, as it states")

    def offset(self, problem: Problem) -> int:
        """Under causality query i attends to key j iff j <= i + offset: keys - queries, or 0 where that is stated."""
        return problem.keys - problem.queries if self.facts.causal_corner == "bottom-right" else 0

    @property
    def conventions(self) -> dict[str, Any]:
        """Where the subject states that it differs from the contract."""
        return {"corner": self.facts.causal_corner, "fully_masked_rows": self.facts.fully_masked_rows}


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


def one_may_be_refused() -> AbstractContextManager[None]:
    """Inside the block a refusal ends the block, where otherwise it ends the problem."""
    return suppress(UnsatisfiedAssumption)


def assert_no_leak(
    changed: Tensor, before: Tensor, message: str, keys: Sequence[int], changed_at: Callable[[int], Tensor]
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
            message += f"; query {query} of sample {batch}, head {head} attends to key {key}"
            break
    assert_same_bits(changed, before, message)


def assert_same_bits(answer: Tensor, wanted: Tensor, message: str) -> None:
    """Fails, with that sentence, unless two tensors of one shape are equal: 0 and -0 are, and so are two NaN."""
    __tracebackhide__ = True
    different = ~((answer == wanted) | (answer.isnan() & wanted.isnan()))
    if not different.any():
        return
    place = tuple(different.nonzero()[0].tolist())
    lines = [
        f"{message}: {different.sum().item()} of {different.numel()} elements differ, the first at {place}: "
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


def _message(
    label: str, answer: Tensor, right: Tensor, allowed: Tensor, ratio: Tensor, exact: oracle.Exact | None
) -> str:
    place = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
    over = ratio > 1
    lines = [
        f"wrong {label} at {place}: {answer[place].item():.6g} where {right[place].item():.6g} is right, "
        f"{ratio[place].item():.3g} times its error budget of {allowed[place].item():.2g} "
        f"({over.sum().item()} of {over.numel()} elements are over budget)"
    ]
    if exact is not None and not exact.visible[place[:3]].any():
        lines.append("this row may attend to nothing")
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
        texts = [f"[{number:.4g}]" if mark else f"{number:.4g} " for number, mark in zip(numbers, marks, strict=True)]
        rows.append("  " + " ".join(f"{text:>11}" for text in texts))
    return "\n".join(rows)
