"""The folder of a sweep: one folder per finished run, one sweep at a time, no leftovers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_sim.core import UserError, shipped_dir, whole_file
from dspark_sim.policies import policy_file
from dspark_sim.simulator.collect import profile_hash
from dspark_sim.simulator.metrics import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dspark_sim.config import Scenario
    from dspark_sim.throughput import EngineProfile

TABLE = "sweep.csv"
RUNS = "runs"
RUN_FILES = ("config.json", "summary.json", "requests.parquet")
FILE_ENDINGS = ("jsonl", "parquet")
METRICS = (
    "tok_s_gpu",
    "tok_s_user",
    "tok_s_user_mean",
    "output_tok_s",
    "acceptance_length",
    "acceptance_rate",
    "verify_budget",
    "draft_budget",
    "wasted_fraction",
    "batch_tokens",
    "step_ms",
    "eager_step_fraction",
    "extended_step_fraction",
    "utilisation",
    "us_token",
    *(f"us_token_{part}" for part in (*PARTS, "idle")),
    *(f"{name}_{key}_ms" for name in ("ttft", "tpot", "icl", "e2el")
      for key in ("mean", "p50", "p90", "p99")),
    "duration",
    "request_throughput",
    "output_throughput",
    "request_goodput",
    "preemptions",
    "requests_measured",
    "window",
)  # fmt: skip
"""What the table of a sweep says of each run."""
_SCRATCH = ".inputs"
_LEFT = re.compile(r"\.(.+)-[a-z0-9_]{8}")


class SweepFolder:
    """Where the runs of a sweep are kept; a run's folder is named by all that the run depends on.

    Parameters
    ----------
    out
        The sweep's folder.
    inputs
        Hash of the program's version and of the files that the runs read, from `input_hashes`.
    """

    def __init__(self, out: Path, inputs: str) -> None:
        self.out = out.absolute()  # workers may have another current folder
        self._inputs = inputs

    def of(self, run: Scenario) -> Path:
        """Return the folder of a run."""
        load = f"c{run.concurrency}" if run.concurrency else f"r{run.request_rate or 0:g}"
        policy = re.sub(r"[^A-Za-z0-9.=-]+", "_", run.policy)
        code = policy_file(run.policy)
        identity = run.model_dump_json() + self._inputs + (_file_hash(code) if code else "")
        key = hashlib.sha256(identity.encode()).hexdigest()[:10]
        return self.out / RUNS / f"{policy}_{load}_s{run.seed}_{key}"


def name_of(folder: Path) -> str:
    """Return what a table calls a run: its folder from the sweep's on."""
    return f"{folder.parent.name}/{folder.name}"


def finished(folder: Path, record: str = "requests") -> dict[str, Any] | None:
    """Return the summary of a run that is there whole, with all it was to record; else None."""
    needed = RUN_FILES[:-1] if record == "summary" else RUN_FILES
    try:
        if not all((folder / name).stat().st_size for name in needed):
            return None
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and summary.keys() >= set(METRICS) else None


def store(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a run that was carried out elsewhere, all or nothing."""
    with whole_file(folder) as aside:
        aside.mkdir()
        for name, content in files.items():
            (aside / name).write_bytes(content)


@contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Hold the folder of a sweep, created if need be, rid of what a killed sweep left in it.

    What nobody finished is removed in the end: folders made here that have stayed empty.

    Raises
    ------
    UserError
        Another sweep is writing there, or the folder cannot be written.
    """
    runs = out / RUNS
    made = [path for path in (runs, out, *out.parents) if not path.exists()]
    with ExitStack() as stack:
        try:
            runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{out}: cannot be written ({error.strerror})") from None
        stack.callback(_remove_empty, made)
        if os.name == "posix":
            stack.callback(os.close, _locked(runs, out))
        _clean(runs, ".+")
        _clean(out, f"{re.escape(TABLE)}|{_SCRATCH[1:]}")
        yield


@contextmanager
def scratch(out: Path | None) -> Iterator[Path]:
    """Give a folder for files that only this sweep's workers read: in `out`, or the system's."""
    prefix = "dspark-sim-" if out is None else f"{_SCRATCH}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=out, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def input_hashes(run: Scenario, *profiles: EngineProfile | None) -> str:
    """Return a hash of the program's version and of all that the runs of a sweep read."""
    import dspark_sim

    parts = [dspark_sim.__version__]
    parts += [profile_hash(profile) for profile in profiles if profile is not None]
    for spec in filter(None, (run.trace, run.acceptance, run.belief.temperatures)):
        words = [spec, *filter(None, re.split("[:,=]", spec))]
        shipped = [f"{word}.{end}" for word in words for end in FILE_ENDINGS]
        parts += [_file_hash(shipped_dir("traces") / name) for name in shipped]
        parts += [_file_hash(Path(word)) for word in words]
    return " ".join(parts)


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _locked(runs: Path, out: Path) -> int:
    """Lock a folder for as long as its descriptor is open: the system frees what a kill leaves."""
    import fcntl

    descriptor = os.open(runs, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(
            f"{out}: another sweep is writing there; wait for it or name another folder"
        ) from None
    except OSError:  # a network file system without locks
        pass
    return descriptor


def _clean(folder: Path, names: str) -> None:
    """Remove the temporary folders that a killed process left beside files of these names."""
    for path in folder.iterdir():
        left = _LEFT.fullmatch(path.name)
        if left and re.fullmatch(names, left[1]) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
