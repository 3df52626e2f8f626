"""A request remembers what its last block drew: the next one is as if drawn alone."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from dspark_sim.acceptance import load_acceptance
from dspark_sim.acceptance.kernels import draft_block, ring_size
from dspark_sim.acceptance.luck import request_key

GAMMA = 7
WALKS = {
    "inside": [(1, 7), (1, 7), (2, 7), (5, 7), (11, 7), (12, 7)],
    "beyond": [(1, 7), (8, 7), (16, 7), (90, 7), (91, 7)],
    "back": [(40, 7), (39, 7), (38, 3), (1, 7), (2, 7)],
    "other lengths": [(1, 3), (2, 7), (3, 0), (3, 2), (4, 7), (5, 1), (9, 0), (10, 7), (12, 7)],
}


@numba.njit
def walk(tables, key, places, cursor, odds, want):
    """Draft blocks one after another; `cursor` (3,), `odds` (ring_size(γ),) are handed on."""
    confidence = np.zeros((len(places), 7))
    accepted = np.zeros(len(places), dtype=np.int64)
    for i in range(len(places)):
        position, length = places[i]
        accepted[i] = draft_block(
            tables, 0, key, 0.3, position, length, want, cursor, odds, confidence[i]
        )
    return confidence, accepted


def drafted(tables, places, seed, want=True, memory=None):
    cursor, odds = memory or (np.array([0, 0, -1]), np.full(ring_size(GAMMA), np.nan))
    key = np.uint64(request_key(seed, 5))
    return walk(tables, key, np.array(places, dtype=np.int64), cursor, odds, want)


@pytest.fixture(scope="module")
def tables():
    return load_acceptance("chat-dspark:scale=1.3,noise=0.4", GAMMA).tables([""], GAMMA)


@pytest.mark.parametrize("places", WALKS.values(), ids=WALKS)
@pytest.mark.parametrize("seed", range(5))
def test_a_block_is_the_same_whatever_was_drafted_before(tables, places, seed):
    confidence, accepted = drafted(tables, places, seed)
    for i, place in enumerate(places):
        alone, count = drafted(tables, [place], seed)
        assert confidence[i].tolist() == alone[0].tolist()
        assert accepted[i] == count[0]


@pytest.mark.parametrize("places", WALKS.values(), ids=WALKS)
def test_outcomes_are_the_same_with_and_without_confidences(tables, places):
    with_confidence, without = (drafted(tables, places, 1, want)[1] for want in (True, False))
    assert with_confidence.tolist() == without.tolist()


def test_another_request_in_the_slot_begins_with_a_cursor_that_remembers_nothing(tables):
    memory = np.array([0, 0, -1]), np.full(ring_size(GAMMA), np.nan)
    drafted(tables, [(1, 7), (4, 7)], 1, memory=memory)
    memory[0][:] = 0, 0, -1
    again = drafted(tables, [(4, 7), (5, 7)], 2, memory=memory)
    alone = drafted(tables, [(4, 7), (5, 7)], 2)
    assert again[0].tolist() == alone[0].tolist()
    assert again[1].tolist() == alone[1].tolist()


BITS = """
import hashlib, numpy as np
from dspark_sim.acceptance import load_acceptance
confidence, accepted = load_acceptance("chat-dspark", 7).block(np.arange(500), np.arange(500), 7, 3)
print(hashlib.sha256(confidence.tobytes() + accepted.tobytes()).hexdigest())
"""


def test_blocks_are_the_same_bits_on_a_processor_without_wide_registers(tmp_path):
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": tmp_path}
    seen = {
        subprocess.check_output([sys.executable, "-c", BITS], env=os.environ | changes, text=True)
        for changes in ({}, {name: str(value) for name, value in plain.items()})
    }
    assert len(seen) == 1
