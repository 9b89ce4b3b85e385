"""The page: what it shows, what it must never show, and what it says when results are absent or broken."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reports import formats, history, styles
from reports.__main__ import main
from reports.asv_results import load_asv

COMMIT, OLDER = "a" * 40, "b" * 40
CPU = {"type": "cpu", "name": "Plain CPU", "driver": None}
GPU = {"type": "cuda", "name": "Fast GPU", "driver": "580.1"}
FORMULA = "test_the_output_agrees_with_the_formula"
HOSTILE = "</pre></script><script>alert('counterexample')</script>"
# A time, and what it turns into, that stands nowhere but in rows that must not show it.
SECRET_SECONDS, SECRET_BYTES = 0.0777123, 987654321
SECRETS = ("0.0777", "77.7", "0.0128", "12.9", "987654321", "942 MiB")


def provenance(commit: str = COMMIT, device: dict[str, Any] = CPU, date: str = "2026-11-29T19:00:00Z") -> dict:
    return {
        "commit": commit,
        "dirty": False,
        "subject": "Rescale once",
        "date": date,
        "device": device,
        "threads": 2,
        "versions": {"python": "3.12.3", "torch": "2.13.0", "triton": None, "cuda": None},
        "command": "python -m benchmarks",
    }


VERDICT_OF = {"pass": "verified", "fail": "failing", "left out": "unfinished"}


def verification(verdicts: dict[str, str] | None = None, **outcomes: str) -> dict:
    """One property, with an outcome for each backend; `verdicts` where it is not the usual one of that outcome."""
    found = {backend: VERDICT_OF.get(outcome, "not verified") for backend, outcome in outcomes.items()}
    results = [result(backend, outcome) for backend, outcome in outcomes.items()]
    return {
        "schema": 1,
        "kind": "verification",
        "provenance": provenance(),
        "profile": "default",
        "duration_s": 9.0,
        "backends": list(outcomes),
        "verdicts": [
            {"backend": backend, "verdict": verdict, "reason": f"why {verdict}"}
            for backend, verdict in (found | (verdicts or {})).items()
        ],
        "machine": [],
        "causes": [
            {name: one[name] for name in ("backend", "problem", "reason", "exception")} | {"properties": [FORMULA]}
            for one in results
            if one["outcome"] == "fail"
        ],
        "properties": [described(FORMULA)],
        "results": results,
    }


def described(property: str) -> dict:
    title = property.removeprefix("test_").replace("_", " ")
    return {"id": property, "title": title, "formula": "sum_j P_ij V_j", "chapter": "agreement"}


def result(backend: str, outcome: str, property: str = FORMULA) -> dict:
    failing = outcome == "fail"
    return {
        "backend": backend,
        "property": property,
        "outcome": outcome,
        "problem": "Problem(queries=2, causal=True)" if failing else None,
        "exception": "AssertionError" if failing else None,
        "counterexample": HOSTILE if failing else None,
        "reason": None if outcome == "pass" else f"reason of {backend}",
        "problems": 1234,
        "calls": 2468,
        "refusals": {f"refusal of {backend}": 3} if outcome == "refused" else {},
        "covered": {"values": [60, 60], "pairs": [1204, 1204], "triples": [9019, 9020]},
        "stated": None,
        "machine": [],
        "worst": {"float32": 0.04},
        "worst_by_length": {},
        "threads": 1,
        "duration_s": 1.0,
    }


def kill_matrix(*killed_by: list[str]) -> dict:
    """One faulty backend for each list of properties that reject it; the first property is named for all of them."""
    return {
        "schema": 1,
        "kind": "kill-matrix",
        "provenance": provenance(),
        "properties": ["test_rows_sum_to_one", "test_a_call_leaves_no_trace", "test_it_is_fast"],
        "mutants": [
            {
                "name": f"mutant_{index}",
                "base": "online",
                "kind": "forward",
                "report": "owner/repo#123, a letter",
                "why": f"fault {index}",
                "named": "test_rows_sum_to_one",
                "killed_by": killers,
                "crashed": [],
            }
            for index, killers in enumerate(killed_by, start=1)
        ],
        "only_killer_of": {},
        "kills_nothing": [],
    }


def static(**changes: Any) -> dict:
    """Two compiled kernels, the second with these changes."""
    kernel = {
        "architecture": "sm_90",
        "backend": "online_triton",
        "kernel": "forward",
        "dtype": "bfloat16",
        "head_dim": 128,
        "variant": "causal",
        "tile": {"queries": 128, "keys": 64, "warps": 8, "stages": 2},
        "registers": 168,
        "spill_bytes": 0,
        "stack_bytes": 0,
        "shared_bytes": 98304,
        "shared_limit_bytes": 232448,
        "tensor_core": {"wgmma": 12},
        "async_copies": 24,
        "programs_per_multiprocessor": 1,
        "limited_by": "registers",
        "inner_loop_instructions": 412,
        "instructions_per_key": 6.4,
        "faults": [],
    }
    return {"schema": 1, "kind": "static", "provenance": provenance(), "rows": [kernel, kernel | changes]}


def ceilings(**changes: Any) -> dict:
    """A matrix product of 1 TFLOP in 2 ms, and a copy of 1 GiB in 1 s, that with these changes."""
    product = {"what": "matrix product", "of": "4 x 4 x 4", "dtype": "float32"}
    product |= {"samples_s": [0.001, 0.002, 0.003], "flops": 10**12, "bytes": None}
    copy = {"what": "copy", "of": "512 MiB", "dtype": None, "samples_s": [1.0], "flops": None, "bytes": 2**30} | changes
    origin = provenance()
    return {"schema": 1, "kind": "ceilings", "provenance": origin, "clock": "a clock", "rows": [product, copy]}


def row(backend: str, seq_len: int, seconds: float, **changes: Any) -> dict:
    return {
        "backend": backend,
        "workload": "article-512",
        "model": "d_model 512",
        "batch": 1,
        "heads": 8,
        "kv_heads": 8,
        "head_dim": 64,
        "seq_len": seq_len,
        "causal": True,
        "dtype": "float32",
        "stage": "forward",
        "status": "timed",
        "reason": None,
        "samples_s": [seconds] * 5,
        "flops": 1e9,
        "extra_bytes": 4096,
        "error_over_budget": 0.05,
        "verified_rows": 16,
    } | changes


def sweep(*rows: dict, **origin: Any) -> dict:
    return {
        "schema": 1,
        "kind": "sweep",
        "provenance": provenance(**origin),
        "clock": "time.perf_counter",
        "allowed_s": 60,
        "duration_s": 50.0,
        "rows": list(rows),
    }


def asv_folder(folder: Path, commits: dict[str, list[float | None]]) -> Path:
    """asv's results for `track_latency` over the backends eager and online, with intervals of 1 %."""
    name = "bench.Forward.track_latency"
    machine = folder / "box"
    machine.mkdir(parents=True)
    benchmark = {
        "param_names": ["backend"],
        "params": [["'eager'", "'online'"]],
        "unit": "seconds",
        "version": "1",
    }
    (folder / "benchmarks.json").write_text(json.dumps({name: benchmark, "version": 2}))
    (machine / "machine.json").write_text(json.dumps({"machine": "box", "cpu": "Plain CPU", "version": 1}))
    for index, (commit, seconds) in enumerate(commits.items()):
        ends = [[s and s * factor for s in seconds] for factor in (0.99, 1.01)]
        content = {
            "version": 2,
            "commit_hash": commit,
            "env_name": "py3.12",
            "date": 1764000000000 + index,
            "params": {"machine": "box"},
            "result_columns": [
                "result",
                "params",
                "version",
                "started_at",
                "duration",
                "stats_ci_99_a",
                "stats_ci_99_b",
            ],
            "results": {name: [seconds, benchmark["params"], "1", 0, 1.0, *ends]},
        }
        (machine / f"{commit[:8]}-py3.12.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def make_page(tmp_path: Path) -> Callable[..., str]:
    def make(files: dict[str, dict], commits: dict[str, list[float | None]] | None = None) -> str:
        data = tmp_path / "data"
        data.mkdir()
        for name, content in files.items():
            (data / name).write_text(json.dumps(content))
        asv = tmp_path / "asv"
        if commits:
            asv_folder(asv, commits)
        out = tmp_path / "html" / "index.html"
        assert main(["--data", str(data), "--asv", str(asv), "--out", str(out)]) == 0
        return out.read_text(encoding="utf-8")

    return make


def charts(page: str) -> list[dict]:
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)]


