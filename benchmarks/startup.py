"""How long it takes until something happens: import, help, a small run with warm kernels."""

from __future__ import annotations

from benchmarks.measure import Row, program

PROGRAMS = {
    "import dspark_sim": ("-c", "import dspark_sim"),
    "dspark-sim --version": ("-m", "dspark_sim", "--version"),
    "dspark-sim simulate, 100 requests": (
        *("-m", "dspark_sim", "simulate", "--trace", "synth:fixed,in=64,out=32", "--json"),
        *("--profile", "llama3.1-8b-h100", "--requests", "100", "--concurrency", "8"),
    ),
}


def measure(quick: bool) -> list[Row]:
    """Return CPU and wall seconds of whole processes, the least of some."""
    rows = []
    for name, arguments in PROGRAMS.items():
        runs = [program(arguments) for _ in range(2 if quick else 5)]
        rows += [
            Row("start-up, CPU", name, min(cpu for _, cpu, _ in runs), "s"),
            Row("start-up, wall", name, min(wall for _, _, wall in runs), "s"),
        ]
    return rows
