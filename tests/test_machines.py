"""The verdict is the same on every machine: in poor surroundings, and at every level of arithmetic that this CPU has.

Each test is a process of its own, as a newcomer's first command is, and has to be green.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkout import ROOT, copied, with_history

# Wrong in some way wherever the machine's arithmetic is: products and their sums, a mask, a gradient.
FEW = "agrees_with_the_formula or rows_sum_to_one or a_mask_and_the_causal"
MORE = f"{FEW} or gradients_agree or nan_in_a_query or garbage or masked_place"

UMLAUTS = '''
"""Aufmerksamkeit für Größen: softmax(QKᵀ/√d)·V."""

import implementations


def attend(q, k, v, **options):
    """Schlüssel und Werte – über alles gemittelt."""
    if options.get("mask") is not None:
        raise NotImplementedError("keine Masken für Größen – noch nicht ✓")
    return implementations.load("eager").attend(q, k, v, **options)
'''

# LC_ALL=C alone makes Python 3.7 and later take UTF-8 all the same.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

# A uid of which no file of accounts knows.
NOBODY = 54321


def plain() -> dict[str, str]:
    """This process's environment, without what belongs to the pytest that runs this test."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def python(
    *arguments: str, environment: Mapping[str, str], cwd: Path = ROOT, by: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*by, sys.executable, *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        cwd=cwd,
        env=environment,
    )