def own_text(page: str) -> str:
    """The page without the drawing library."""
    return max(re.split(r"<script>.*?</script>", page, flags=re.DOTALL), key=len)


def test_the_page_loads_nothing(make_page: Callable[..., str]):
    files = {
        "verification.json": verification(eager="pass"),
        "sweep.json": sweep(row("eager", 128, 0.001)),
        "kill-matrix.json": kill_matrix([]),
        "static.json": static(),
        "ceilings.json": ceilings(),
    }
    page = make_page(files, {COMMIT: [0.001, 0.002]})
    # A link that a reader may follow asks for nothing by itself.
    without_links = re.sub(r'<a href="https://github.com/[^"]*" rel="noreferrer">', "", own_text(page))
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(https?:)?//""", without_links)
    assert not re.search(r"@import|url\(|<link|<iframe|<img", own_text(page))
    assert "default-src 'none'" in page
    assert "This chart could not be drawn" in page  # the page's own script, bundled
    assert "Not on this page" not in page
    # One chart each for latency, TFLOP/s, speed-up, memory, error and history.
    assert len(charts(page)) == page.count("<figure") == 6


def test_a_row_that_was_not_timed_has_no_speed_on_the_page(make_page: Callable[..., str]):
    failed = row(
        "online",
        128,
        SECRET_SECONDS,
        status="failed",
        reason="row 7 is wrong",
        extra_bytes=SECRET_BYTES,
        error_over_budget=3.41,
    )
    page = own_text(make_page({"sweep.json": sweep(row("eager", 128, 0.001), failed)}))
    assert not [secret for secret in SECRETS if secret in page]
    assert "row 7 is wrong" in page
    assert "online gives wrong answers on" in page
    assert "3.41" in page


