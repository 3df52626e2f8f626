import numpy as np
import pytest
from test_throughput_profile import profile, table

from dspark_sim.throughput.tables import to_ns


def test_milliseconds_round_to_the_nearest_nanosecond():
    assert to_ns([0.0, 1.0, 1.0000004, 1.0000006]).tolist() == [0, 10**6, 10**6, 10**6 + 1]


def test_tables_have_the_profiles_limits_as_shapes():
    dense = profile().tables(max_draft_len=3)
    assert dense.verify_ns.shape == dense.eager.shape == dense.extended.shape == (65,)
    assert dense.draft_ns.shape == (9, 4)
    assert dense.request_ns.shape == (9,)
    assert {a.dtype for a in (dense.verify_ns, dense.draft_ns, dense.request_ns)} == {
        np.dtype("int64")
    }
    assert dense.verify_ns[0] == 0
    assert not dense.draft_ns[0].any()
    assert not dense.draft_ns[:, 0].any()


def test_out_of_range_is_minus_one_without_extension():
    dense = profile().tables(3, max_batch_tokens=70)
    assert (dense.verify_ns[65:] == -1).all()
    assert (dense.verify_ns[:65] >= 0).all()
    assert dense.step_ns(1, 70) == -1


def test_extension_is_marked_where_it_was_used():
    dense = profile().tables(3, max_requests=10, max_batch_tokens=70, extend=True)
    assert np.flatnonzero(dense.extended).tolist() == [65, 66, 67, 68, 69, 70]
    assert np.flatnonzero(dense.extended_requests).tolist() == [9, 10]
    assert dense.verify_ns[66] > dense.verify_ns[64]


def test_eager_and_clamped_sizes_are_marked():
    dense = profile().tables(3)
    assert np.flatnonzero(dense.eager)[0] == 17
    assert np.flatnonzero(dense.clamped).tolist() == list(range(17, 32))
    assert not profile(capture_limit=None).tables(3).eager.any()


def test_the_monotone_belief_never_falls_and_keeps_gaps():
    dips = profile(verify=table([1, 4, 8, 16], [4.0, 7.0, 5.0, 6.0])).tables(3)
    risen = dips.monotone()
    assert risen.verify_ns[[1, 4, 8, 16]].tolist() == [4_000_000, 7_000_000, 7_000_000, 7_000_000]
    assert (risen.verify_ns[17:] == -1).all()
    assert (np.diff(risen.verify_ns[:17]) >= 0).all()


def test_the_flat_belief_charges_every_batch_like_one_token():
    flat = profile().tables(3, max_batch_tokens=70).flat()
    assert set(flat.verify_ns[1:65].tolist()) == {4_000_000}
    assert flat.verify_ns[0] == 0
    assert (flat.verify_ns[65:] == -1).all()


def test_the_flat_belief_starts_at_the_first_covered_size():
    late = profile(lookup="floor", verify=table([8, 64], [3.0, 9.0])).tables(3).flat()
    assert late.verify_ns[[7, 8, 64]].tolist() == [-1, 3_000_000, 3_000_000]


def test_a_belief_without_draft_leaves_the_truth_alone():
    dense = profile().tables(3)
    assert not dense.without_draft().draft_ns.any()
    assert dense.draft_ns[8, 3] == 2_000_000
    assert dense.without_draft().step_ns(1, 1, 10**6, 1, 3) == dense.step_ns(1, 1, 10**6)


@pytest.mark.parametrize("length", [0, 3])
def test_a_step_in_nanoseconds_adds_context_once(length):
    dense = profile().tables(3)
    step = dense.step_ns(2, 8, 1000, 2, length)
    assert step == 500_000 + 5_000_000 + 200_000 + 1_000_000 + (2_000_000 + 100_000) * (length > 0)