def is_green(
    folder: Path,
    environment: Mapping[str, str],
    *options: str,
    cwd: Path = ROOT,
    by: Iterable[str] = (),
    chosen: str = FEW,
) -> dict[str, Any]:
    """Verifies a few properties in these surroundings; gives the results file, which must have been written."""
    results = folder / "results.json"
    ran = python(
        *("-m", "pytest", "verification", "-q", f"-k={chosen}", "--hypothesis-profile", "quick"),
        *("--results", str(results), *(options or ("--backend", "eager"))),
        environment=environment,
        cwd=cwd,
        by=by,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    found = json.loads(results.read_text(encoding="utf-8"))
    assert "pass" in {result["outcome"] for result in found["results"]}
    return found


# Of surroundings


def test_a_uid_without_a_name_and_without_a_home(tmp_path: Path) -> None:
    """As in a container that is started with `--user 54321`; the checkout is another's, and may not be written."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can become a uid that nobody has")
    tree = copied(tmp_path / "tree")
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, NOBODY, NOBODY)
    # The interpreter may lie in the home of root: what is not its own the uid may read, and not write.
    by = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    by += ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    if subprocess.run([*by, sys.executable, "-c", ""], capture_output=True).returncode:
        pytest.skip("this root may not become another uid that reads everything")
    surroundings = {name: value for name, value in plain().items() if name not in ("HOME", "TERM", "USER", "LOGNAME")}
    found = is_green(out, surroundings, "--backend", "eager", "--backend", "online", cwd=tree, by=by, chosen=MORE)
    assert found["provenance"]["commit"] is None


def test_the_profile_that_keeps_its_examples_in_a_read_only_checkout(tmp_path: Path) -> None:
    """What hypothesis and pytest cannot keep is no failure."""
    tree = copied(tmp_path / "tree")
    writable = tree.stat().st_mode
    by: tuple[str, ...] = ()
    if os.geteuid() == 0:
        by = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override")
        if shutil.which("setpriv") is None or subprocess.run([*by, "true"], capture_output=True).returncode:
            pytest.skip("root may write everywhere, and cannot give that up here")
    try:
        for path in (tree, *tree.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
        with_database = "from hypothesis import settings\nsettings.register_profile('kept', max_examples=5)\n"
        (tmp_path / "kept.py").write_text(with_database)
        environment = plain() | {"PYTHONPATH": str(tmp_path)}
        options = ("--backend", "eager", "-p", "kept", "--hypothesis-profile", "kept")
        found = is_green(tmp_path, environment, *options, cwd=tree, by=by)
        assert found["profile"] == "kept"
        assert not (tree / ".hypothesis").exists()
        assert not (tree / ".pytest_cache").exists()
    finally:
        tree.chmod(writable)
        for folder in (path for path in tree.rglob("*") if path.is_dir() and not path.is_symlink()):
            folder.chmod(writable)


def test_git_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    found = is_green(tmp_path, plain() | {"PATH": str(tmp_path / "bin")})
    assert (found["provenance"]["commit"], found["provenance"]["dirty"]) == (None, None)


def test_git_that_may_not_be_started(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "git").chmod(0o644)
    found = is_green(tmp_path, plain() | {"PATH": str(tmp_path / "bin")})
    assert found["provenance"]["commit"] is None


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_git_that_refuses_a_checkout_of_another_owner(tmp_path: Path) -> None:
    """git's own tests have it take every owner for another one by this variable."""
    surroundings = plain() | {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1", "HOME": str(tmp_path)}
    tree = with_history(copied(tmp_path / "tree"))
    refused = subprocess.run(["git", "log"], cwd=tree, env=surroundings, capture_output=True, text=True)
    assert "dubious ownership" in refused.stderr
    assert is_green(tmp_path, surroundings, cwd=tree)["provenance"]["commit"] is None


@pytest.mark.parametrize(
    "surroundings",
    [
        pytest.param(ASCII, id="a locale of ASCII"),
        pytest.param({"PYTHONIOENCODING": "ascii"}, id="an output of ASCII"),
    ],
)
def test_words_that_the_locale_cannot_spell(surroundings: dict[str, str], tmp_path: Path) -> None:
    """In the kernel's file, its refusals, its path, and the subject of the commit."""
    folder = tmp_path / "größer"
    folder.mkdir()
    (folder / "für_mich.py").write_text(UMLAUTS, encoding="utf-8")
    environment = {
        name: value for name, value in plain().items() if name not in ("TERM", "LANG", "LC_CTYPE")
    } | surroundings
    spelling = f"{folder / 'für_mich.py'}:attend"
    found = is_green(folder, environment, "--backend", spelling)
    assert {result["backend"] for result in found["results"]} == {spelling}
    refused = {result["reason"] for result in found["results"] if result["outcome"] == "refused"}
    assert refused == {"keine Masken für Größen – noch nicht ✓"}
    assert spelling in found["provenance"]["command"]


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_a_commit_whose_subject_the_locale_cannot_spell(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    identity = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false")
    commit = ("commit", "--quiet", "--allow-empty", "--message", "Größer")
    subprocess.run(["git", "-C", str(tmp_path), *identity, *commit], check=True)
    ask = f"from verification import provenance as of; of._ROOT = {str(tmp_path)!r}; print(ascii(of._subject()))"
    ran = python("-c", ask, environment=plain() | ASCII)
    assert ran.stdout.strip() == ascii("Größer"), ran.stderr


@pytest.mark.parametrize("module", ["implementations", "benchmarks"])
def test_a_table_on_a_terminal_that_knows_ascii_only(module: str, tmp_path: Path) -> None:
    """A registered backend's words are printed as far as the terminal can."""
    (tmp_path / "registered_kernel.py").write_text(UMLAUTS, encoding="utf-8")
    metadata = tmp_path / "registered_kernel-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: registered-kernel\nVersion: 1.0\n")
    entry = "[attention_suite.backends]\ngrößer = registered_kernel:attend\n"
    (metadata / "entry_points.txt").write_text(entry, encoding="utf-8")
    arguments = [
        "--backend=größer",
        "--max-length=128",
        "--workload=gpt2",
        "--stage=forward",
        f"--out={tmp_path / 'sweep.json'}",
    ]
    ran = python(
        *("-m", module, *(arguments if module == "benchmarks" else ())),
        environment=plain() | {"PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "ascii"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "gr\\xf6\\xdfer" in ran.stdout


# Of arithmetic

HONEST = ("eager", "online", "sdpa_flash", "sdpa_math")

# Plugins of pytest, for what no variable says. verification/ wants one thread: more come after it has said so.
FLUSHES = "import torch\nassert torch.set_flush_denormal(True)\n"
THREADS = "import torch\n\n\ndef pytest_collection_finish():\n    torch.set_num_threads(3)\n"

# Flags of /proc/cpuinfo that a level needs: it is an upper bound, which a lesser CPU would silently not reach.
LEVELS: dict[str, tuple[dict[str, str], set[str]]] = {
    "as it is": ({}, set()),
    "oneDNN to SSE4.1": ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, {"sse4_1"}),
    "oneDNN to AVX2": ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"avx2"}),
    "oneDNN to AVX2 with VNNI 2": ({"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI_2"}, {"avx_ne_convert"}),
    "oneDNN to AVX-512": ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, {"avx512f", "avx512bw", "avx512vl"}),
    "oneDNN to AVX-512 with bfloat16": ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, {"avx512_bf16"}),
    "oneDNN to AVX-512 with float16": ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}, {"avx512_fp16"}),
    "oneDNN to AMX": ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, {"amx_bf16"}),
    "oneDNN to AMX with float16": ({"ONEDNN_MAX_CPU_ISA": "AVX10_1_512_AMX_FP16"}, {"amx_fp16"}),
    "torch without vectors": ({"ATEN_CPU_CAPABILITY": "default"}, set()),
    "torch to AVX2": ({"ATEN_CPU_CAPABILITY": "avx2"}, {"avx2"}),
    "torch to AVX-512": ({"ATEN_CPU_CAPABILITY": "avx512"}, {"avx512f"}),
    "MKL to SSE4.2": ({"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}, {"sse4_2"}),
    "MKL to AVX2": ({"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, {"avx2"}),
    "MKL to AVX-512": ({"MKL_ENABLE_INSTRUCTIONS": "AVX512"}, {"avx512f"}),
    "MKL, reproducible anywhere": ({"MKL_CBWR": "COMPATIBLE"}, set()),
    "everything to AVX2": (
        {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
        {"avx2"},
    ),
    "three threads that wait": ({"PYTEST_PLUGINS": "threads", "OMP_WAIT_POLICY": "passive"}, set()),
    "float32 products in bfloat16, if they were not asked for whole": (
        {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "NVIDIA_TF32_OVERRIDE": "1"},
        set(),
    ),
    "denormals flushed": ({"PYTEST_PLUGINS": "flushes"}, set()),
}


@pytest.mark.parametrize("level", LEVELS)
def test_a_right_kernel_is_right_at_every_level_of_this_cpu(level: str, tmp_path: Path) -> None:
    settings, needed = LEVELS[level]
    if lacking := needed - _flags():
        pytest.skip(f"this CPU has no {', '.join(sorted(lacking))}, or does not say so")
    (tmp_path / "flushes.py").write_text(FLUSHES)
    (tmp_path / "threads.py").write_text(THREADS)
    options = [word for backend in HONEST for word in ("--backend", backend)]
    found = is_green(tmp_path, plain() | {"PYTHONPATH": str(tmp_path)} | settings, *options, chosen=MORE)
    assert {result["backend"] for result in found["results"]} == set(HONEST)
    assert not {result["outcome"] for result in found["results"]} & {"fail", "left out"}
    assert found["provenance"]["threads"] == (3 if settings.get("PYTEST_PLUGINS") == "threads" else 1)


def _flags() -> set[str]:
    """What Linux says that the first CPU can do; elsewhere nothing is known."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


def test_the_levels_of_torch_take_effect() -> None:
    ask = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    for level in ("default", "avx2") if torch.backends.cpu.get_cpu_capability().startswith("AVX") else ("default",):
        assert python("-c", ask, environment=plain() | {"ATEN_CPU_CAPABILITY": level}).stdout.strip().lower() == level