def test_a_backend_that_fails_a_property_has_no_speed_at_that_commit(make_page: Callable[..., str]):
    page = own_text(
        make_page(
            {
                "verification.json": verification(eager="pass", online="fail"),
                "sweep.json": sweep(
                    row("eager", 128, 0.001), row("online", 128, SECRET_SECONDS, extra_bytes=SECRET_BYTES)
                ),
            },
            {OLDER: [0.001, 0.002], COMMIT: [0.001, SECRET_SECONDS]},
        )
    )
    assert not [secret for secret in SECRETS if secret in page]
    assert "fails verification: the output agrees with the formula" in page
    assert "2.00 ms" in page  # of the older commit, which nothing says is wrong


def test_a_failure_at_another_commit_withholds_nothing(make_page: Callable[..., str]):
    page = make_page(
        {
            "verification.json": verification(eager="pass", online="fail"),
            "sweep.json": sweep(row("online", 128, 0.0123), commit=OLDER),
        }
    )
    assert "12.3 ms" in page
    assert "verify the commit that was timed" in page


def test_a_gap_is_a_gap(make_page: Callable[..., str]):
    lengths = (128, 256, 512, 1024)
    rows = [row("eager", length, 0.001 * length) for length in lengths]
    rows += [row("online", length, 0.001 * length) for length in lengths if length != 512]
    rows.append(row("online", 512, 1.0, status="out of memory", reason="wanted 9 GiB", samples_s=None))
    latency = charts(make_page({"sweep.json": sweep(*rows)}))[0]
    of_online = [point for point in latency["datasets"]["lines"] if point["backend"] == "online"]
    assert [point["x"] for point in of_online] == [128, 256, 1024]
    assert of_online[0]["run"] == of_online[1]["run"] != of_online[2]["run"]
    assert all("run" in layer["encoding"]["detail"]["field"] for layer in latency["layer"])


def test_ticks_stand_at_the_measured_lengths(make_page: Callable[..., str]):
    latency = charts(make_page({"sweep.json": sweep(*(row("eager", n, n * 1e-5) for n in (128, 384, 8192)))}))[0]
    assert latency["layer"][-1]["encoding"]["x"]["axis"]["values"] == [128, 384, 8192]
    assert latency["layer"][-1]["encoding"]["x"]["scale"]["base"] == 2


def test_the_fastest_verified_backend_is_named_at_the_longest_common_length(make_page: Callable[..., str]):
    page = make_page(
        {
            "verification.json": verification(eager="pass", online="pass", flash="refused"),
            "sweep.json": sweep(
                row("eager", 128, 0.004),
                row("eager", 256, 0.009),
                row("online", 128, 0.003),
                row("flash", 128, 0.001),
            ),
        }
    )
    assert re.search(r"<strong>online</strong> 3.00 ms<small>at 128, 2 of 2 backends there<br>1.33× the speed", page)
    assert "2 of 3 backends are verified on Plain CPU. flash is not verified." in page


