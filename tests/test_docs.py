"""What the documentation shows works as it stands there."""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis.errors import UnsatisfiedAssumption

import implementations
from reports.load import OUTCOMES, VERDICTS
from verification.judge import Subject
from verification.mutants.properties import properties
from verification.problems import Problem
from verification.test_agreement import test_a_fully_masked_row_is_exactly_zero as fully_masked
from verification.test_agreement import test_the_output_agrees_with_the_formula as agreement
from verification.test_autograd import test_a_derivative_in_forward_mode_is_right_or_raises as forward_mode
from verification.test_causality import test_the_causal_flag_is_the_lower_right_triangle as flag
from verification.test_gradients import test_the_gradients_agree_with_the_formula as gradients
from verification.test_statements import test_what_states_that_it_has_no_gradients_has_none as no_gradients

ROOT = Path(__file__).parents[1]
JUDGE = (ROOT / "docs" / "verification.md").read_text()
ADAPTERS = re.findall(r"```python\n(.*?)```", JUDGE, flags=re.DOTALL)
eager = implementations.load("eager")


def theirs_bshd(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return eager.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options).transpose(1, 2)


def theirs_tuple(q: Any, k: Any, v: Any, **options: Any) -> Any:
    assert q.is_contiguous()
    assert k.is_contiguous()
    assert v.is_contiguous()
    return eager.attend(q, k, v, **options), None


def theirs_plain(q: Any, k: Any, v: Any, causal: bool) -> Any:
    return eager.attend(q, k, v, causal=causal)


def theirs_strict(q: Any, k: Any, v: Any, **options: Any) -> Any:
    assert q.shape[3] <= 64, "head dim must be at most 64"
    if q.dtype == torch.float64:
        raise ValueError("float64 is not supported")
    return eager.attend(q, k, v, **options)


class _OnlyForward(torch.autograd.Function):
    """A kernel that torch does not look into: without a backward pass, and dropping tangents."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, options: dict[str, Any]) -> Any:
        return eager.attend(q, k, v, **options)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None


def theirs_forward(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return _OnlyForward.apply(q, k, v, options)


def theirs_top_left(q: Any, k: Any, v: Any, *, mask: Any, causal: bool, scale: float | None) -> Any:
    if causal:
        past = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        mask = past if mask is None else past & mask
    out = eager.attend(q, k, v, mask=mask, scale=scale)
    if mask is None:
        return out
    return out.masked_fill(~mask.any(dim=-1, keepdim=True), float("nan"))


THEIR_PACKAGE = """
import their_logger
from tests.test_docs import eager

BLOCK = 128


def attention(q, k, v, **options):
    assert BLOCK == 64
    their_logger.log
    return eager.attend(q, k, v, **options)
"""


@pytest.fixture(params=ADAPTERS, ids=lambda text: re.findall(r"theirs_\w+", text)[0])
def adapter(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """The subject that an adapter of the page makes of a kernel."""
    kernels = [name for name in re.findall(r"theirs_\w+", request.param) if name in globals()]
    (tmp_path / "theirs_package.py").write_text(THEIR_PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "adapted.py"
    lines = [f"from tests.test_docs import {name}\n" for name in dict.fromkeys(kernels)]
    file.write_text(f"{''.join(lines)}\n\n{request.param}")
    yield Subject(f"{file}:attend")
    for name in ("their_logger", "theirs_package"):
        sys.modules.pop(name, None)


def test_an_adapter_makes_another_signature_judgeable(adapter: Subject) -> None:
    for problem in (
        Problem(batch=2, heads=4, kv_heads=2, queries=3, keys=5, dim=4, layout="gaps"),
        Problem(queries=3, keys=5, dim=4, causal=True),
        Problem(dtype="float16", queries=65, keys=130, dim=64),
    ):
        agreement.at(adapter, problem)
    for judged, problem in (
        (fully_masked, Problem(queries=3, keys=2, mask="fully masked row")),
        (flag, Problem(queries=3, keys=5, causal=True)),
        (forward_mode, Problem(queries=3, keys=3, dim=4, causal=True)),
        (gradients, Problem(queries=3, keys=5, dim=4, causal=True)),
    ):
        with suppress(UnsatisfiedAssumption):
            judged.at(adapter, problem)
    no_gradients(adapter)
    assert adapter.evidence.calls > 5


@pytest.mark.parametrize("adapter", [a for a in ADAPTERS if "theirs_strict" in a], indirect=True, ids=["theirs_strict"])
def test_their_own_refusals_are_refusals_with_their_reasons(adapter: Subject) -> None:
    for wide in (Problem(dim=65), Problem(dtype="float64")):
        with pytest.raises(UnsatisfiedAssumption):
            agreement.at(adapter, wide)
    reasons = [reason.partition("\n")[0] for reason in adapter.evidence.refusals]  # pytest adds to an assertion's own
    assert reasons == ["head dim must be at most 64", "float64 is not supported"]


def test_a_product_over_65504_is_what_the_page_says() -> None:
    q = torch.full((1, 1, 1, 4), 130.0, dtype=torch.float16)
    assert (q @ q.mT).isinf().all()
    assert (q * 0.5 @ q.mT).isfinite().all()


def test_every_verdict_and_every_outcome_is_in_the_documentation() -> None:
    for name in (*OUTCOMES, *VERDICTS):
        assert re.search(rf"^\| `?{name}`? \|", JUDGE, flags=re.MULTILINE | re.IGNORECASE), name


def test_every_property_is_in_the_documentation() -> None:
    layer = {"layer", "project", "head_layer", "side_by_side", "state_dict"}
    missing = [
        name
        for name in properties()
        if f"`{name.removeprefix('test_')}`" not in JUDGE and not any(word in name for word in layer)
    ]
    assert missing == []


def test_every_property_of_the_documentation_exists() -> None:
    table = JUDGE.partition("## The properties")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert rows
    assert [name for name in rows if f"test_{name}" not in properties()] == []


def test_every_file_that_is_named_exists() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "docs/verification.md"):
        text = (ROOT / page).read_text()
        for name in re.findall(r"`((?:implementations|verification|benchmarks|reports|tests)/[\w./]*)`", text):
            assert (ROOT / name).exists(), f"{page} names {name}"
