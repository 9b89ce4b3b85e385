"""The processes that measure: one at work at a time, told line by line what to do, and none outlives its parent."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[1]

CHILD = (sys.executable, "-m", "benchmarks.child")

# For a process to start Python and torch and to load a backend; on CUDA, to wake the device.
LOADING_S = {"cpu": 60.0, "cuda": 120.0}

# A thread that waits spins otherwise, for as long as another program has its core: two threads were measured to take
# 427 times as long as one. And memory goes back to the machine after every large call, to be cleared again in the
# next: these keep it.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
}

# A process whose own clock says this much less than the clock of its parent has no clock.
SLOWEST_CLOCK, SCHEDULING_S = 0.5, 0.5


class ChildError(Exception):
    """The process died, hangs, or cannot be believed; the message says which. It has ended."""

    def __init__(self, cause: str, *, hung: bool = False) -> None:
        super().__init__(cause)
        self.hung = hung


class Child:
    """A `benchmarks.child`, or what `command` starts in its place, as a context that ends it.

    threads are those of torch on a CPU.
    """

    def __init__(
        self,
        device_type: str,
        threads: int = 1,
        *,
        command: Sequence[str] = CHILD,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115, closed by close()
        inherited = os.environ if environment is None else environment
        self._process = subprocess.Popen(
            [*command, device_type, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**inherited, **ENVIRONMENT, "OMP_NUM_THREADS": str(threads)},
        )
        self._pending = b""
        self._loading_s: float | None = LOADING_S[device_type]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to one message. Raises ChildError where there is none within `limit_s` seconds.

        What the process takes to start, before it can be asked anything, is not in them.
        """
        self._await_start()
        start = time.monotonic()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: reading finds that out, and of what
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line(limit_s))
        waited_s = time.monotonic() - start
        if answer["busy_s"] < SLOWEST_CLOCK * waited_s - SCHEDULING_S:
            self.close()
            raise ChildError(f"its clock says {answer['busy_s']:.3g} s where another process waited {waited_s:.3g} s")
        return answer

    def _await_start(self) -> None:
        if self._loading_s is not None:
            limit_s, self._loading_s = self._loading_s, None
            self._line(limit_s)

    def _line(self, limit_s: float) -> bytes:
        """The next line. Raises ChildError where the pipe ends or the seconds pass before it comes."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise ChildError(f"stopped after {limit_s:.0f} s without an answer", hung=True)
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    self._process.wait()
                    cause = self._end()
                    self.close()
                    raise ChildError(cause)
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _end(self) -> str:
        code = self._process.returncode
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        self._stderr.seek(0)
        said = [line for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        return f"ended with status {code}: {said[-1].strip()}" if said else f"ended with status {code}"

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # what was written to a process that had died
                stream.close()
