"""A case ready to be timed: inputs that are new for every call, the call itself, and the judge of its result.

Several backends may share the inputs, so that nothing but the backends differs between them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.workloads import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from implementations import Backend

# A pool of normal numbers is longer than an input by this; where an input begins in it is random.
_SPARE = 1 << 16


@dataclass(frozen=True)
class Call:
    """call() is what is timed; error_of(result) its worst error over budget on a sample of query rows."""

    call: Callable[[], Any]
    error_of: Callable[[Any], float]


class Inputs:
    """Standard normal tensors for a case. Gradients must be enabled for the stage "backward", and only there."""

    def __init__(self, case: Case, device: "torch.device") -> None:
        import torch

        self.case, self.stage = case, case.stage
        w = case.workload
        factory: dict[str, Any] = {"device": device, "dtype": getattr(torch, case.dtype)}
        if case.stage == "layer":
            shapes = [(w.batch, case.seq_len, w.d_model)]
        else:
            shapes = [(w.batch, heads, case.seq_len, w.head_dim) for heads in (w.heads, w.kv_heads, w.kv_heads)]
        torch.manual_seed(case.seq_len)
        self._pool = torch.randn(max(torch.Size(shape).numel() for shape in shapes) + _SPARE, **factory)
        self._tensors = [torch.empty(shape, **factory) for shape in shapes]
        self._offsets = torch.Generator().manual_seed(case.seq_len)
        self._weights: dict[str, Tensor] | None = None
        self._gradient: Tensor | None = None
        self.renew()
        if case.stage == "backward":
            for tensor in self._tensors:
                tensor.requires_grad_()

    def renew(self) -> None:
        """Other numbers in the same memory: a result that was kept, or never written, is wrong from now on.

        Backwards it is the gradient that changes: a graph keeps q, k and v.
        """
        import torch

        targets = self._tensors
        if self.stage == "backward" and self._gradient is not None:
            targets = [self._gradient]
        for target in targets:
            start = int(torch.randint(_SPARE, (), generator=self._offsets))
            target.detach().copy_(self._pool[start : start + target.numel()].view(target.shape))

    def renew_for_judge(self) -> None:
        """As `renew`, for a result that is verified: the judge knows only one gradient."""
        from verification import spotcheck

        if self.stage == "backward" and self._gradient is not None:
            self._gradient.copy_(spotcheck.gradient(self._gradient))
        else:
            self.renew()

    def call_of(self, backend: "Backend", layer_type: Any) -> Call:
        """layer_type is the SelfAttention of the package that the backend comes from."""
        import torch

        from verification import spotcheck

        w, stage = self.case.workload, self.stage
        if stage == "layer":
            (x,) = self._tensors
            layer = layer_type(w.d_model, w.heads, kv_heads=w.kv_heads, backend=backend, device=x.device, dtype=x.dtype)
            if self._weights is None:
                self._weights = layer.state_dict()
            layer.load_state_dict(self._weights, assign=True)
            return Call(
                lambda: layer(x, causal=w.causal),
                lambda y: spotcheck.layer(layer, x, y, causal=w.causal),
            )
        q, k, v = self._tensors
        if stage == "forward":
            return Call(
                lambda: backend.attend(q, k, v, causal=w.causal),
                lambda out: spotcheck.forward(backend, q, k, v, out, causal=w.causal),
            )
        out = backend.attend(q, k, v, causal=w.causal)
        if self._gradient is None:
            self._gradient = torch.empty_like(out)
            self.renew()
        gradient = self._gradient
        return Call(
            lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True),
            lambda answers: spotcheck.backward(backend, q, k, v, out, answers, causal=w.causal),
        )
