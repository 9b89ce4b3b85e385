"""Hypothesis profiles: how many problems a property looks at. `--hypothesis-profile NAME` chooses.

Derandomised, so that a green run stays green until the code changes; nightly looks further, and elsewhere each time.
"""

from hypothesis import HealthCheck, Phase, settings

_COMMON = {
    "deadline": None,
    # The explain phase costs most of the time to a counterexample and explains little here.
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    "report_multiple_bugs": False,
    "suppress_health_check": list(HealthCheck),
}
settings.register_profile("quick", max_examples=10, derandomize=True, **_COMMON)
settings.register_profile("default", max_examples=30, derandomize=True, **_COMMON)
settings.register_profile("ci", max_examples=60, derandomize=True, **_COMMON)
settings.register_profile("nightly", max_examples=600, **_COMMON)
# Hypothesis has a profile of that name and has loaded it; what was asked for on the command line stays.
if settings.get_current_profile_name() == "default":
    settings.load_profile("default")
