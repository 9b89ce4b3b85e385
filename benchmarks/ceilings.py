"""What no kernel on this machine can exceed: the rate of its matrix product and of a copy in its memory.

    python -m benchmarks.ceilings --out reports/data/ceilings.json

Attention is two matrix products and the traffic of its inputs and output, so its TFLOP/s stand against the first of
these and its bytes a second against the second. They are measured, with the clock that times the backends, since no
machine sustains the rates of its data sheet.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import clock
from benchmarks.workloads import TIMED_DTYPE

if TYPE_CHECKING:
    import torch

    from benchmarks.prepared import Call

# Long enough that launches do not count, and on a GPU far beyond its caches.
PRODUCT_SIZE = {"cpu": 2048, "cuda": 8192}
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 32}
SENTINEL_SIZE = {"cpu": 512, "cuda": 8192}
SENTINEL_BYTES = {"cpu": 1 << 26, "cuda": 1 << 32}
SECONDS = 1.0  # of samples for each


@dataclass(frozen=True)
class Ceiling:
    """A call of this machine's own: flops operations or bytes moved, for what no kernel can exceed."""

    what: str
    of: str
    call: "Call"
    flops: int | None = None
    bytes: int | None = None


class Steady:
    """Inputs that stay as they are: nobody has a reason to cheat here."""

    stage = "forward"

    def renew(self) -> None: ...

    renew_for_judge = renew


def prepare(device: "torch.device", dtype: str) -> "list[Ceiling]":
    """A product of two square matrices, a copy, and torch's own attention kernel, each of a few milliseconds.

    A product is 2 size^3 operations; a copy reads and writes each byte.
    """
    import torch

    import implementations
    from benchmarks.prepared import Call

    size, copied = SENTINEL_SIZE[device.type], SENTINEL_BYTES[device.type]
    factory: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype)}
    a, b = torch.randn(2, size, size, **factory).unbind()
    out = torch.empty_like(a)
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    q, k, v = torch.randn(3, 1, 8, 256, 64, **factory).unbind()
    own = implementations.load("sdpa_math" if dtype == "float64" else "sdpa_flash").attend

    def call(function: Callable[[], Any]) -> Call:
        return Call(function, lambda _: 0.0)

    return [
        Ceiling("matrix product", f"{size} x {size} x {size}", call(lambda: torch.mm(a, b, out=out)), 2 * size**3),
        Ceiling("copy", f"{copied / 2**20:g} MiB", call(lambda: target.copy_(source)), bytes=2 * copied),
        Ceiling("torch's attention", "8 heads, 256 keys", call(lambda: own(q, k, v, causal=True))),
    ]


def measure(device: "torch.device", size: int, copied_bytes: int, seconds: float = SECONDS) -> list[dict[str, Any]]:
    """Samples of a product of two (size, size) matrices and of a copy of so many bytes, as entries of "rows".

    A product is 2 size^3 operations; a copy reads and writes each byte.
    """
    import torch

    dtype = getattr(torch, TIMED_DTYPE[device.type])
    a, b = torch.randn(2, size, size, device=device, dtype=dtype).unbind()
    out = torch.empty_like(a)
    source = torch.ones(copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    calls: Sequence[tuple[str, str, Callable[[], object], int | None, int | None]] = (
        ("matrix product", f"{size} x {size} x {size}", lambda: torch.mm(a, b, out=out), 2 * size**3, None),
        ("copy", f"{copied_bytes / 2**20:g} MiB", lambda: target.copy_(source), None, 2 * copied_bytes),
    )
    rows = []
    for what, of, call, flops, moved in calls:
        call()
        rows.append(
            {
                "what": what,
                "of": of,
                "dtype": TIMED_DTYPE[device.type] if flops else None,
                "samples_s": clock.samples(call, device, box_s=seconds),
                "flops": flops,
                "bytes": moved,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ceilings",
        description="Measures the rate of a matrix product and of a copy; writes them as JSON.",
    )
    parser.add_argument("--device", choices=TIMED_DTYPE, help="default: cuda where there is one")
    parser.add_argument("--size", type=int, metavar="N", help="of the matrices, N x N (default: for the device)")
    parser.add_argument("--bytes", type=int, metavar="N", help="copied (default: for the device)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of samples for each (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("reports/data/ceilings.json"), metavar="FILE")
    given = parser.parse_args()

    import implementations
    from verification.provenance import write

    try:
        device = implementations.device(given.device)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    size, copied = given.size or PRODUCT_SIZE[device.type], given.bytes or COPY_BYTES[device.type]
    rows = measure(device, size, copied, given.seconds)
    write(given.out, "ceilings", device, clock=clock.NAME[device.type], rows=rows)
    for row in rows:
        amount, unit, scale = (row["flops"], "TFLOP/s", 1e12) if row["flops"] else (row["bytes"], "GiB/s", 2**30)
        rate = amount / scale / statistics.median(row["samples_s"])
        print(f"{row['what']} of {row['of']}: {rate:.3g} {unit}, median of {len(row['samples_s'])} samples")
    print(given.out)


if __name__ == "__main__":
    main()
