import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from test_throughput_profile import profile

from dspark_sim.core import UserError
from dspark_sim.throughput import list_profiles, load_profile, write_profile
from dspark_sim.throughput.schema import TABLES


@pytest.fixture
def folder(tmp_path):
    return write_profile(profile(), tmp_path / "toy")


def assert_same(one, other):
    assert one.header() == other.header()
    for spec in TABLES:
        left, right = getattr(one, spec.name), getattr(other, spec.name)
        assert (left is None) == (right is None)
        if left is not None:
            assert_frame_equal(left, right)


def test_a_written_profile_reads_back_unchanged(folder):
    assert_same(load_profile(folder), profile())
    assert_same(load_profile(folder / "profile.toml"), profile())


@pytest.mark.parametrize("entry", list_profiles(), ids=lambda entry: entry["name"])
def test_shipped_profiles_survive_a_round_trip(entry, tmp_path):
    shipped = load_profile(entry["name"])
    assert_same(load_profile(write_profile(shipped, tmp_path / "copy")), shipped)


def test_awkward_texts_survive_a_round_trip(tmp_path):
    text = 'a "quoted" \\ back\tslash, ' + "long words " * 30 + "end\\"
    notes = {"source": text, "a key": "line\nbreak \x7f é", "double": "two  spaces " * 20}
    toy = profile(provenance=notes, kv_tokens=123)
    assert load_profile(write_profile(toy, tmp_path / "toy")).provenance == notes


def test_writing_again_replaces_the_folder_as_a_whole(folder):
    write_profile(profile(draft=None, drafter="none"), folder)
    assert not (folder / "draft.csv").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["toy"]


def test_overrides_replace_keys_and_are_noted(folder):
    changed = load_profile(folder, {"kv_tokens": 5000, "lookup": "floor", "max_num_seqs": 4})
    assert (changed.kv_tokens, changed.lookup, changed.max_num_seqs) == (5000, "floor", 4)
    assert changed.provenance["overrides"] == "kv_tokens = 5000, lookup = floor, max_num_seqs = 4"
    assert load_profile(folder, {"kv_tokens": "unlimited"}).kv_tokens is None


def test_a_lowered_capture_limit_turns_the_sizes_above_it_eager(folder):
    fewer = load_profile(folder, {"capture_limit": 8})
    assert fewer.verify_ms([8, 9, 16]).tolist() == [5, 30, 30]
    with pytest.raises(UserError, match="can only be lowered: nothing above 16"):
        load_profile(folder, {"capture_limit": 32})


def test_an_unknown_override_names_the_nearest_key(folder):
    with pytest.raises(UserError, match=r"unknown key 'kv_token' in the overrides.*'kv_tokens'"):
        load_profile(folder, {"kv_token": 1})


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(UserError, match="unknown profile 'dsv4-flash-b300': did you mean 'dsv4"):
        load_profile("dsv4-flash-b300")


def test_a_missing_folder_and_a_folder_without_toml_are_told_apart(tmp_path):
    with pytest.raises(UserError, match=r"there is no profile folder"):
        load_profile(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"the file 'profile.toml' is missing"):
        load_profile(tmp_path)


def test_a_missing_verify_table_is_named(folder):
    (folder / "verify.csv").unlink()
    with pytest.raises(UserError, match=r"toy: the file 'verify.csv' is missing"):
        load_profile(folder)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("max_num_seqs", "max_num_seq", "unknown key 'max_num_seq' in .*toml: did you mean 'max_n"),
        ("num_gpus = 1\n", "", "toml: the key 'num_gpus' is missing"),
        ("num_gpus = 1", "num_gpus = 1.5", "toml: num_gpus must be a valid integer, got 1.5"),
        ("num_gpus = 1", "num_gpus = = 1", r"toml is no valid TOML: .*line \d"),
        ('drafter = "block"', 'drafter = "blok"', "unknown drafter 'blok' in .*'block'"),
        ("overhead_ms = 0.5", "overhead_ms = -1", "overhead_ms must be greater than or equal to 0"),
        ('source = "a test"', 'source = ""', "provenance.source must"),
    ],
)
def test_a_faulty_toml_names_its_key(folder, old, new, sentence):
    path = folder / "profile.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        load_profile(folder)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: the column 'batch_tokens' is missing"),
        ("batch_tokens,ms\n", "verify.csv: the table is empty"),
        ("batch_tokens,msec\n1,2\n", "unknown column 'msec' in .*line 1: did you mean 'ms'"),
        ("batch_tokens,ms,ms\n1,2,3\n", "line 1: a column is there twice"),
        ("batch_tokens,ms\n1,2\n16\n", "line 3: 2 values are needed, got 1"),
        ("batch_tokens,ms\n1,2\n16,fast\n", "line 3: ms must be a number, got 'fast'"),
        ("batch_tokens,ms\n1,nan\n", "line 2: ms must be finite, got 'nan'"),
        ("batch_tokens,ms\n1,\n", "line 2: ms must be a number, got ''"),
        ("batch_tokens,ms\n1,2\n16,-2\n", "line 3: ms must be a finite number above 0, got -2"),
        ("batch_tokens,ms\n16,2\n1,2\n", "line 3: batch_tokens 1 comes after 16"),
        ("batch_tokens,ms\n16,2\n16,2\n", "line 3: batch_tokens 16 is given twice"),
        ("batch_tokens,ms,n\n16,2,2.5\n", "line 2: n must be a whole number"),
    ],
)
def test_a_faulty_table_names_its_line(folder, text, sentence):
    (folder / "verify.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        load_profile(folder)


def test_a_file_that_is_no_text_is_named(folder):
    (folder / "verify.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"verify.csv is no valid CSV"):
        load_profile(folder)


def test_optional_columns_may_be_left_out_or_empty(folder):
    rows = "batch_tokens,ms,p90_ms\n1,2,\n16,3,4\n"
    (folder / "verify.csv").write_text("\ufeff" + rows.replace("\n", "\r\n"), encoding="utf-8")
    verify = load_profile(folder).verify
    assert verify["p90_ms"].isna().tolist() == [True, False]
    assert verify["n"].tolist() == verify["kv_tokens_read"].tolist() == [0, 0]
    assert pd.api.types.is_integer_dtype(verify["batch_tokens"])
