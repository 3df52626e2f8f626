"""Profiles of other programs: recognised by content, named by option, written whole or not."""

import json

import numpy as np
import pytest

from dspark_sim.core import UserError
from dspark_sim.throughput import (
    ImportOptions,
    export_profile,
    import_profile,
    load_profile,
    write_profile,
)
from dspark_sim.throughput.formats import FORMATS, WRITERS

DEEP = "smollm2-135m-cpu"  # its draft takes seven times as long for 7 tokens as for 1
SHIPPED = ("dsv4-flash-b300-tp4", "llama3.1-8b-h100", "qwen3-8b-h20", "qwen3.5-35b-a3b-h20", DEEP)


def test_what_can_be_written_can_be_read():
    assert set(WRITERS) <= set(FORMATS)


@pytest.mark.parametrize(
    ("format", "name"),
    [(f, n) for f in sorted(WRITERS) for n in SHIPPED if (f, n) != ("inference-lab", DEEP)],
)
def test_every_export_is_recognised_by_its_content_and_makes_a_folder(tmp_path, name, format):
    path = export_profile(load_profile(name), tmp_path / "table.txt", format)
    read = import_profile(path)
    again = load_profile(write_profile(read, tmp_path / "again"))
    at = np.unique(np.linspace(*read.token_range, 50).astype(int))
    assert again.verify_ms(at).tolist() == read.verify_ms(at).tolist()
    assert import_profile(path, format=format).header() == read.header()


def test_steps_whose_drafting_grows_with_its_length_are_no_sum_for_inference_lab(tmp_path):
    path = export_profile(load_profile(DEEP), tmp_path / "steps.csv", "inference-lab")
    with pytest.raises(UserError, match="no sum of terms of the batch size and of the tokens"):
        import_profile(path)


@pytest.mark.parametrize("format", ["sglang-additive", "trt"])
@pytest.mark.parametrize("name", SHIPPED)
def test_additive_exports_cost_what_the_profile_does_at_every_size(tmp_path, name, format):
    one = load_profile(name)
    length = 7 if one.drafter == "block" else 0
    path = export_profile(one, tmp_path / "t.json", format, draft_len=length, context=300)
    read = import_profile(path)
    requests = np.minimum([1, 7, 33, 64], one.max_num_seqs)
    last = min(one.token_range[1], one.max_num_batched_tokens)
    tokens = np.unique(np.geomspace(1, last, 200).astype(int))[:, None]
    truth = one.step_ms(requests, tokens, 300 * requests, requests, length)
    assert np.allclose(read.step_ms(requests, tokens), truth, rtol=1e-9)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"batch": [1]}', "'batch' are the keys of no known table; allowed: sglang \\(sample_b"),
        ("[1, 2]", "is in no known format; allowed"),
        ("a,b\n1,2\n", "is in no known format; allowed"),
        ("", "is in no known format"),
    ],
)
def test_an_unknown_file_lists_the_formats(tmp_path, text, sentence):
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        import_profile(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.json: cannot be read"):
        import_profile(tmp_path / "nowhere.json")
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="b: is no text file"):
        import_profile(tmp_path / "b")


def test_a_format_that_is_named_is_the_one_that_is_read(tmp_path):
    path = export_profile(load_profile("qwen3-8b-h20"), tmp_path / "t.json", "sglang")
    with pytest.raises(UserError, match="the key 'bias_seconds' is missing"):
        import_profile(path, format="sglang-additive")
    with pytest.raises(UserError, match="unknown format 'sglan': did you mean 'sglang'"):
        import_profile(path, format="sglan")
    with pytest.raises(UserError, match=r"LLMServingSim's profile is a folder with dense\.csv"):
        import_profile(path, format="llmservingsim")


def test_a_format_that_cannot_be_written_lists_those_that_can(tmp_path):
    one = load_profile("qwen3-8b-h20")
    with pytest.raises(UserError, match=r"unknown format 'vllm': .*allowed: inference-lab, sglang"):
        export_profile(one, tmp_path / "t", "vllm")
    with pytest.raises(UserError, match="belong to the format 'trt-gv' alone"):
        export_profile(one, tmp_path / "t", "trt", graphs=[4])
    assert list(tmp_path.iterdir()) == []


def test_unknown_and_impossible_settings_are_refused(tmp_path):
    path = export_profile(load_profile("qwen3-8b-h20"), tmp_path / "t.json", "sglang")
    with pytest.raises(UserError, match=r"unknown key 'gpus' in the import's settings.*'gpu'"):
        import_profile(path, ImportOptions(keys={"gpus": 2}))
    with pytest.raises(UserError, match="max_num_batched_tokens must be a whole number"):
        import_profile(path, ImportOptions(keys={"max_num_batched_tokens": "many"}))


def test_a_written_json_has_one_key_a_line(tmp_path):
    path = export_profile(load_profile("qwen3-8b-h20"), tmp_path / "t.json", "trt")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.split('"')[1] for line in lines[1:-1]] == list(json.loads(path.read_text()))
