"""sched-sim's engine, chunked prefill of 2,048 tokens, on one open loop, under its own Python.

    python run_sched_sim.py LOAD REQUESTS DRAFT_LEN

It has neither a closed loop nor drafts.
"""

import json
import random
import sys
import time

from sched_sim.core.event_engine import Simulator
from sched_sim.core.request import Request
from sched_sim.hardware.presets import get_hardware_profile
from sched_sim.memory.preemption import PreemptionMode
from sched_sim.schedulers.factory import create_scheduler

RATES = {"W2": 10.0, "W3": 40.0}


def serve(rate: float, requests: int) -> dict[str, float]:
    """Return CPU seconds and simulated quantities of one run."""
    draw, now, arrivals = random.Random(42), 0.0, []
    for index in range(requests):
        arrivals.append(
            Request(request_id=str(index), arrived_at=now, prompt_tokens=512, output_tokens=256)
        )
        now += draw.expovariate(rate)
    hardware = get_hardware_profile("a100")
    scheduler = create_scheduler(
        "chunked", hardware, PreemptionMode.RECOMPUTE, token_budget=2048, max_batch_size=256
    )
    simulator = Simulator(hardware, scheduler)
    simulator.submit_workload(arrivals)
    start = time.process_time()
    simulator.run()
    seconds = time.process_time() - start
    return {"cpu_s": seconds, "tokens": 256 * requests, "steps": len(simulator.iteration_records)}


if __name__ == "__main__":
    print(json.dumps(serve(RATES[sys.argv[1]], int(sys.argv[2]))))
