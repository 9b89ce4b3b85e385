"""Callers in several threads."""

import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Barrier, Condition
from typing import Any

from torch import Tensor

from verification.judge import Subject
from verification.problems import Problem
from verification.property import for_all

# Calls of each thread as fast as they go, and calls in which the two take turns at every line of Python.
CALLS, IN_TURNS = 25, 3

# Seconds before a thread goes on although it is not its turn: the other waits for it in a lock, or is in a long step.
PATIENCE = 0.05


class _Turns:
    """Two threads that go through Python line by line, one after the other.

    Left alone each would finish many a call in one go, and what they share would be found by luck.
    """

    def __init__(self) -> None:
        self.changed = Condition()
        self.turn = 0
        self.finished = False

    @contextmanager
    def of(self, thread: int) -> Iterator[None]:
        """Inside, this thread gives the turn to the other at every line."""

        def step(frame: Any, event: str, argument: Any) -> Any:
            with self.changed:
                self.turn = 1 - thread
                self.changed.notify()
                self.changed.wait_for(lambda: self.turn == thread or self.finished, PATIENCE)
            return step

        before = sys.gettrace()
        sys.settrace(step)
        try:
            yield
        finally:
            sys.settrace(before)
            with self.changed:
                self.finished = True
                self.changed.notify()


@for_all(
    None,
    Problem(queries=3, keys=5, dim=4),
    Problem(heads=2, queries=17, keys=65, dim=8, causal=True, mask="random"),
)
def test_callers_in_two_threads_do_not_meet(subject: Subject, problem: Problem) -> None:
    """Two threads, each with numbers of its own in tensors of the same sizes: every output is that of its own.

    A scratch buffer that is kept by size, or any state of the module, is shared by both.
    """
    if subject.interpreted:
        subject.evidence.stated = "two threads: not asked in Triton's interpreter, which runs one kernel at a time"
        return
    both = (problem, replace(problem, seed=problem.seed + 1))
    begin, turns = Barrier(len(both)), _Turns()

    def called(thread: int) -> list[Tensor]:
        q, k, v, mask = both[thread].tensors()

        def call() -> Tensor:
            return subject.backend.attend(q, k, v, **both[thread].options(mask))

        begin.wait()
        with turns.of(thread):
            answers = [call() for _ in range(IN_TURNS)]
        return answers + [call() for _ in range(CALLS)]

    for one in both:
        q, k, v, mask = one.tensors()
        subject.attend(q, k, v, **one.options(mask))  # refused here, or not at all
    # What is warned of is one for all threads: a kernel that records warnings would leave its own setting behind.
    with warnings.catch_warnings(), ThreadPoolExecutor(len(both)) as pool:
        warnings.simplefilter("default")
        answers = list(pool.map(called, range(len(both))))
    for one, outputs in zip(both, answers, strict=True):
        q, k, v, mask = one.tensors()
        exact, allowed = subject.right(one, q, k, v, mask)
        for out in outputs:
            subject.compare(one, "output beside another thread", out, exact.output, allowed)
