"""Callers in several threads."""

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

from torch import Tensor

from verification.judge import Subject
from verification.problems import Problem
from verification.property import for_all

# Calls of each thread: what one writes between two steps of the other, it writes in some of them.
CALLS = 25

# So short a turn, in seconds, that threads change places between any two steps of a call.
TURN = 1e-6


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
    begin = Barrier(len(both))

    def called(one: Problem) -> list[Tensor]:
        q, k, v, mask = one.tensors()
        begin.wait()
        return [subject.backend.attend(q, k, v, **one.options(mask)) for _ in range(CALLS)]

    for one in both:
        q, k, v, mask = one.tensors()
        subject.attend(q, k, v, **one.options(mask))  # refused here, or not at all
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN)
    try:
        # What is warned of is one for all threads: a kernel that records warnings would leave its own setting behind.
        with warnings.catch_warnings(), ThreadPoolExecutor(len(both)) as pool:
            warnings.simplefilter("default")
            answers = list(pool.map(called, both))
    finally:
        sys.setswitchinterval(before)
    for one, outputs in zip(both, answers, strict=True):
        q, k, v, mask = one.tensors()
        exact = subject.exact(one, q, k, v, mask)
        allowed = subject.budget(one, q, k, v, exact)
        for out in outputs:
            subject.compare(one, "output beside another thread", out, exact.output, allowed)
