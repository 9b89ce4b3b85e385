"""Hypothesis profiles: how many problems are drawn for a property. `--hypothesis-profile NAME` chooses.

Derandomised, so that a green run stays green until the code changes; nightly looks further, and elsewhere each time.
Nothing is kept between runs: a problem that fails is its own reproducer. What hypothesis draws it does not shrink;
whether `shrinking` makes a problem small is what Phase.shrink says here.
"""

import secrets

from hypothesis import HealthCheck, Phase, settings

_COMMON = {
    "deadline": None,
    "database": None,
    "phases": [Phase.generate, Phase.shrink],
    "report_multiple_bugs": False,
    "suppress_health_check": list(HealthCheck),
}
settings.register_profile("quick", max_examples=5, derandomize=True, **_COMMON)
settings.register_profile("default", max_examples=20, derandomize=True, **_COMMON)
settings.register_profile("ci", max_examples=60, derandomize=True, **_COMMON)
# Said outright: a profile inherits from the one in force, which is derandomised here and, under CI, by hypothesis.
settings.register_profile("nightly", max_examples=600, derandomize=False, **_COMMON)
# Hypothesis has a profile of that name and has loaded it; what was asked for on the command line stays.
if settings.get_current_profile_name() == "default":
    settings.load_profile("default")

# How many values are combined, at most, in the formulas and in the other properties; 1: no covering array.
_STRENGTH = {"quick": (2, 1), "mutants": (2, 1)}


def strength(asked: int) -> int:
    """How many values a property that asks for so many combines under this profile."""
    formulas, others = _STRENGTH.get(settings.get_current_profile_name(), (3, 2))
    return min(asked, formulas if asked > 2 else others)


_chosen: dict[str, int] = {}


def choose_seed(seed: int | None) -> None:
    """With --hypothesis-seed the problems are those of that seed, also under a derandomised profile."""
    if seed is not None:
        _chosen["seed"] = seed
        name = settings.get_current_profile_name()
        settings.register_profile(name, settings(), derandomize=False)
        settings.load_profile(name)


def seed() -> int:
    """Of the covering arrays: that of --hypothesis-seed, 0 where it is derandomised, and else another in each run."""
    if "seed" not in _chosen:
        _chosen["seed"] = 0 if settings().derandomize else secrets.randbelow(1 << 30)
    return _chosen["seed"]


def shrinks() -> bool:
    """Whether a problem that fails is made small."""
    return Phase.shrink in settings().phases