def test_the_fastest_is_named_where_more_than_half_have_a_time(make_page: Callable[..., str]):
    page = make_page(
        {
            "verification.json": verification(eager="pass", online="pass", flash="pass"),
            "sweep.json": sweep(
                *(row(backend, 128, 0.004) for backend in ("eager", "online", "flash")),
                row("online", 256, 0.009),
                row("flash", 256, 0.008),
                row("eager", 512, 0.001),
            ),
        }
    )
    assert re.search(r"<strong>flash</strong> 8.00 ms<small>at 256, 2 of 3 backends there", page)


def test_devices_and_commits_are_not_mixed(make_page: Callable[..., str]):
    page = make_page(
        {
            "sweep.json": sweep(row("eager", 128, 0.0123)),
            "sweep-gpu.json": sweep(row("eager", 128, 0.000456), device=GPU),
            "sweep-old.json": sweep(row("eager", 256, 0.0789), commit=OLDER, date="2026-11-01T00:00:00Z"),
        }
    )
    latencies = [[point["Latency"] for point in chart["datasets"]["lines"]] for chart in charts(page)[::5]]
    assert sorted(latencies) == [["12.3 ms"], ["456 µs"]]
    assert re.search(r"Not shown.*<code>sweep-old.json</code> \(commit bbbbbbbb", page)


