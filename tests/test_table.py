import re

import numpy as np
import pytest
from fake_sweep import make_sweep

from dspark_sim.core import UserError
from dspark_sim.study.pareto import frontier
from dspark_sim.study.table import format_table


def test_the_table_reads_as_meant():
    runs = make_sweep(policies=["none", "vllm", "oracle"], concurrency=[1, 256], seeds=1)
    runs["tok_s_gpu"] = [36.21, 5167.2, 112.1, 7141.8, 112.7, 7865.7]
    runs["tok_s_user"] = [147.1, 82.0, 455.3, 113.3, 457.8, 124.8]
    runs["acceptance_length"] = [1, 1, 3.514, 2.79, 3.53, 3.08]
    runs["verify_budget"] = [1, 1, 8, 4.004, 7, 4]
    runs["wasted_fraction"] = [0, 0, 0.5606, 0.302, 0.495, np.nan]
    assert format_table(runs).splitlines() == [
        "concurrency  policy  tok/s/GPU  tok/s/user  accept len  verify budget  waste %",
        "          1  none         36.2       147.1        1.00           1.00      0.0",
        "             vllm *      112.1       455.3        3.51           8.00     56.1",
        "             oracle      112.7       457.8        3.53           7.00     49.5",
        "",
        "        256  none      5,167.2        82.0        1.00           1.00      0.0",
        "             vllm *    7,141.8       113.3        2.79           4.00     30.2",
        "             oracle    7,865.7       124.8        3.08           4.00        -",
        "",
        "* on the joint Pareto frontier of tok/s/GPU and tok/s/user",
        "oracle is not lossless: never on the frontier",
    ]


def test_stars_mark_exactly_the_joint_frontier():
    runs = make_sweep()
    points = frontier(runs)
    stars = re.findall(r"^.* (\S+) \* ", format_table(runs), re.MULTILINE)
    assert sorted(stars) == sorted(points.loc[points["on_frontier"], "policy"])


def test_several_seeds_show_the_interval_and_how_many():
    text = format_table(make_sweep(policies=["vllm"], concurrency=[64], seeds=4))
    assert re.search(r"3,\d{3}\.\d ±\d+\.\d", text)
    assert "± 95 % interval over 4 seeds" in text
    assert "not lossless" not in text


def test_one_seed_shows_no_interval():
    assert "±" not in format_table(make_sweep(policies=["vllm"], concurrency=[64], seeds=1))


def test_every_line_is_aligned():
    lines = format_table(make_sweep()).split("\n\n* on")[0].splitlines()
    assert len({len(line) for line in lines if line}) == 1


def test_any_metric_of_the_sweep_can_be_a_column():
    runs = make_sweep(policies=["vllm"], concurrency=[4], seeds=1)
    head = format_table(runs, ["tok_s_gpu", "eager_step_fraction", "ttft_p99_ms"]).splitlines()[0]
    assert head.split("  ")[2:] == ["tok/s/GPU", "eager %", "ttft_p99_ms"]


def test_an_unknown_column_is_told_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown column 'tok_gpu'.*did you mean 'tok_s_gpu'"):
        format_table(make_sweep(policies=["vllm"]), ["tok_gpu"])


@pytest.mark.parametrize(
    ("concurrency", "rate", "heading", "load"),
    [
        (np.nan, 2.5, "req/s", "2.5"),
        (np.nan, np.nan, "req/s", "as traced"),
        (64, 2.5, "concurrency", "64 at 2.5/s"),
    ],
)
def test_the_load_is_named_for_what_it_is(concurrency, rate, heading, load):
    runs = make_sweep(policies=["vllm"], concurrency=[4], seeds=1)
    lines = format_table(runs.assign(concurrency=concurrency, request_rate=rate)).splitlines()
    assert lines[0].split()[0] == heading
    assert lines[1].strip().startswith(f"{load}  vllm")
