r"""Other simulators on the same workloads, beside this one: CPU time and simulated steps.

    python -m benchmarks.peers [--python PATH] [--specdecode-bench FOLDER] [--out FILE]

PATH is the Python of an environment that holds the peers (they need not share ours):

    python3 -m venv peers
    peers/bin/pip install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
    peers/bin/pip install typing_extensions pydantic numpy pyyaml msgspec aiohttp \
        prometheus-client pyzmq zstandard tqdm uvloop sched-sim

Each peer prices a step in its own way, hence the steps: a profile whose steps are fewer would win
by that alone. A ratio is the peer's CPU time over ours.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from subprocess import CalledProcessError

from benchmarks.measure import answer, least, program
from benchmarks.workloads import LOADS, serving
from dspark_sim.simulator import simulate

PROGRAMS = Path(__file__).parent / "peer_programs"
OURS = {0: ("none", "fixed:3"), 3: ("vllm", "dspark-async")}
"""By the draft length of the peer: the policies that are put beside it."""
COLUMNS = ("workload", "simulator", "CPU s", "steps", "µs/step", "M tok/s", "its time over ours")


def main() -> None:
    """Run the peers that are there and print one table."""
    options = _options()
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---:|---:|---:|---:|---:|"]
    dynamo = _installed(options.python, "dynamo.replay.api", "ai-dynamo")
    sched_sim = _installed(options.python, "sched_sim", "sched-sim")
    for load in LOADS:
        for draft_len, policies in OURS.items():
            ours = {policy: _ours(load, policy, options.requests) for policy in policies}
            for policy, run in ours.items():
                lines.append(_line(load, f"dspark-sim, {policy}", run))
            if dynamo:
                name = "Dynamo replay" + (f", nextn = {draft_len}" if draft_len else "")
                run = _peer(options.python, "dynamo", load, options.requests, draft_len)
                lines.append(_line(load, name, run, ours, estimated=True))
            if sched_sim and load == "W2" and not draft_len:
                run = _peer(options.python, "sched_sim", load, options.requests, draft_len)
                lines.append(_line(load, "sched-sim", run, ours))
    if options.specdecode_bench:
        lines += ["", _specdecode_bench(options.specdecode_bench)]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


def _installed(python: str, module: str, name: str) -> bool:
    """Return whether a peer can be imported there; say so if not."""
    try:
        program(["-c", f"import {module}"], python)
    except (CalledProcessError, OSError):
        print(f"{name}: not installed for {python}, left out", file=sys.stderr)
        return False
    return True


def _ours(load: str, policy: str, requests: int) -> dict[str, float]:
    scenario = serving(load, policy, requests)
    summary = simulate(scenario).summary
    tokens, steps = summary["total_output_tokens"], summary["steps"]
    return {"cpu_s": least(lambda: simulate(scenario)), "tokens": tokens, "steps": steps}


def _peer(python: str, name: str, load: str, requests: int, draft_len: int) -> dict[str, float]:
    arguments = [str(PROGRAMS / f"run_{name}.py"), load, str(requests), str(draft_len)]
    found: dict[str, float] = answer(arguments, python)
    return found


def _line(
    load: str,
    name: str,
    run: dict[str, float],
    ours: dict[str, dict[str, float]] | None = None,
    estimated: bool = False,
) -> str:
    seconds, steps = run["cpu_s"], run["steps"]
    ratios = [
        f"{seconds / other['cpu_s']:.1f} ({policy})" for policy, other in (ours or {}).items()
    ]
    counted = f"{'≈ ' * estimated}{steps:,.0f}" if steps else "not told"
    each = f"{seconds / steps * 1e6:.1f}" if steps else ""
    speed = f"{run['tokens'] / seconds / 1e6:.2f}"
    cells = [load, name, f"{seconds:.2f}", counted, each, speed, ", ".join(ratios)]
    return f"| {' | '.join(cells)} |"


def _specdecode_bench(folder: Path) -> str:
    """Time its own simulation of gsm8k with EAGLE3, three drafted tokens, batches of 32."""
    if not (folder / "main.py").is_file():
        return f"SpecDecode-Bench: no main.py in {folder}, left out"
    (folder / "results").mkdir(exist_ok=True)
    options = ("--datasets", "gsm8k", "--predict-methods", "FIXED_3", "--batch-sizes", "32")
    _, cpu, _ = program(["main.py", *options], cwd=folder)
    scenario = serving("W4", "fixed:3", 9_600, concurrency=32, prefill={"mode": "none"})
    both = (scenario, scenario.model_copy(update={"policy": "none"}))
    seconds = least(lambda: [simulate(one) for one in both])
    return (
        f"SpecDecode-Bench, gsm8k, FIXED_3 and plain, batches of 32: {cpu:.2f} CPU s; ours with "
        f"9,600 requests in a closed loop of 32, fixed:3 and none: {seconds:.2f}; ratio "
        f"{cpu / seconds:.1f}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.peers")
    parser.add_argument("--python", default=sys.executable, help="of the peers' environment")
    parser.add_argument("--specdecode-bench", type=Path, help="folder of its repository")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