def test_hostile_text_stays_text(make_page: Callable[..., str]):
    page = make_page(
        {
            "verification.json": verification(None, **{"eager": "pass", "<b>online": "fail"}),
            "sweep.json": sweep(row("</script><b>flash", 128, 0.001, reason=HOSTILE)),
        }
    )
    assert "<b>" not in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(&#39;counterexample&#39;)" in page
    assert all(chart["layer"] for chart in charts(page))


def text_of(page: str) -> str:
    """What a reader sees, in one line."""
    return " ".join(re.sub(r"<[^>]*>", "", own_text(page)).split())


def test_the_kill_matrix_says_what_is_caught_and_by_what(make_page: Callable[..., str]):
    one, other = "test_rows_sum_to_one", "test_a_call_leaves_no_trace"
    page = make_page({"kill-matrix.json": kill_matrix([one], [one, other])})
    assert "✓ 2 of 2 are rejected, each by the property that was named" in text_of(page)
    assert "1 of 3 properties rejects none of these faults: it is fast." in text_of(page)
    assert re.search(r"2</td><td>1<small><a href=\"#mutant_1\">", page)  # of 2 rejected, 1 by no other property
    assert '<a href="https://github.com/owner/repo/issues/123" rel="noreferrer">owner/repo#123</a>, a letter' in page


def test_a_fault_that_gets_through_is_an_alarm(make_page: Callable[..., str]):
    page = make_page({"kill-matrix.json": kill_matrix(["test_rows_sum_to_one"], ["test_a_call_leaves_no_trace"])})
    assert "The judge does not reject every faulty backend by the property named for it: mutant_2." in page
    assert "✗ 1 of 2 is not rejected by the property named for it: mutant_2." in text_of(page)
    assert '<details class="kind" open>' in page


def test_a_mutant_that_was_judged_again_counts_as_it_was_judged_last(make_page: Callable[..., str]):
    again = kill_matrix(["test_rows_sum_to_one"])
    again["provenance"]["date"] = "2026-11-29T20:00:00Z"
    page = make_page({"kill-matrix-new.json": again, "kill-matrix-old.json": kill_matrix([], [])})
    assert "✗ 1 of 2 is not rejected by the property named for it: mutant_2." in text_of(page)


def test_compiled_kernels_with_a_fault_stand_apart(make_page: Callable[..., str]):
    page = make_page({"static.json": static(stack_bytes=8, faults=["8 bytes of stack"], registers=None)})
    assert "2 kernels, ✗ 1 with a fault: 8 bytes of stack." in text_of(page)
    assert "not speeds" in text_of(page)
    assert page.index("✗ 8 bytes of stack") < page.index("1 kernels without a fault")
    assert '<td class="num none">not known</td><td class="num number">0</td><td class="num number">8 B</td>' in page
    assert "96 KiB<small>of 227 KiB</small>" in page


def test_the_worst_error_is_shown_by_length(make_page: Callable[..., str]):
    found = verification(eager="pass", online="pass")
    lengths = {"over 256": 1.25, "65-256": 0.5, "1-16": 0.031, "17-64": None}
    found["results"][0]["worst_by_length"] = {"float32": lengths}
    page = make_page({"verification.json": found})
    assert re.findall(r'<th scope="col" class="num">([^<]*)</th>', page.partition("Worst error over budget</h3>")[2])[
        :5
    ] == ["any", "1-16", "17-64", "65-256", "over 256"]
    eager, online = re.findall(r'<td class="dtype">float32</td>(.*?)</tr>', page)
    assert re.findall(r'class="num (\w+)">([^<]*)', eager) == [
        ("number", "0.0400"),
        ("number", "0.0310"),
        ("failed", "not finite"),
        ("number", "0.500"),
        ("failed", "1.25"),
    ]
    assert re.findall(r'class="num (\w+)">([^<]*)', online)[1:] == [("none", "not measured")] * 4


@pytest.mark.parametrize(
    "verdict", ["verified, forward only", "mostly refused", "not verified", "unfinished", "failing"]
)
def test_a_verdict_stands_as_it_is_in_the_file_and_only_verified_is_praised(
    make_page: Callable[..., str], verdict: str
):
    outcome = {"failing": "fail", "unfinished": "left out"}.get(verdict, "pass")
    found = verification({"online": verdict}, eager="pass", online=outcome)
    page = make_page({"verification.json": found, "sweep.json": sweep(row("online", 128, 0.003))})
    assert f"1 of 2 backends is verified on Plain CPU. online is {verdict}." in page
    assert "no backend verified at<br>this commit has a time" in page
    assert page.count('<span class="verified">✓ verified</span>') == 1
    assert re.search(rf"<td class=\"verdict\">[^/]*{verdict}", page, re.IGNORECASE)
    assert (f"<small>why {verdict}</small>" in page) == (not verdict.startswith("verified"))


def test_a_wrong_answer_in_a_timed_workload_outdoes_the_verdict(make_page: Callable[..., str]):
    wrong = row("online", 128, 1.0, status="failed", reason="row 7 is wrong", samples_s=None)
    page = make_page({"verification.json": verification(online="pass"), "sweep.json": sweep(wrong)})
    assert "0 of 1 backend is verified on Plain CPU. online is breaking when timed." in page


def test_what_was_answered_and_covered_stands_beside_each_backend(make_page: Callable[..., str]):
    found = verification(eager="pass", flash="refused")
    found["results"][1] |= {"problems": 0, "covered": {}}
    page = make_page({"verification.json": found}).partition('aria-label="Verdict on each backend"')[2]
    eager, flash = re.findall(r'<td class="verdict">.*?</tr>', page, re.DOTALL)
    assert re.findall(r">([\d,]+)(?:<small>(.*?)</small>)?</td>", eager)[:3] == [
        ("1,234", ""),
        ("1,204", "of 1,204"),
        ("9,019", "of 9,020"),
    ]
    assert re.findall(r">([^<>]+)</td>", flash)[:3] == ["0", "none", "none"]


def test_failures_are_shown_by_cause(make_page: Callable[..., str]):
    found = verification(eager="pass", online="fail", two_pass="fail")
    for name in ("test_rows_sum_to_one", "test_more"):
        found["properties"].append(described(name))
        found["results"].append(result("online", "fail", name))
    found["results"][-2]["counterexample"] = "of the sum"
    found["causes"][0]["properties"] = [FORMULA, "test_more"]
    alone = {"problem": None, "reason": "it crashed", "exception": "process died"}
    found["causes"].append(found["causes"][0] | alone | {"properties": ["test_rows_sum_to_one"]})
    page = make_page({"verification.json": found})
    assert page.count('<div class="failure"') == 3
    assert page.count('<a class="fail" href="#verification-1-failure-1">FAIL</a>') == 2
    assert "online fails 3 properties for 2 causes: Problem(queries=2, causal=True); it crashed." in page
    first, second, third = page.split('<div class="failure"')[1:]
    assert "<h4>online: <code>Problem(queries=2, causal=True)</code></h4>" in first
    assert 'reason of online <span class="quiet">(AssertionError)</span>' in first
    assert "<li>the output agrees with the formula</li><li>more</li>" in first
    assert "<h4>two_pass: <code>" in second
    assert "<h4>online</h4>" in third
    assert "it crashed" in third
    assert "of the sum</pre></details>" in third
    assert "of the sum" not in first


def test_a_finding_of_the_machine_is_shown_once_and_blames_no_backend(make_page: Callable[..., str]):
    found = verification(eager="pass")
    found["machine"] = [{"title": "a product leaks", "where": "bfloat16, inner 61", "report": "owner/repo#5717"}]
    found["results"][0]["machine"] = ["a product leaks"]
    page = make_page({"verification.json": found})
    assert text_of(page).count("The machine, Plain CPU: a product leaks (bfloat16, inner 61), owner/repo#5717.") == 1
    assert "This is no failure of a backend." in page
    assert '<a href="https://github.com/owner/repo/issues/5717" rel="noreferrer">owner/repo#5717</a>' in page


def test_what_is_refused_in_part_is_folded(make_page: Callable[..., str]):
    found = verification(eager="pass", flash="refused")
    found["results"][0]["refusals"] = {"no width of 65": 1100, "no width of 72": 100, "no masks": 34}
    page = make_page({"verification.json": found})
    whole, part = page.partition("Refused, stated and left out</h3>")[2].split("Refused in part, for 2 reasons")
    assert "refusal of flash" in whole
    assert 'no width of 65 <span class="quiet">(and 1 more with other numbers: ' in part
    assert "<small>1,234 refused</small>" in page


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (verification(eager="pass") | {"verdicts": []}, "verdicts: none on 'eager'"),
        (verification({"eager": "splendid"}, eager="pass"), "verdicts: 'splendid' on 'eager', wanted one of verified"),
        (verification({"eager": "verified"}, eager="fail"), "'verified' on 'eager', of which a property fails"),
        (verification({"eager": "failing"}, eager="pass"), "'failing' on 'eager', of which no property fails"),
        (verification(eager="fail") | {"causes": []}, f"property {FORMULA!r} of 'eager' fails and has no cause"),
        (
            verification(eager="pass") | {"causes": verification(eager="fail")["causes"]},
            f"property {FORMULA!r} of 'eager' has a cause and does not fail",
        ),
        (verification(eager="pass") | {"machine": [{"title": "leaks"}]}, "machine[0].where is missing"),
    ],
)
def test_a_verification_that_contradicts_itself_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: dict, problem: str
):
    (tmp_path / "verification.json").write_text(json.dumps(content))
    assert main(["--data", str(tmp_path), "--asv", str(tmp_path / "asv"), "--out", str(tmp_path / "page")]) == 1
    assert problem in capsys.readouterr().err


