"""Commands about profiles: import, export, compare, show; mistakes are one sentence."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import call, strict, tree
from test_formats_sglang import ADDITIVE, FLAT

from dspark_sim.throughput import load_profile


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run every command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sps.json").write_text(json.dumps(FLAT), encoding="utf-8")
    return tmp_path


def test_an_imported_table_is_a_profile_that_says_what_was_assumed():
    code, out, err = call(
        "profile", "import", "sps.json", "--out", "mine", "--set", "gpu=H100",
        "--set", "max_num_seqs=64", "--set", "provenance.licence=none",
    )  # fmt: skip
    assert (code, out) == (0, "")
    assert "assumed: Not in the file and therefore assumed: model = not stated" in err
    assert "wrote profile 'mine' to mine" in err
    mine = load_profile("./mine")
    assert (mine.name, mine.gpu, mine.max_num_seqs) == ("mine", "H100", 64)
    assert mine.provenance["licence"] == "none"
    assert mine.verify_ms(20) == pytest.approx(12.5)


def test_a_name_and_a_format_may_be_given(empty_folder):
    (empty_folder / "a.json").write_text(json.dumps(ADDITIVE), encoding="utf-8")
    assert call("profile", "import", "a.json", "--out", "p", "--name", "other")[0] == 0
    assert load_profile("./p").name == "other"
    code, _, err = call("profile", "import", "a.json", "--out", "q", "--format", "trt")
    assert (code, err) == (2, "dspark-sim: a.json line 1: the key 'token_counts' is missing\n")


@pytest.mark.parametrize("format", ["sglang", "sglang-additive", "trt", "inference-lab"])
def test_an_exported_table_comes_back(format):
    code, out, err = call("profile", "export", "qwen3-8b-h20", "--format", format, "--out", "table")
    assert (code, out, err) == (0, "", "wrote table\n")
    assert call("profile", "import", "table", "--out", "back")[0] == 0
    assert load_profile("./back").verify_ms(64) > 0


def test_an_exact_table_says_that_the_engine_wants_its_fingerprint():
    command = ("profile", "export", "dsv4-flash-b300-tp4", "--format", "trt-gv", "--out", "gv.json")
    code, _, err = call(*command, "--graphs", "32,64", "--num-speculative-tokens", "5")
    assert code == 0
    assert "only with --fingerprint" in err
    table = json.loads(Path("gv.json").read_text(encoding="utf-8"))
    assert list(table["cost_tables"]) == ["32", "64"]
    assert table["engine_fingerprint"]["max_draft_len"] == 5


def test_a_context_term_that_is_left_out_is_noted():
    command = ("profile", "export", "llama3.1-8b-h100", "--format", "trt", "--out", "t.json")
    assert "--context N" in call(*command)[2]
    assert call(*command, "--context", "500")[2] == "wrote t.json\n"


def test_profiles_are_compared_in_a_picture_and_a_table():
    pair = ("qwen3-8b-h20", "llama3.1-8b-h100")
    code, out, _ = call("profile", "compare", *pair, "--out", "both.png", "--requests", "8")
    assert code == 0
    assert out.splitlines()[0].split() == ["batch_tokens", *pair]
    assert out.endswith("picture: both.png\n")
    code, out, _ = call("profile", "compare", *pair, "--out", "both", "--json")
    assert strict(out)[0]["batch_tokens"] == 1
    assert {path for path in tree(Path()) if "both" in path} == {"both.png", "both.svg"}


def test_the_additive_form_is_reported_when_asked_for():
    code, out, _ = call("profile", "show", "qwen3-8b-h20", "--additive")
    assert code == 0
    assert "wrong by more than 5% at 0 of 20 points" in out
    shown = strict(call("profile", "show", "qwen3-8b-h20", "--additive", "--json")[1])
    assert shown["additive"]["num_points"] == 20
    assert "additive" not in strict(call("profile", "show", "qwen3-8b-h20", "--json")[1])
    compared = call("profile", "compare", "qwen3-8b-h20", "--out", "one", "--additive")[1]
    assert "qwen3-8b-h20: T = 8.2 ms + alpha(R)" in compared


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("import", "none.json", "--out", "o"), ["none.json: cannot be read"]),
        (("import", "sps.json", "--out", "o", "--set", "gpus=1"), ["unknown key 'gpus'", "'gpu'"]),
        (("import", "sps.json", "--out", "o", "--set", "gpu"), ["not of the form key=value"]),
        (("import", "sps.json", "--out", "o", "--format", "x"), ["unknown format 'x'"]),
        (("import", "sps.json", "--out", "o", "--layers", "many"), ["many"]),
        (("import", "sps.json", "--out", "o", "--set", "num_gpus=0"), ["num_gpus must be"]),
        (("export", "qwen3-8b-h20", "--out", "o"), ["--format"]),
        (("export", "qwen3-8b-h20", "--format", "sglan", "--out", "o"), ["did you mean 'sglang'"]),
        (("export", "nobody", "--format", "trt", "--out", "o"), ["unknown profile 'nobody'"]),
        (
            ("export", "qwen3-8b-h20", "--format", "trt-gv", "--out", "o", "--graphs", "4.5"),
            ["--graphs must be whole numbers", "4.5"],
        ),
        (
            ("export", "qwen3-8b-h20", "--format", "trt", "--out", "o", "--graphs", "4"),
            ["belong to the format 'trt-gv' alone"],
        ),
        (
            ("export", "qwen3-8b-h20", "--format", "trt-gv", "--out", "o", "--fingerprint", "f"),
            ["f: cannot be read"],
        ),
        (("compare", "qwen3-8b-h20", "qwen3-8b-h20", "--out", "o"), ["different names"]),
        (("compare", "qwen3-8b-h20", "--out", "o", "--requests", "65"), ["up to 64 requests"]),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_writes_nothing(empty_folder, command, words):
    code, out, err = call("profile", *command)
    assert (code, out) == (2, ""), err
    assert err.startswith("dspark-sim: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert [path.name for path in empty_folder.iterdir()] == ["sps.json"]


def test_an_import_over_an_old_folder_replaces_it():
    assert call("profile", "import", "sps.json", "--out", "mine")[0] == 0
    shutil.copy("sps.json", "mine/left.txt")
    assert call("profile", "import", "sps.json", "--out", "mine")[0] == 0
    assert sorted(tree(Path("mine"))) == ["profile.toml", "verify.csv"]
