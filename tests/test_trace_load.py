"""Finding a trace by its spec, and the shipped traces."""

import math
import re
import tomllib

import pandas as pd
import pytest

from dspark_sim.core import UserError, shipped_dir
from dspark_sim.trace import list_traces, load_trace, read_trace, synthesize, write_trace
from dspark_sim.trace.synthesis import KINDS

ORIGINS = tomllib.loads((shipped_dir("traces") / "origin.toml").read_text(encoding="utf-8"))
COMMAND = re.compile(
    r"dspark-sim trace synth (?P<kind>\w+) --requests (?P<n>\d+) --seed (?P<seed>\d+) "
    r"--out traces/(?P<name>[\w-]+)\.jsonl"
)


def test_every_shipped_trace_has_an_origin_and_every_origin_a_trace():
    shipped = [entry["name"] for entry in list_traces() if not entry["name"].startswith("synth:")]
    assert shipped == sorted(ORIGINS) == ["chat-1k", "code-1k", "reasoning-300"]


@pytest.mark.parametrize("name", sorted(ORIGINS))
def test_the_recorded_command_writes_the_shipped_trace_byte_for_byte(name, tmp_path):
    command = COMMAND.fullmatch(ORIGINS[name]["command"])
    assert command is not None
    assert command["name"] == name
    trace = load_trace(f"synth:{command['kind']}", int(command["n"]), seed=int(command["seed"]))
    write_trace(trace, tmp_path / "again.jsonl")
    stored = (shipped_dir("traces") / f"{name}.jsonl").read_bytes()
    assert (tmp_path / "again.jsonl").read_bytes() == stored
    assert trace.origin == ORIGINS[name]["origin"] == load_trace(name).origin


def test_shipped_traces_and_generators_are_listed_with_their_origin():
    entries = {entry["name"]: entry["origin"] for entry in list_traces()}
    assert entries["chat-1k"] == ORIGINS["chat-1k"]["origin"]
    assert {f"synth:{kind}" for kind in KINDS} <= entries.keys()
    assert all(entries.values())


def test_a_spec_is_a_call_of_synthesize():
    spec = "synth:chat,in=100,out=50,in_sigma=0.1,out_max=60,rate=5,process=gamma,cv=2,category=x"
    lengths = {"input_tokens": 100, "output_tokens": 50, "input_sigma": 0.1, "output_max": 60}
    expected = synthesize(
        "chat", 30, 7, rate_per_s=5, process="gamma", cv=2, category="x", **lengths
    )
    trace = load_trace(spec, 30, seed=7)
    pd.testing.assert_frame_equal(trace.requests, expected.requests)
    assert trace.origin == expected.origin


def test_max_cuts_prompts_and_outputs():
    frame = load_trace("synth:chat,max=64", 200).requests
    assert frame["prompt_tokens"].max() == frame["output_tokens"].max() == 64


def test_a_generator_draws_a_thousand_requests_unless_told():
    assert len(load_trace("synth:fixed,in=512,out=256")) == 1000
    assert load_trace("synth:fixed,in=512,out=256,rate=inf", 3).rate_per_s == math.inf


def test_empirical_lengths_come_from_a_file_or_a_shipped_trace(tmp_path):
    path = tmp_path / "own.jsonl"
    write_trace(load_trace("chat-1k").head(3), path)
    pairs = set(
        map(tuple, read_trace(path).requests[["prompt_tokens", "output_tokens"]].to_numpy())
    )
    drawn = load_trace(f"synth:empirical,from={path}", 50).requests
    assert set(map(tuple, drawn[["prompt_tokens", "output_tokens"]].to_numpy())) == pairs
    assert load_trace("synth:empirical,from=code-1k,rate=3").name == "empirical"


def test_a_file_is_cut_to_the_requests_asked_for_and_never_extended(tmp_path):
    path = tmp_path / "own.jsonl"
    write_trace(load_trace("chat-1k").head(3), path)
    assert len(load_trace(path)) == 3
    assert len(load_trace(str(path), 2)) == 2
    with pytest.raises(UserError, match="trace 'own' has 3 requests, 5 were asked for"):
        load_trace(path, 5)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("chat-2k", ["unknown trace 'chat-2k'", "did you mean 'chat-1k'", "synth:fixed"]),
        ("chat", ["unknown trace 'chat'", "synth:chat"]),
        ("absent/trace.csv", ["no trace file absent/trace.csv", "chat-1k"]),
        ("synth:chta", ["unknown kind of synthetic trace 'chta'", "did you mean 'chat'"]),
        ("synth:", ["unknown kind of synthetic trace ''", "chat, code"]),
        ("synth:chat,code", ["unknown kind of synthetic trace 'chat,code'"]),
        ("synth:chat,rte=5", ["unknown key 'rte' in 'synth:chat,rte=5'", "did you mean 'rate'"]),
        ("synth:chat,rate=fast", ["'synth:chat,rate=fast': rate must be a number, got 'fast'"]),
        ("synth:chat,rate=-1", ["rate must be positive", "-1"]),
        ("synth:chat,in=many", ["in must be a number, got 'many'"]),
        ("synth:fixed,in=512", ["synth:fixed needs in= and out=", "output_tokens not given"]),
        ("synth:empirical", ["needs from="]),
        ("synth:empirical,from=nowhere", ["unknown trace 'nowhere'"]),
    ],
)
def test_a_spec_that_names_nothing_is_told_in_one_sentence(spec, words):
    with pytest.raises(UserError) as caught:
        load_trace(spec)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_directory_is_no_trace(tmp_path):
    with pytest.raises(UserError, match="is a directory"):
        load_trace(tmp_path)