def test_a_verification_of_an_older_version_says_how_to_make_a_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    old = verification(eager="pass")
    del old["verdicts"]
    path = tmp_path / "verification-old.json"
    path.write_text(json.dumps(old))
    assert main(["--data", str(tmp_path), "--asv", str(tmp_path / "asv"), "--out", str(tmp_path / "page")]) == 1
    assert capsys.readouterr().err == (
        f"reports: {path}: of an older version of the suite, without verdicts; "
        f"make a new one with `pytest verification/ --results {path}`\n"
    )


def test_the_ceilings_of_a_machine_stand_beside_its_times(make_page: Callable[..., str]):
    files = {"sweep.json": sweep(row("eager", 128, 0.001)), "sweep-gpu.json": sweep(row("eager", 128, 1.0), device=GPU)}
    page = text_of(make_page(files | {"ceilings.json": ceilings()}))
    label = "matrix product in float32 500 TFLOP/s (4 x 4 x 4); copy 1.00 GiB/s (512 MiB)."
    assert page.count(label) == 1
    assert page.index("Plain CPU, commit") < page.index(label)


@pytest.mark.parametrize("packages", [["altair", "vl_convert"], ["vl_convert"]])
def test_a_page_without_what_draws_charts_has_the_numbers(
    make_page: Callable[..., str], monkeypatch: pytest.MonkeyPatch, packages: list[str]
):
    monkeypatch.delitem(sys.modules, "reports.charts", raising=False)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)  # an import of it fails
    page = make_page({"sweep.json": sweep(row("eager", 128, 0.0123))}, {COMMIT: [0.001, 0.002]})
    assert charts(page) == []
    assert "12.3 ms" in page
    assert "2.00 ms" in page
    assert page.index("Charts need") < page.index("python -m reports --data DIR")


