"""Measure the simulator's speed and print it beside the recorded baseline.

    python -m benchmarks [--quick] [--only NAME ...] [--out FOLDER] [--keep]

Writes speed.md and speed.json to FOLDER (default: build). `--keep` records what was measured as the
baseline, benchmarks/baseline.json, or baseline-quick.json with `--quick`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import deciding, growth, serving, startup, steps, sweeps, table
from benchmarks.machine import machine

MEASUREMENTS = {
    "serving": serving.measure,
    "steps": steps.measure,
    "deciding": deciding.measure,
    "startup": startup.measure,
    "growth": growth.measure,
    "sweeps": sweeps.measure,
}


def main() -> None:
    """Measure, write, compare."""
    options = _options()
    rows = []
    for name in options.only or MEASUREMENTS:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        rows += MEASUREMENTS[name](options.quick)
    baseline = Path(__file__).parent / ("baseline-quick.json" if options.quick else "baseline.json")
    about, kept = machine(), table.read(baseline)
    options.out.mkdir(parents=True, exist_ok=True)
    table.write(rows, about, options.out / "speed.json")
    text = table.markdown(rows, about, kept)
    (options.out / "speed.md").write_text(text, encoding="utf-8")
    print(text)
    if options.keep:
        merged = {**kept, **{row.key: row for row in rows}}
        table.write(list(merged.values()), about, baseline)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=(__doc__ or "")[:75])
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a minute or two")
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="repeatable")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--keep", action="store_true", help="record as the baseline")
    return parser.parse_args()


if __name__ == "__main__":
    main()
