"""From a spelling to a backend, and what is said when there is none."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import implementations


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])


def test_every_file_of_the_folder_is_a_backend() -> None:
    folder = Path(implementations.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert files <= set(implementations.names())
    for name in files:
        backend = implementations.load(name)
        assert backend.name == name
        assert backend.summary


def test_an_unknown_name_shows_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no backend is named 'onlin' \(did you mean online") as raised:
        implementations.load("onlin")
    assert "path/to/file.py:function" in str(raised.value)


def test_a_function_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text('def attend(q, k, v, *, mask=None, causal=False, scale=None):\n    "Mine."\n    return v\n')
    backend = implementations.load(f"{file}:attend")
    v = torch.zeros(1, 1, 1, 1)
    assert backend.attend(v, v, v) is v
    assert backend.summary == "Mine."
    assert backend.facts == implementations.Facts()


def test_a_file_states_facts_and_devices_beside_its_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom implementations import Facts\n"
        "FACTS = Facts(scores=torch.float32)\n"
        "def cannot_run(device): return None if device.type == 'cuda' else 'it is written for CUDA'\n"
        "def attend(q, k, v, **options): return v\n"
    )
    backend = implementations.load(f"{file}:attend")
    assert backend.facts.scores == torch.float32
    assert backend.cannot_run(torch.device("cpu")) == "it is written for CUDA"
    file = tmp_path / "other.py"
    file.write_text("FACTS = {'scores': 'float32'}\ndef attend(q, k, v, **options): return v\n")
    with pytest.raises(ValueError, match=r"FACTS is a dict; wanted an implementations\.Facts"):
        implementations.load(f"{file}:attend")


@pytest.mark.parametrize("target", ["registered_kernel", "registered_kernel:attend"], ids=["module", "function"])
def test_a_package_registers_its_backend(tmp_path: Path, target: str) -> None:
    """As pip leaves an installed package: a module, and beside it the metadata with the entry point."""
    (tmp_path / "registered_kernel.py").write_text('def attend(q, k, v, **options):\n    "Theirs."\n    return v\n')
    metadata = tmp_path / "registered_kernel-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: registered-kernel\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[attention_suite.backends]\ntheirs = {target}\n")
    ran = python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import implementations\n"
        "print(implementations.names()[-1], implementations.load('theirs').summary)\n"
    )
    assert ran.stdout.strip() == "theirs Theirs.", ran.stderr


def test_a_function_of_a_module() -> None:
    assert implementations.load("implementations.eager:attend").attend is implementations.load("eager").attend


def test_a_file_without_that_function_says_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def attend(q, k, v): ...\nscale = 2\n")
    with pytest.raises(ValueError, match=r"mine.py has no function 'attnd' \(did you mean attend\?\). It has: attend"):
        implementations.load(f"{file}:attnd")
    with pytest.raises(ValueError, match=r"mine.py has a int, not a function, 'scale'"):
        implementations.load(f"{file}:scale")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"there is no file 'nowhere.py'"):
        implementations.load("nowhere.py:attend")


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"there is no module 'no_such_package'"):
        implementations.load("no_such_package.kernels:attend")


def test_what_a_users_file_needs_and_lacks_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import no_such_dependency\n")
    with pytest.raises(ImportError, match=r"mine.py:attend' needs no_such_dependency, which is not installed"):
        implementations.load(f"{file}:attend")


def test_importing_the_package_imports_no_triton() -> None:
    ran = python("import sys, implementations; print('triton' in sys.modules)")
    assert ran.stdout.strip() == "False", ran.stderr


def test_without_triton_its_backends_are_listed_with_the_error_and_refused_by_name() -> None:
    ran = python(
        "import json, runpy, sys; sys.modules['triton'] = None\n"
        "import implementations\n"
        "sys.argv = ['implementations', '--json', '--device', 'cpu']\n"
        "runpy.run_module('implementations', run_name='__main__')\n"
        "try:\n    implementations.load('online_triton')\n"
        "except ImportError as error:\n    print(error, file=sys.stderr)\n"
    )
    listed = {entry["name"]: entry for entry in json.loads(ran.stdout)}
    assert listed["eager"]["runs"]
    assert set(listed["eager"]["facts"]) == {field.name for field in fields(implementations.Facts)}
    assert listed["eager"]["facts"]["sums"] == "float32"
    assert not listed["online_triton"]["runs"]
    assert "needs triton, which is not installed: pip install triton" in listed["online_triton"]["reason"]
    assert "needs triton, which is not installed: pip install triton" in ran.stderr


def test_the_listing_says_why_a_backend_cannot_run_here() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "implementations", "--device", "cpu"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert "cannot run here: torch has its cudnn kernel for CUDA only, not for cpu" in ran.stdout
    assert set(implementations.names()) <= set(ran.stdout.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("module", ["implementations", "benchmarks", "benchmarks.ceilings"])
def test_a_gpu_that_is_not_there_is_one_line(module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", module, "--device", "cuda"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert ran.returncode == 2
    assert (ran.stdout, ran.stderr) == ("", f"python -m {module}: device 'cuda': torch finds no GPU here\n")


def test_a_device_that_torch_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"device 'cuder': Expected one of cpu, cuda"):
        implementations.device("cuder")


def test_what_lies_beside_a_file_is_not_to_be_installed(tmp_path: Path) -> None:
    (tmp_path / "mykernels.py").write_text("")
    file = tmp_path / "mine.py"
    file.write_text("import mykernels\ndef attend(q, k, v, **options): return v\n")
    with pytest.raises(ImportError, match=r"imports mykernels, which lies beside it: set PYTHONPATH="):
        implementations.load(f"{file}:attend")
    file.write_text("import no_such_kernels\ndef attend(q, k, v, **options): return v\n")
    with pytest.raises(ImportError, match=r"not installed: pip install no_such_kernels"):
        implementations.load(f"{file}:attend")