@pytest.mark.parametrize(
    ("files", "commits", "commands"),
    [
        ({"verification.json": verification(eager="pass")}, None, ["python -m benchmarks", "asv run"]),
        (
            {"sweep.json": sweep(row("eager", 128, 0.001))},
            None,
            ["pytest verification/ --results reports/data/verification.json", "asv run"],
        ),
        (
            {},
            {COMMIT: [0.001, 0.002]},
            ["pytest verification/ --results reports/data/verification.json", "python -m benchmarks"],
        ),
        ({"sweep.json": sweep()}, None, ["pytest verification/ --results reports/data/verification.json", "asv run"]),
        (
            {"static.json": static()},
            None,
            ["pytest verification/ --results reports/data/verification.json", "python -m verification.mutants"],
        ),
        (
            {"kill-matrix.json": kill_matrix([])},
            None,
            ["python -m benchmarks", "python -m verification.static --json reports/data/static.json"],
        ),
        ({"ceilings.json": ceilings()}, None, ["python -m benchmarks"]),
        ({"static.json": static()}, None, ["python -m benchmarks.ceilings"]),
    ],
)
def test_what_is_missing_is_said(
    make_page: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    files: dict[str, dict],
    commits: dict[str, list[float | None]] | None,
    commands: list[str],
):
    page, console = make_page(files, commits), capsys.readouterr().out
    for command in commands:
        assert f"<code>{command}</code>" in page
        assert f"`{command}`" in console


def test_no_results_at_all_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "index.html"
    absent = str(tmp_path / "absent")
    assert main(["--data", absent, "--asv", absent, "--out", str(out)]) == 1
    assert "pytest verification/ --results reports/data/verification.json" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "wanted an object"),
        ('{"schema": 2, "kind": "sweep"}', "wanted schema 1"),
        (
            json.dumps(sweep(row("eager", 128, 0.001)) | {"rows": [{"backend": "eager"}]}),
            "rows[0].workload is missing",
        ),
        (
            json.dumps(sweep(row("eager", 128, 0.001, heads="many"))),
            "rows[0].heads is 'many', wanted int",
        ),
        (json.dumps(sweep(row("eager", 128, 0.001, samples_s=[]))), "samples_s must be seconds over 0"),
        (json.dumps(sweep(row("eager", 128, math.nan))), "NaN is not JSON"),
    ],
)
def test_a_malformed_file_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, problem: str
):
    (tmp_path / "sweep.json").write_text(content)
    assert main(["--data", str(tmp_path), "--asv", str(tmp_path / "asv"), "--out", str(tmp_path / "page")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(tmp_path / "sweep.json") in error
    assert problem in error


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("kill-matrix.json", kill_matrix(["test_x"]), "mutants[0]: property 'test_x' is not in properties"),
        ("kill-matrix-2.json", kill_matrix([]) | {"properties": [1]}, "properties[0] is 1, wanted str"),
        ("static.json", static(registers="many"), "rows[1].registers is 'many', wanted int or float or null"),
        ("static.json", static(tile={"queries": 1}), "rows[1].tile.keys is missing"),
        ("static.json", static(faults=[7]), "rows[1].faults[0] is 7, wanted str"),
        ("ceilings.json", ceilings(samples_s=[]), "rows[1].samples_s: wanted seconds over 0, given []"),
        ("ceilings.json", ceilings(flops=1), "rows[1]: wanted one of flops and bytes"),
        ("static.json", kill_matrix([]), "wanted schema 1, kind 'static'"),
    ],
)
def test_other_malformed_files_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: dict, problem: str
):
    (tmp_path / name).write_text(json.dumps(content))
    assert main(["--data", str(tmp_path), "--asv", str(tmp_path / "asv"), "--out", str(tmp_path / "page")]) == 1
    assert f"{tmp_path / name}: {problem}" in capsys.readouterr().err.replace("schema 1, kind 'kill-matrix'; ", "")


def test_a_malformed_asv_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = asv_folder(tmp_path / "asv", {COMMIT: [0.001, 0.002]})
    (folder / "box" / "broken-py3.12.json").write_text('{"version": 1}')
    assert main(["--data", str(tmp_path), "--asv", str(folder), "--out", str(tmp_path / "page")]) == 1
    assert "broken-py3.12.json: not a result file of asv" in capsys.readouterr().err


