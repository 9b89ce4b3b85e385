"""A GPU box in one command: verifies, measures the ceilings, sweeps, and writes results and page into one folder.

    python -m benchmarks.gpu_box --out DIR

It needs torch, triton, pytest, hypothesis and pandas, and no network. Each part has its share of --seconds, and what a
part leaves unused goes to the next. What does not fit is in the results as "left out".
`--rehearse` does all of it in small on a CPU.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import __main__ as command
from benchmarks import ceilings, children
from benchmarks.children import Row
from benchmarks.sweep import Plan
from benchmarks.workloads import STAGES, WORKLOADS

if TYPE_CHECKING:
    import torch

    from verification.parallel import Job

ROOT = Path(__file__).parents[1]

# When each part has to end, as a share of all seconds.
CEILINGS_END, VERIFICATION_END, KERNELS_END, WORKLOADS_END = 0.06, 0.46, 0.74, 0.95

# A test or a row that has begun may end after its part; beyond these seconds it is stopped.
GRACE_S = 25.0

# For the page. Nothing is measured any more then, and a slow machine gets its page too.
DRAWING_S = 120.0

# Processes that compile while others verify.
COMPILING = 8

SWEEP = [sys.executable, "-m", "benchmarks.sweep"]

# Of a backend's share of a sweep: to start Python, import torch and initialise the device.
LOADING_S = 6.0


@dataclass(frozen=True)
class Size:
    """How much of everything: on a GPU, and in a rehearsal."""

    profile: str  # of hypothesis
    backends: tuple[str, ...]  # none: all that can run
    files: tuple[str, ...]  # of verification/, without test_ and .py; none: all that judge a backend
    kernels: Plan  # the comparison with torch's own kernels; it comes first, and its lengths are not in `workloads`
    workloads: Plan  # the usual sweep
    product_size: int
    copied_bytes: int
    samples_s: float  # of the ceilings


ON_A_GPU = Size(
    profile="quick",
    backends=(),
    files=(),
    # Many heads of 128, with causality and without: what torch's kernels are made for.
    kernels=Plan("cuda", ("llama-2-7b", "article-4096"), ("forward", "backward"), (4096, 8192, 16384)),
    workloads=Plan("cuda", tuple(WORKLOADS), STAGES, (128, 512, 1024, 2048)),
    product_size=ceilings.PRODUCT_SIZE["cuda"],
    copied_bytes=ceilings.COPY_BYTES["cuda"],
    samples_s=ceilings.SECONDS,
)
REHEARSAL = Size(
    profile="quick",
    backends=("eager", "sdpa_flash", "online_triton"),
    files=("weights",),
    kernels=Plan("cpu", ("article-512",), ("forward", "backward"), (256,)),
    workloads=Plan("cpu", ("gpt2",), ("forward",), (128,)),
    product_size=256,
    copied_bytes=1 << 20,
    samples_s=0.05,
)


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    start = time.time()

    import implementations
    from verification import parallel

    size = REHEARSAL if given.rehearse else ON_A_GPU
    try:
        device = implementations.device(size.kernels.device_type)
    except ValueError as error:
        print(f"python -m benchmarks.gpu_box: {error}; --rehearse needs none", file=sys.stderr)
        return 2
    (given.out / "logs").mkdir(parents=True, exist_ok=True)
    backends = size.backends or tuple(command.that_run_on(device))

    def ends(share: float) -> float:
        return start + share * given.seconds

    before, after = given.out / "ceilings.json", given.out / "ceilings-after.json"
    measured = _ceilings(before, size, device, ends(CEILINGS_END))
    _say(start, "ceilings" if measured else "ceilings: FAILED")
    with ThreadPoolExecutor(COMPILING) as pool:
        ahead = [
            pool.submit(_compile, name, plan, ends(VERIFICATION_END))
            for plan in _ahead(size)
            for name in filter(_compiles, backends)
        ]
        verified = parallel.verify(
            given.out / "verification.json",
            _jobs(backends, size.files or parallel.chapters()),
            device,
            size.profile,
            deadline=ends(VERIFICATION_END),
            grace_s=GRACE_S,
            logs=given.out / "logs",
        )
        for one in ahead:
            one.result()  # raises what its thread raised
    _say(start, f"verification: {_counted(outcome.outcome for outcome in verified)}")
    # Those that have to compile come last: what the others leave of their time goes to them.
    by_torch = [name for name in backends if name.startswith("sdpa_")]
    compiled = [name for name in backends if _compiles(name)]
    rows = _sweep([*by_torch, *compiled], size.kernels, ends(KERNELS_END))
    command.write(given.out / "sweep.json", rows, device, given.seconds, round(time.time() - start, 1))
    _say(start, f"kernels: {_counted(row['status'] for row in rows)}")
    others = [name for name in backends if not _compiles(name)]
    rows += _sweep([*others, *compiled], size.workloads, ends(WORKLOADS_END))
    command.write(given.out / "sweep.json", rows, device, given.seconds, round(time.time() - start, 1))
    _say(start, f"kernels and workloads: {_counted(row['status'] for row in rows)}")
    # Where the machine was throttled meanwhile these are lower, and the times in between belong to neither.
    measured = _ceilings(after, size, device, ends(1.0)) and measured
    _say(start, f"ceilings, of what they were: {_compared(before, after)}" if measured else "ceilings: FAILED")
    drawn = _draw(given.out)
    _say(start, f"{given.out / 'index.html'}" if drawn else "the page: FAILED")
    right = not any(outcome.outcome == "fail" for outcome in verified)
    right = right and not any(row["status"] in command.WRONG for row in rows)
    return 0 if right and measured and drawn else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_box",
        description="Verifies and times every backend on a GPU; writes results and page into one folder.",
        epilog="Exit status: 1 where a backend was wrong or crashed or a part failed, 2 where there is no GPU.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for results, logs and page")
    parser.add_argument("--seconds", type=float, default=420.0, help="for all parts together (default: %(default)g)")
    parser.add_argument("--rehearse", action="store_true", help="everything in small, on the CPU")
    return parser


def _say(start: float, what: str) -> None:
    print(f"{time.time() - start:4.0f} s  {what}", flush=True)


def _counted(words: Iterable[str]) -> str:
    every = list(words)
    return ", ".join(f"{every.count(word)} {word}" for word in dict.fromkeys(every)) or "nothing"


def _compiles(backend: str) -> bool:
    """Whether new shapes cost it compilations, which take more time than all else."""
    return "triton" in backend


def _jobs(backends: Sequence[str], chapters: tuple[str, ...]) -> "list[Job]":
    """One process for a backend, and one for each file of tests where it is busy compiling.

    The backends that compile alternate: what two of them share is compiled by the first and found by the second.
    """
    from verification.parallel import Job

    whole = [Job(name, chapters) for name in backends if not _compiles(name)]
    return whole + [Job(name, (chapter,)) for chapter in chapters for name in filter(_compiles, backends)]


def _ahead(size: Size) -> list[Plan]:
    """Plans that make a backend compile the kernels of both sweeps: each workload and stage, at one length."""
    kernels, usual = size.kernels, size.workloads
    return [
        *(replace(kernels, workloads=(name,), lengths=(min(kernels.lengths),)) for name in kernels.workloads),
        *(replace(usual, workloads=(name,), lengths=(max(usual.lengths),)) for name in usual.workloads),
    ]


def _compile(backend: str, plan: Plan, deadline: float) -> None:
    """Fills Triton's cache on disk beside other processes, so that a sweep finds compiled what it times alone.

    The times of these rows mean nothing, since other processes run beside them, and are dropped.
    """
    left = deadline - time.time()
    if left > 0:
        children.sweep(backend, plan, left, SWEEP, limit_s=left + GRACE_S)


def _sweep(backends: Sequence[str], plan: Plan, deadline: float) -> list[Row]:
    """The rows of every backend; each has an even share of the time that is left."""
    rows: list[Row] = []
    for at, backend in enumerate(backends):
        seconds = max(deadline - time.time(), 0.0) / (len(backends) - at)
        rows += children.sweep(
            backend,
            plan,
            max(seconds - LOADING_S, 0.0),
            SWEEP,
            limit_s=seconds + GRACE_S,
            at_limit="left out",
        )
    return rows


def _ceilings(out: Path, size: Size, device: "torch.device", deadline: float) -> bool:
    return _ran(
        [
            *(sys.executable, "-m", "benchmarks.ceilings", "--device", device.type, "--out", str(out)),
            *("--size", str(size.product_size), "--bytes", str(size.copied_bytes), "--seconds", str(size.samples_s)),
        ],
        out.parent / "logs" / f"{out.stem}.txt",
        deadline + GRACE_S,
    )


def _compared(before: Path, after: Path) -> str:
    """The rates of the second file as shares of those of the first."""
    first, second = (json.loads(path.read_text(encoding="utf-8"))["rows"] for path in (before, after))
    return ", ".join(
        f"{row['what']} {statistics.median(row['samples_s']) / statistics.median(again['samples_s']):.2f}"
        for row, again in zip(first, second, strict=True)
    )


def _draw(out: Path) -> bool:
    page = [sys.executable, "-m", "reports", "--data", str(out), "--asv", str(out), "--out", str(out / "index.html")]
    return _ran(page, out / "logs" / "page.txt", time.time() + DRAWING_S)


def _ran(arguments: Sequence[str], log: Path, deadline: float) -> bool:
    """Whether a command of this project ended well and in time."""
    limit_s = max(deadline - time.time(), 1.0)
    with log.open("w", encoding="utf-8") as said:
        try:
            done = subprocess.run(
                arguments, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"stopped after {limit_s:.0f} s: {log}", file=sys.stderr)
            return False
    if done.returncode:
        print(f"ended with status {done.returncode}: {log}", file=sys.stderr)
    return not done.returncode


if __name__ == "__main__":
    sys.exit(main())
