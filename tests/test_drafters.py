import numpy as np
import pandas as pd
import pytest
from small_recording import GAMMA, KINDS, recording_frame

from dspark_sim.acceptance import (
    RecordedAcceptance,
    acceptance_lengths,
    conditional_acceptance,
    draw_responses,
    load_acceptance,
    recording_about,
    sweep_thresholds,
    write_recording,
)
from dspark_sim.core import UserError
from dspark_sim.study.drafters import TABLES, compare_drafters, format_drafters

ABOUT = {"drafter": "mtp1", "target": "big", "temperature": 1, "num_speculative_tokens": GAMMA}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_recording("a.parquet", recording_frame(), ABOUT)
    write_recording("b.parquet", recording_frame(KINDS | {"b": "code"}, gamma=4))
    (tmp_path / "other").mkdir()
    write_recording("other/a.parquet", recording_frame().assign(confidence=None), ABOUT)
    return tmp_path


def test_the_tables_are_those_of_each_recording_one_after_the_other(folder):
    found = compare_drafters(["a.parquet", "b.parquet"])
    for function, table in zip(
        (acceptance_lengths, conditional_acceptance, sweep_thresholds), TABLES, strict=True
    ):
        for name in "ab":
            rows = getattr(found, table).query("recording == @name").drop(columns="recording")
            expected = function(draw_responses(load_acceptance(f"{name}.parquet")))
            pd.testing.assert_frame_equal(rows.reset_index(drop=True), expected)
    assert found.categories == ["chat", "code", "math", "all"]


def test_drafter_target_and_temperature_come_from_the_file_or_the_name(folder):
    names = ["a.parquet", "b.parquet", "tiny-eagle3-t0", "chat-dflash"]
    rows = compare_drafters(names).recordings.set_index("recording")
    assert rows["drafter"].tolist() == ["mtp1", "b", "eagle3", "dflash"]
    assert rows["target"].tolist() == ["big", "", "tiny", ""]
    assert rows["temperature"].tolist() == pytest.approx([1, np.nan, 0, np.nan], nan_ok=True)
    assert rows.loc["tiny-eagle3-t0", "origin"] == "recorded: eagle3 against tiny, T = 0"
    assert recording_about("chat-dflash") == {}


def test_a_temperature_that_is_no_number_is_unknown(folder):
    write_recording("c.parquet", recording_frame(), ABOUT | {"temperature": "hot"})
    assert compare_drafters(["c.parquet"]).recordings["temperature"].isna().all()


def test_files_of_one_name_are_told_apart_by_their_path_and_one_file_comes_once(folder):
    found = compare_drafters(["a.parquet", "other/a.parquet"])
    assert found.recordings["recording"].tolist() == ["a", "other/a.parquet"]
    assert found.without_confidence == ["other/a.parquet"]
    with pytest.raises(UserError, match=r"'a\.parquet' is named twice"):
        compare_drafters(["a.parquet", "b.parquet", "a.parquet", "a.parquet"])


def test_a_recording_without_confidences_has_no_threshold_sweep(folder):
    found = compare_drafters(["other/a.parquet"])
    assert found.thresholds.empty
    assert list(found.thresholds)[:3] == ["recording", "category", "threshold"]
    assert len(found.acceptance_length) == 3


def test_sources_in_memory_are_compared_too():
    source = RecordedAcceptance("mine-ngram", recording_frame(), GAMMA)
    found = compare_drafters([source, load_acceptance("chat-dspark")])
    assert found.recordings["drafter"].tolist() == ["ngram", "dspark"]
    with pytest.raises(UserError, match="named twice"):
        compare_drafters([source, source])


def test_blocks_can_be_cut_to_a_length(folder):
    found = compare_drafters(["a.parquet", "b.parquet"], num_speculative_tokens=2)
    assert found.conditional["position"].max() == 2
    for length, sentence in ((4, "4 draft tokens are more than"), (0, "1 or more")):
        with pytest.raises(UserError, match=sentence):
            compare_drafters(["a.parquet"], num_speculative_tokens=length)


def test_nothing_to_compare_is_told(tmp_path):
    with pytest.raises(UserError, match="no recording is named"):
        compare_drafters([])
    short = RecordedAcceptance("short", recording_frame()[:1], GAMMA)
    with pytest.raises(UserError, match="'short' has no output position after the first"):
        compare_drafters([short])


def test_the_text_has_a_line_per_category_and_recording(folder):
    lines = format_drafters(compare_drafters(["a.parquet", "b.parquet"])).splitlines()
    assert lines[0].split() == [
        "category", "recording", "responses", "rounds", "accept", "len", "1", "2", "3", "4",
    ]  # fmt: skip
    starts = [line.split()[:2] for line in lines[1:-3] if line]
    assert starts[:2] == [["chat", "a"], ["b", "1"]]
    assert [line for line in lines if line.startswith("math")] == [
        "math      a                  2       3  2.333 ± 0.444  1.000  0.333  0.000      -"
    ]
    assert len({len(line) for line in lines[:3]}) == 1


def test_the_tables_are_written_as_csv(folder):
    found = compare_drafters(["a.parquet", "b.parquet"])
    paths = found.save(folder / "out")
    assert [path.name for path in paths] == [f"{name}.csv" for name in TABLES]
    for path in paths:
        pd.testing.assert_frame_equal(
            pd.read_csv(path), getattr(found, path.stem), check_dtype=False
        )