def test_nan_in_asv_files_is_skipped_and_null_is_failed(tmp_path: Path):
    results = load_asv(asv_folder(tmp_path, {COMMIT: [math.nan, None], OLDER: [0.001, 0.002]}))
    assert results is not None
    statuses = results.rows.set_index(["commit", "backend"])["status"].to_dict()
    assert statuses == {
        (COMMIT, "eager"): "skipped",
        (COMMIT, "online"): "failed",
        (OLDER, "eager"): "timed",
        (OLDER, "online"): "timed",
    }


@pytest.mark.parametrize(
    ("seconds", "half_width", "verdicts"),
    [
        ([1.0, 1.2, 1.2, 1.0], 0.01, ["", "slower", "", "faster"]),
        ([1.0, 1.04, 1.0], 0.001, ["", "", ""]),  # intervals apart, but under 5 %
        ([1.0, 1.2, 1.0], 0.15, ["", "", ""]),  # over 5 %, but intervals overlap
        ([1.0, 1.03, 1.06, 1.09], 0.001, ["", "", "slower", ""]),  # a drift
        ([1.0, math.nan, 1.2], 0.01, ["", "", "slower"]),
        ([1.0, 1.2], math.nan, ["", ""]),
    ],
)
def test_history_verdicts(seconds: list[float], half_width: float, verdicts: list[str]):
    commits = [f"commit {index}" for index in range(len(seconds))]
    rows = pd.DataFrame(
        {
            **dict.fromkeys(history.SERIES, "same"),
            "commit": commits,
            "seconds": seconds,
            "low_s": [s * (1 - half_width) for s in seconds],
            "high_s": [s * (1 + half_width) for s in seconds],
        }
    )
    assert list(history.judge(rows, commits)["verdict"]) == verdicts


def test_a_new_driver_is_no_change_of_a_commit():
    rows = pd.DataFrame(
        {
            **dict.fromkeys(history.SERIES, "same"),
            "setup": ["driver 1", "driver 2"],
            "commit": ["first", "second"],
            "seconds": [1.0, 2.0],
            "low_s": [0.99, 1.98],
            "high_s": [1.01, 2.02],
        }
    )
    assert list(history.judge(rows, ["first", "second"])["verdict"]) == ["", ""]


def test_commits_are_ordered_as_git_orders_them(tmp_path: Path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    assert history.first_parents(tmp_path) == {}
    git("init")
    subjects = ["first", "second\twith a tab"]
    for subject in subjects:
        git("commit", "--allow-empty", "--no-verify", "-m", subject)
    known = history.first_parents(tmp_path)
    assert list(known.values()) == subjects
    first, second = known
    rows = pd.DataFrame({"commit": [first, second, OLDER], "date": [2, 1, 0]})  # dates that disagree
    order = history.order_commits(rows, known)
    assert (order.commits, order.by_date, order.elsewhere) == ([first, second], False, 1)
    assert history.order_commits(rows, {}).commits == [OLDER, second, first]


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance of #rrggbb."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colours", "page"), [(styles.LIGHT, styles.LIGHT_PAGE), (styles.DARK, styles.DARK_PAGE)])
def test_colours_stand_out_from_the_page(colours: tuple[str, ...], page: str):
    for colour in colours:
        brighter, darker = sorted((luminance(colour), luminance(page)), reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= 3, colour


def test_no_two_backends_are_drawn_alike():
    drawn = styles.styles(f"backend {index}" for index in range(100))
    assert len(set(drawn.values())) == 100
    first = list(drawn.values())[:10]
    for part in ("colour", "dash", "marker"):
        assert len({getattr(style, part) for style in first}) == 10


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (formats.length(128), "128"),
        (formats.length(8192), "8k"),
        (formats.length(1000), "1000"),
        (formats.seconds(0.00123), "1.23 ms"),
        (formats.seconds(0.9999), "1.00 s"),
        (formats.seconds(1e-4, formats.short), "100 µs"),
        (formats.size(1536), "1.50 KiB"),
        (formats.digits(1234.5), "1234"),
        (formats.digits(99.99), "100"),
    ],
)
def test_numbers_read_well(text: str, wanted: str):
    assert text == wanted


def test_the_report_imports_no_other_suite():
    code = "import sys, reports.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"torch", "implementations", "verification", "benchmarks"} & set(done.stdout.split())
