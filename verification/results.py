"""The results file of a run: the records and what follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from verification import machine
from verification.causes import causes
from verification.outcome import Outcome, verdict
from verification.provenance import write


def write_results(
    path: Path,
    device: torch.device,
    properties: Sequence[Mapping[str, str]],
    outcomes: Sequence[Outcome],
    *,
    profile: str,
    duration_s: float,
) -> None:
    """Writes the outcomes with the verdict on each backend, the causes of failures and the findings of the machine.

    properties  each with "id", "title", "formula" and "chapter", the file that it is in
    """
    backends = list(dict.fromkeys(outcome.backend for outcome in outcomes))
    verdicts = {name: verdict([outcome for outcome in outcomes if outcome.backend == name]) for name in backends}
    write(
        path,
        "verification",
        device,
        profile=profile,
        duration_s=round(duration_s, 1),
        backends=backends,
        verdicts=[{"backend": name, "verdict": found, "reason": reason} for name, (found, reason) in verdicts.items()],
        machine=[
            {"title": title, "where": where, "report": machine.REPORTS[title]}
            for title, where in machine.findings(device).items()
        ],
        causes=[asdict(cause) for cause in causes(outcomes)],
        properties=list(properties),
        results=[outcome.as_json() for outcome in outcomes],
    )
