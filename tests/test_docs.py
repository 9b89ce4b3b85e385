"""What the documentation shows works as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest

import implementations
from verification.judge import Subject
from verification.mutants.properties import properties
from verification.problems import Problem
from verification.test_agreement import test_the_output_agrees_with_the_formula as agreement

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


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda text: re.findall(r"theirs_\w+", text)[0])
def test_an_adapter_makes_another_signature_judgeable(adapter: str, tmp_path: Path) -> None:
    file = tmp_path / "adapted.py"
    file.write_text(f"from tests.test_docs import theirs_bshd, theirs_plain, theirs_tuple\n\n\n{adapter}")
    subject = Subject(f"{file}:attend")
    agreement(subject)
    agreement.at(subject, Problem(batch=2, heads=4, kv_heads=2, queries=3, keys=5, dim=4, layout="gaps"))
    assert subject.evidence.calls > 5


def test_every_property_is_in_the_documentation() -> None:
    layer = {"layer", "project", "head_layer", "side_by_side", "state_dict"}
    missing = [
        name
        for name in properties()
        if f"`{name.removeprefix('test_')}`" not in JUDGE and not any(word in name for word in layer)
    ]
    assert missing == []


def test_every_property_of_the_documentation_exists() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", JUDGE, flags=re.MULTILINE)
    assert rows
    assert [name for name in rows if f"test_{name}" not in properties()] == []


def test_every_file_that_is_named_exists() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "docs/verification.md"):
        text = (ROOT / page).read_text()
        for name in re.findall(r"`((?:implementations|verification|benchmarks|reports|tests)/[\w./]*)`", text):
            assert (ROOT / name).exists(), f"{page} names {name}"
