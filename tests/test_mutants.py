"""Every mutant is killed by the property it names, and every correct variant is accepted."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import implementations
from verification.judge import Subject
from verification.mutants import CORRECT, MUTANTS, Mutant, load, matrix, subject_of
from verification.mutants.__main__ import main
from verification.mutants.matrix import kill_matrix
from verification.mutants.properties import first_counterexample, properties

FAULTY = [mutant for mutants in MUTANTS.values() for mutant in mutants]
REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")

# Enough to notice an honest kernel that is accused, in the time of the interpreter.
IN_THE_INTERPRETER = (
    "test_the_output_agrees_with_the_formula",
    "test_the_gradients_agree_with_the_formula",
    "test_masking_keys_is_deleting_them",
    "test_a_fully_masked_row_has_no_gradient",
)


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    """One thread, as in `verification`, since the problems are small; no problem is made smaller."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with first_counterexample():
        yield
    torch.set_num_threads(threads)


def subject(mutant: Mutant) -> Subject:
    reason = implementations.load(mutant.base).cannot_run(torch.device("cpu"))
    if reason:
        pytest.skip(reason)
    return subject_of(mutant)


@pytest.mark.parametrize("mutant", FAULTY, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed_by_the_property_it_names(mutant: Mutant) -> None:
    assert mutant.killed_by is not None
    with pytest.raises(AssertionError):
        properties()[mutant.killed_by](subject(mutant))


@pytest.mark.parametrize("variant", CORRECT, ids=lambda variant: variant.name)
def test_a_correct_variant_is_accepted(variant: Mutant) -> None:
    judged = subject(variant)
    for name in IN_THE_INTERPRETER if judged.interpreted else properties():
        properties()[name](judged)


def test_names_are_unique_and_speak_for_themselves() -> None:
    names = Counter(mutant.name for mutant in [*FAULTY, *CORRECT])
    assert [name for name, times in names.items() if times > 1] == []
    assert [name for name in names if not name.isidentifier()] == []


def test_every_mutant_models_a_public_report_and_no_variant_does() -> None:
    reports = {mutant.name: mutant.report.split(", ") for mutant in FAULTY}
    assert [name for name, told in reports.items() if not all(map(REPORT.fullmatch, told))] == []
    assert [variant.name for variant in CORRECT if variant.report or variant.killed_by] == []


def test_the_named_properties_exist() -> None:
    named = {mutant.killed_by for mutant in FAULTY} | set(IN_THE_INTERPRETER)
    assert named - set(properties()) == set()


def test_a_mutant_is_its_base_under_another_name_and_leaves_it_alone() -> None:
    base = implementations.load("online")
    mutant = load(next(mutant for mutant in FAULTY if mutant.base == "online"))
    assert mutant.name.startswith("mutant:")
    assert mutant.facts is base.facts
    assert mutant.attend is not base.attend
    assert implementations.load("online") == base


@pytest.mark.parametrize("mutant", [*FAULTY, *CORRECT], ids=lambda mutant: mutant.name)
def test_the_change_still_fits_the_source(mutant: Mutant) -> None:
    source = (Path(implementations.__file__).parent / mutant.file).read_text()
    assert mutant.applied(source) != source


def test_a_source_that_has_moved_on_is_a_clear_error() -> None:
    stale = replace(FAULTY[0], old="no such text")
    with pytest.raises(ValueError, match=rf"'{stale.name}': the text it changes occurs 0 times in {stale.file}"):
        load(stale)


def test_the_kill_matrix_says_who_killed_whom() -> None:
    mutant = next(mutant for mutant in FAULTY if mutant.name == "scale_argument_ignored")
    names = ["test_rows_sum_to_one", "test_the_scale_is_part_of_the_query"]
    seen: list[str] = []
    table = kill_matrix([mutant], names, lambda row: seen.append(row["name"]))
    assert seen == [mutant.name]
    assert table["properties"] == names
    assert table["mutants"][0] | {"why": ""} == {
        "name": mutant.name,
        "base": "eager",
        "kind": "forward",
        "report": mutant.report,
        "why": "",
        "named": names[1],
        "killed_by": [names[1]],
        "crashed": [],
    }
    assert table["only_killer_of"] == {names[1]: [mutant.name]}
    assert table["kills_nothing"] == [names[0]]


@pytest.mark.parametrize(
    ("property_put", "status"), [("test_the_scale_is_part_of_the_query", 0), ("test_rows_sum_to_one", 1)]
)
def test_a_mutant_that_outlives_the_property_it_names_is_an_exit_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, property_put: str, status: int
) -> None:
    """With --only the result stands beside the matrix of all mutants, which it must not replace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["verification.mutants", "--only", "scale_argument_ignored"])
    monkeypatch.setattr("verification.mutants.__main__.properties", lambda: [property_put])
    assert main() == status
    written = [path.name for path in (tmp_path / "reports" / "data").iterdir()]
    assert written == ["kill-matrix-only.json"]
    written_matrix = json.loads((tmp_path / "reports" / "data" / written[0]).read_text())
    assert [row["name"] for row in written_matrix["mutants"]] == ["scale_argument_ignored"]


def test_a_crash_under_a_property_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def attend(*tensors: object, **options: object) -> torch.Tensor:
        raise OSError("no such thing")

    crashing = Subject(replace(implementations.load("eager"), name="mutant:crashing", attend=attend))
    assert matrix._outcome("test_rows_sum_to_one", crashing) == "crashed"
    assert "mutant:crashing: test_rows_sum_to_one: OSError: no such thing\n" in capsys.readouterr().err
