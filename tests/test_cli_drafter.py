import json

import pandas as pd
import pytest

pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")
pytest.importorskip("tokenizers", reason="the extra `model` (tokenizers) is not installed")

from command_line import call

from dspark_sim.model import evaluate, recordings
from dspark_sim.model.corpus import DOMAINS, Document

DOCUMENTS = [
    Document(domain, (f"How many are {i} and {i}?", f"{2 * i}."))
    for domain in DOMAINS
    for i in range(40)
]


@pytest.fixture(autouse=True)
def few_documents(monkeypatch):
    for module in (evaluate, recordings):
        monkeypatch.setattr(module, "load_documents", lambda corpora: DOCUMENTS)


def test_evaluation_gives_a_row_per_drafter_and_domain():
    size = ("--prompts", 1, "--tokens", 12, "--json")
    code, out, err = call("drafter", "evaluate", "dflash", "ngram", "--policy", "fixed:3", *size)
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert [(r["drafter"], r["domain"]) for r in rows] == [
        (name, domain) for name in ("dflash", "ngram") for domain in DOMAINS
    ]
    assert all(1 <= r["acceptance_length"] <= 4 and r["c4"] == 0 for r in rows)


def test_draft_times_are_a_table_and_a_picture(tmp_path):
    out = tmp_path / "latency.png"
    size = ("--draft-len", "2..4:2", "--requests", 2, "--context", 16)
    code, printed, err = call("drafter", "latency", "dspark-markov", "dflash", *size, "--out", out)
    assert (code, err) == (0, "")
    assert "draft_ms" in printed
    assert out.stat().st_size > 5_000
    table = pd.read_csv(out.with_suffix(".csv"))
    assert table["draft_len"].tolist() == [2, 4, 2, 4]
    assert (table["draft_p10_ms"] <= table["draft_ms"]).all()
    assert (table["verify_ms"] > 0).all()


def test_several_drafters_are_recorded_into_a_folder(tmp_path):
    size = ("--responses", 1, "--positions", 4, "--temperature", 0.6)
    code, out, err = call("drafter", "record", "dflash", "eagle3", *size, "--out", tmp_path / "r")
    assert (code, out) == (0, "")
    names = {"tiny-dflash-t0.6.parquet", "tiny-eagle3-t0.6.parquet"}
    assert {path.name for path in (tmp_path / "r").iterdir()} == names
    assert err.count("wrote 12 positions") == 2


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["evaluate", "dspark-markow"], "did you mean 'dspark-markov'?"),
        (["evaluate", "dflash", "--target", "tny"], "did you mean 'tiny'?"),
        (["evaluate", "dflash", "--policy", "vllm"], "needs step costs"),
        (["evaluate", "dflash", "--policy", "fixed:9"], "more than the 7 tokens"),
        (["evaluate", "dflash", "--prompts", "0"], "prompts must be 1 or more"),
        (["evaluate", "dflash", "--tokens", "1"], "tokens must be 2 or more"),
        (["evaluate", "dflash", "--temperature", "-1"], "temperature must be 0 or more"),
        (["record", "dflash", "--temperature", "nan", "--out", "r"], "temperature must be 0 or"),
        (["record", "dflash", "eagle3", "--out", "one.parquet"], "one file, but 2 drafters"),
        (["record", "dflash", "--responses", "0", "--out", "r"], "responses must be 1 or more"),
        (["record", "dflash", "--positions", "0", "--out", "r"], "positions must be 1 or more"),
        (["latency", "dflash", "--draft-len", "0..4:2"], "draft lengths must be 1 or more"),
        (["latency", "ngram"], "'ngram' has no draft time of its own"),
        (["latency", "dflash", "--requests", "0"], "requests must be 1 or more"),
        (["train", "ngram", "--weights", "w"], "nothing to train"),
        (["train", "dflash", "--weights", "w", "--target", "tny"], "did you mean 'tiny'?"),
        (["train", "dflash", "--weights", "w", "--steps", "0"], "--steps must be 1 or more"),
        (["train", "dflash", "--weights", "w", "--device", "tpu"], "use cpu"),
        (["train", "dflash", "--weights", "w", "--corpora", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_sentence(argv, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call("drafter", *argv)
    assert (code, out) == (2, "")
    assert told in err
    assert err.startswith("dspark-sim: ")
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
