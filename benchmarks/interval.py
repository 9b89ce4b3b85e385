"""How sure a measured number is: 99 % intervals of a median, and of the mean of paired differences."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CERTAINTY = 0.99


@dataclass(frozen=True)
class Interval:
    """An estimate and the limits that enclose the truth in 99 of 100 measurements."""

    low: float
    estimate: float
    high: float


def of_median(samples: Sequence[float]) -> tuple[float, float] | None:
    """The two samples that enclose the median with a certainty of 99 %, or None for fewer than eight.

    Each sample falls on either side of the median with equal chance, whatever their distribution: how many fall below
    it is binomial.

    Source: order statistics; recommended for the times of programs by Hoefler and Belli 2015,
    doi 10.1145/2807591.2807644.
    """
    count = len(samples)
    ordered = sorted(samples)
    # How many of each end can be left out: at first none.
    left_out, outside = -1, 0.0
    while left_out + 1 < count / 2:
        outside += 2 * math.comb(count, left_out + 1) / 2**count
        if outside > 1 - CERTAINTY:
            break
        left_out += 1
    return None if left_out < 0 else (ordered[left_out], ordered[count - 1 - left_out])


def of_mean(values: Sequence[float], certainty: float = CERTAINTY) -> Interval:
    """Student's interval of the mean of independent values; at least two are wanted."""
    from scipy import stats  # here: a GPU box measures without it

    found = stats.ttest_1samp(values, 0.0).confidence_interval(certainty)
    return Interval(float(found.low), statistics.fmean(values), float(found.high))


def of_difference(values: Sequence[float], others: Sequence[float]) -> Interval:
    """Welch's interval of the difference of two means; at least two values of each are wanted."""
    from scipy import stats

    found = stats.ttest_ind(values, others, equal_var=False).confidence_interval(CERTAINTY)
    return Interval(float(found.low), statistics.fmean(values) - statistics.fmean(others), float(found.high))
