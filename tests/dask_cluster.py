"""A Dask cluster on this computer: a scheduler and workers in processes of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import distributed

PATIENCE_S = 120


class Cluster:
    """A scheduler and its workers, each a process that can be killed."""

    def __init__(self, folder, workers):
        self.file = folder / "scheduler.json"
        self.file.unlink(missing_ok=True)
        self.scheduler = _start("scheduler", "--port", "0", "--scheduler-file", self.file)
        self.address = _address(self.file)
        options = (self.address, "--nthreads", "1", "--no-nanny", "--local-directory", folder)
        self.workers = [_start("worker", *options) for _ in range(workers)]

    def wait(self):
        """Wait until all workers have joined."""
        with distributed.Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=PATIENCE_S)

    def close(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@contextlib.contextmanager
def cluster(folder, workers=2):
    """Give a running cluster; end its processes afterwards."""
    running = Cluster(folder, workers)
    try:
        running.wait()
        yield running
    finally:
        running.close()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def _start(role, *options):
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    here = ("--host", "127.0.0.1", "--no-dashboard")
    command = [sys.executable, "-m", "dask", role, *here, *map(str, options)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _address(file):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(file.read_text())["address"]
        time.sleep(0.1)
    raise TimeoutError("the scheduler did not start")
