"""`python -m implementations`: every backend, whether it can run here, and if not why."""

import argparse
import io
import json
import sys
from dataclasses import asdict
from typing import Any

import implementations
from implementations import Backend


def main() -> None:
    """Prints a table, or with --json a list of objects, of the backends."""
    parser = argparse.ArgumentParser(prog="python -m implementations", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--device", help="where they would run; default: cuda where there is one")
    arguments = parser.parse_args()
    try:
        device = implementations.device(arguments.device)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    listed = [_describe(*one) for one in implementations.survey(device)]
    if arguments.json:
        print(json.dumps(listed, indent=2))
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot spell a backend's words
    width = max(len(entry["name"]) for entry in listed)
    for entry in listed:
        status = "runs here" if entry["runs"] else f"cannot run here: {entry['reason']}"
        print(f"{entry['name']:<{width}}  {status}\n{'':<{width}}  {entry['summary']}")


def _describe(name: str, backend: Backend | None, reason: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "runs": reason is None,
        "reason": reason,
        "summary": backend.summary if backend else "",
        "facts": _facts(backend) if backend else None,
    }


def _facts(backend: Backend) -> dict[str, Any]:
    facts = asdict(backend.facts)
    for name in ("scores", "sums"):
        facts[name] = str(facts[name] or "input's").removeprefix("torch.")
    return facts


if __name__ == "__main__":
    main()
