"""`python -m implementations`: every backend, whether it can run here, and if not why."""

import argparse
import json
from typing import Any

import torch

import implementations


def main() -> None:
    """Prints a table, or with --json a list of objects, of the backends."""
    parser = argparse.ArgumentParser(prog="python -m implementations", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where they would run")
    arguments = parser.parse_args()
    listed = [_describe(name, torch.device(arguments.device)) for name in implementations.names()]
    if arguments.json:
        print(json.dumps(listed, indent=2))
        return
    width = max(len(entry["name"]) for entry in listed)
    for entry in listed:
        told = "runs here" if entry["runs"] else f"cannot run here: {entry['reason']}"
        print(f"{entry['name']:<{width}}  {told}\n{'':<{width}}  {entry['summary']}")


def _describe(name: str, device: torch.device) -> dict[str, Any]:
    try:
        backend = implementations.load(name)
    except ImportError as error:
        return {"name": name, "runs": False, "reason": str(error), "summary": "", "facts": None}
    reason = backend.cannot_run(device)
    facts = backend.facts
    return {
        "name": name,
        "runs": reason is None,
        "reason": reason,
        "summary": backend.summary,
        "facts": {
            "scores": str(facts.scores or "input's").removeprefix("torch."),
            "masked_nonfinite": facts.masked_nonfinite,
            "deterministic": facts.deterministic,
        },
    }


if __name__ == "__main__":
    main()
