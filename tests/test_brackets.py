"""Brackets hold what they stand for, and never change an outcome."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_sim.acceptance import load_acceptance
from dspark_sim.acceptance.brackets import BINS, logit_brackets, normal_brackets
from dspark_sim.acceptance.kernels import draft_block, ring_size
from dspark_sim.acceptance.luck import normal_quantile, request_key


@given(st.floats(2.0**-53, 1.0 - 2.0**-53))
def test_a_number_lies_between_the_edges_of_its_bin(p):
    place = int(p * BINS)
    normals, logits = normal_brackets(), logit_brackets()
    assert normals[place] - 1e-9 <= normal_quantile(p) <= normals[place + 1] + 1e-9
    assert logits[place] - 1e-9 <= math.log(p / (1.0 - p)) <= logits[place + 1] + 1e-9


@pytest.mark.parametrize("logit", [-math.inf, -40.0, -2.0, 0.0, 3.0, 8.0, 40.0, math.inf])
@pytest.mark.parametrize("sd", [0.0, 1e-6, 0.7, 30.0])
def test_outcomes_are_those_of_exact_acceptance_rates(logit, sd):
    tables = load_acceptance("chat-dspark", 3).tables([""] * 400, 3)
    tables = tables._replace(
        intercept=np.full_like(tables.intercept, logit),
        odds_against=np.full_like(tables.intercept, np.exp(-logit)),
        token_sd=np.full_like(tables.token_sd, sd),
    )
    for request in range(400):
        counts = [
            draft_block(
                tables, request, np.uint64(request_key(1, request)), 0.0, 5, 3, exact,
                np.array([0, 0, -1]), np.zeros(ring_size(3)), np.zeros(3),
            )
            for exact in (True, False)
        ]  # fmt: skip
        assert counts[0] == counts[1]
