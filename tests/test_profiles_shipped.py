from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dspark_sim.core import UserError
from dspark_sim.throughput import list_profiles, load_profile, summarize_profile

SHARED = Path(__file__).parents[2] / "shared"
NAMES = (
    "dsv4-flash-b300-tp4",
    "llama3.1-8b-h100",
    "qwen3-8b-h20",
    "qwen3.5-35b-a3b-h20",
    "smollm2-135m-cpu",
)
BLOG = "reference/engines/vllm_blog_fig2_dsv4flash0731_tp4_b300"
# D-Cut, Qwen3-8B on H20: ms at 25, 50, 75 and 100 % of a block of 16, by number of requests.
DCUT = {
    4: (8.2, 8.7, 9.7, 10.9),
    8: (10.6, 12.8, 16.3, 19.6),
    16: (16.0, 22.7, 29.8, 35.8),
    32: (29.8, 43.1, 56.6, 70.1),
    64: (55.2, 82.2, 107.9, 133.9),
}


def test_the_shipped_profiles_are_listed_with_their_origin():
    entries = list_profiles()
    assert tuple(entry["name"] for entry in entries) == NAMES
    assert all(len(entry["origin"]) > 20 for entry in entries)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_profile_loads_and_tells_where_it_comes_from(name):
    profile = load_profile(name)
    assert profile.name == name
    assert {"source", "method", "assumed", "date", "licence"} <= set(profile.provenance)
    dense = profile.tables(max_draft_len=7)
    assert (dense.verify_ns[1:] > 0).all()
    assert not dense.extended.any()
    assert len(summarize_profile(profile)) > 5


@pytest.mark.parametrize(
    ("tokens", "ms"),
    [
        (1, 5.109),
        (3, 5.119),
        (128, 9.427),
        (512, 15.034),
        (680, 15.991),
        (1024, 20.634),
        (1025, 104.489),
        (1536, 104.489),
        (2048, 103.633),
        (8192, 135.665),
        (16384, 234.892),
    ],
)
def test_b300_verification_costs_the_published_medians(tokens, ms):
    assert load_profile("dsv4-flash-b300-tp4").verify_ms(tokens) == ms


@pytest.mark.parametrize(("requests", "ms"), [(1, 0.883), (3, 0.997), (128, 3.143), (256, 5.38)])
def test_b300_drafting_costs_the_published_medians(requests, ms):
    profile = load_profile("dsv4-flash-b300-tp4")
    assert profile.draft_ms(requests, [1, 5, 7]).tolist() == [ms, ms, ms]


def test_b300_keeps_the_dips_that_vllm_levels_out():
    dense = load_profile("dsv4-flash-b300-tp4").tables(7)
    assert dense.verify_ns[176] < dense.verify_ns[168]
    assert dense.monotone().verify_ns[176] == dense.verify_ns[168]


def test_b300_falls_off_the_cliff_after_1024_tokens():
    profile = load_profile("dsv4-flash-b300-tp4")
    assert profile.regime([1024, 1025, 16384]).tolist() == ["captured", "eager", "eager"]
    assert profile.clamped([1025, 1535, 1536]).tolist() == [True, True, False]
    with pytest.raises(UserError, match="covers 1 to 16384 batch tokens, not 16385"):
        profile.verify_ms(16385)


@pytest.mark.parametrize(("kind", "key"), [("verify", "batch_tokens"), ("draft", "num_requests")])
def test_b300_tables_hold_every_published_point_and_its_spread(kind, key):
    path = SHARED / f"{BLOG}_{kind}_median.csv"
    if not path.exists():
        pytest.skip("the published figures in ../shared are absent")
    published = pd.read_csv(path)
    table = getattr(load_profile("dsv4-flash-b300-tp4"), kind)
    assert table["ms"].tolist() == published.iloc[:, 1].tolist()
    assert (np.abs(table[key] - published.iloc[:, 0]) <= 7).all()
    raw = pd.read_csv(SHARED / f"{BLOG}_{kind}_raw.csv").groupby(published.columns[0])
    assert table["n"].tolist() == raw.size().tolist()
    assert (table["p90_ms"].to_numpy() <= raw.max().iloc[:, 0].to_numpy() + 1e-3).all()
    assert (table["p10_ms"].to_numpy() >= raw.min().iloc[:, 0].to_numpy() - 1e-3).all()


@pytest.mark.parametrize("tokens", [1, 64, 777, 8192])
@pytest.mark.parametrize("length", [0, 1, 7, 16])
def test_the_h100_profile_is_its_three_term_fit(tokens, length):
    kv = 50_000
    seconds = 5.88590713e-3 + 2.10103129e-5 * tokens + 3.92645679e-8 * kv + 1.20683946e-3
    if length:
        seconds += 2.13526175e-3 + 8.41429603e-7 * length + 2.37768493e-9 * kv
    step = load_profile("llama3.1-8b-h100").step_ms(32, tokens, kv, 32, length)
    assert step == pytest.approx(seconds * 1000, abs=1e-6)


def test_the_dense_h20_profile_is_within_its_stated_residuals_of_the_published_costs():
    profile = load_profile("qwen3-8b-h20")
    errors = []
    for requests, costs in DCUT.items():
        for share, published in zip((0.25, 0.5, 0.75, 1.0), costs, strict=True):
            tokens = requests + int(np.ceil(share * 15 * requests))
            errors.append(profile.step_ms(requests, tokens, 0, requests, 15) - published)
    assert np.abs(errors).max() == pytest.approx(0.38, abs=0.005)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.11, abs=0.005)
    assert "rms 0.11 ms, largest 0.38 ms" in profile.provenance["method"]


def test_the_moe_h20_profile_holds_its_four_published_costs():
    profile = load_profile("qwen3.5-35b-a3b-h20")
    assert profile.verify_ms([1, 304, 305, 784, 1024]).tolist() == [79.9, 79.9, 85.4, 86.1, 90.6]
    assert profile.num_gpus == 2
