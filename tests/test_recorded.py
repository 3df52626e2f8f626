import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_recording import COLUMNS, GAMMA, KINDS, LENGTHS, recording_frame

from dspark_sim.acceptance import RecordedAcceptance, read_recording, write_recording
from dspark_sim.acceptance.recorded import recording_metadata
from dspark_sim.core import UserError


def recording(**options):
    return RecordedAcceptance("sample", recording_frame(), GAMMA, **options)


def replayed(source, request, count, category=""):
    """Recorded (response, position) behind each of a request's first output positions."""
    categories = [category] * (request + 1)
    positions = np.arange(count)
    confidence, accepted = source.block(positions * 0 + request, positions, categories=categories)
    names = list(LENGTHS)
    found = [(names[int(row[0] * 16)], int(row[1] * 16)) for row in confidence]
    table = recording_frame().set_index(["request_id", "position"])["accepted"]
    assert accepted.tolist() == [table[place] for place in found]
    return found


def responses_of(found):
    """Cut a replay into whole responses, and check that nothing is skipped or repeated."""
    names = []
    while found:
        name = found[0][0]
        length = min(LENGTHS[name], len(found))
        assert found[:length] == [(name, position) for position in range(length)]
        names.append(name)
        found = found[length:]
    return names


def test_a_recording_survives_writing_and_reading(tmp_path):
    path = tmp_path / "folder" / "sample.parquet"
    metadata = {"num_speculative_tokens": GAMMA, "origin": "a test", "temperature": 1.0}
    write_recording(path, recording_frame(), metadata)
    back = read_recording(path)
    assert (back.name, back.draft_len, back.origin) == ("sample", GAMMA, "a test")
    assert back.frame.drop(columns="confidence").equals(
        recording_frame().drop(columns="confidence")
    )
    assert np.stack(back.frame["confidence"]).tolist() == recording_frame()["confidence"].tolist()
    assert recording_metadata(pq.read_schema(path)) == metadata
    assert [entry.name for entry in path.parent.iterdir()] == ["sample.parquet"]


def test_the_length_of_the_blocks_is_read_off_when_the_metadata_is_silent(tmp_path):
    path = tmp_path / "sample.parquet"
    write_recording(path, recording_frame())
    assert read_recording(path, name="mine").max_draft_len == GAMMA
    assert read_recording(path, name="mine").name == "mine"


def test_temperatures_kept_with_a_recording_are_read(tmp_path):
    path = tmp_path / "sample.parquet"
    write_recording(path, recording_frame(), {"sts_temperatures": [1, 0.5, 2.5]})
    assert read_recording(path).temperatures == (1.0, 0.5, 2.5)
    for metadata in ({}, {"sts_temperatures": None}):
        write_recording(path, recording_frame(), metadata)
        assert read_recording(path).temperatures is None


@pytest.mark.parametrize(
    "values",
    [[], [1, 1], [1, 1, 1, 1], [1, 0, 1], [1, -2, 1], [1, True, 1], [1, "2", 1], [1, None, 1],
     [1, float("nan"), 1], [1, float("inf"), 1], [1, 10**400, 1], 1.5, "1 1 1", {"1": 1}],
    ids=lambda values: str(values)[:20],
)  # fmt: skip
def test_malformed_temperatures_of_a_recording_are_told_with_its_file(tmp_path, values):
    path = tmp_path / "sample.parquet"
    write_recording(path, recording_frame(), {"sts_temperatures": values})
    with pytest.raises(UserError, match=r"sts_temperatures must be a list of 3 positive") as error:
        read_recording(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 200


def test_a_recording_without_category_or_confidence_columns_is_read(tmp_path):
    path = tmp_path / "bare.parquet"
    pq.write_table(pa.Table.from_pandas(recording_frame()[COLUMNS[:3]]), path)
    bare = read_recording(path)
    assert bare.categories == [""]
    assert not bare.has_confidence


def test_a_mapped_request_replays_its_response_exactly():
    mapped = recording(mapping={0: "b", 1: "d"})
    assert replayed(mapped, 0, 7) == [("b", position) for position in range(7)]
    assert replayed(mapped, 1, 5) == [("d", position) for position in range(5)]


@settings(max_examples=30)
@given(st.integers(0, 200))
def test_past_its_end_a_request_goes_on_with_further_whole_responses(request):
    assert len(responses_of(replayed(recording(), request, 60))) >= 60 / 7


def test_past_a_mapped_response_the_request_goes_on_by_luck():
    names = responses_of(replayed(recording(mapping={0: "c"}), 0, 60))
    assert names[0] == "c"
    assert names[1:] == responses_of(replayed(recording(mapping={0: "c"}), 0, 60))[1:]
    assert set(names) == set(LENGTHS)


def test_requests_begin_with_different_responses_all_equally_likely():
    source, requests = recording(), np.arange(4_000)
    confidence, _ = source.block(requests, requests * 0)
    counts = np.bincount((confidence[:, 0] * 16).astype(int), minlength=4)
    assert np.abs(counts - 1_000).max() < 4 * np.sqrt(4_000 * 0.25 * 0.75)


def test_another_seed_ties_requests_to_other_responses():
    requests = np.arange(100)
    first = [recording().block(requests, requests * 0, seed=seed)[0][:, 0] for seed in (0, 1)]
    assert (first[0] != first[1]).any()


@pytest.mark.parametrize("category", ["math", "chat"])
def test_a_request_replays_responses_of_its_own_category(category):
    for request in range(10):
        names = responses_of(replayed(recording(), request, 60, category))
        assert {KINDS[name] for name in names} == {category}


def test_a_request_without_category_replays_any_response():
    assert set(responses_of(replayed(recording(), 0, 200))) == set(LENGTHS)


def test_a_category_that_was_not_recorded_is_an_error_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown category 'maths'.*did you mean 'math'"):
        recording().assign(["math", "maths"])


def test_a_recording_of_one_category_answers_for_every_category():
    alone = RecordedAcceptance("one", recording_frame(kinds=dict.fromkeys(LENGTHS, "x")), GAMMA)
    assert alone.assign(["x", "anything", ""]).tolist() == [0, 0, 0]


def test_a_mapping_holds_within_the_category_too():
    mapped = recording(mapping={2: "d"})
    assert replayed(mapped, 2, 5, "math") == [("d", position) for position in range(5)]


def test_a_mapping_to_a_response_that_was_not_recorded_is_an_error():
    with pytest.raises(UserError, match=r"'sample'.*'nowhere'"):
        recording(mapping={0: "nowhere"}).block([0], [0])


def test_without_a_confidence_head_every_block_reports_the_recordings_mean_rates():
    frame = recording_frame().assign(confidence=None)
    confidence, _ = RecordedAcceptance("plain", frame, GAMMA).block(np.arange(5), np.arange(5))
    accepted = frame["accepted"].to_numpy()
    rates = [(accepted >= j).sum() / (accepted >= j - 1).sum() for j in (1, 2, 3)]
    assert confidence.ravel().tolist() == pytest.approx(rates * 5, rel=1e-6)


@pytest.mark.parametrize("draft_len", [0, 1, 2])
def test_a_draft_shorter_than_the_recorded_one_is_its_beginning(draft_len):
    requests, positions = np.repeat(np.arange(10), 20), np.tile(np.arange(20), 10)
    whole_confidence, whole = recording().block(requests, positions)
    confidence, accepted = recording().block(requests, positions, draft_len)
    assert confidence.tolist() == whole_confidence[:, :draft_len].tolist()
    assert accepted.tolist() == np.minimum(whole, draft_len).tolist()


def test_a_draft_longer_than_the_recorded_one_is_an_error():
    with pytest.raises(UserError, match="4 draft tokens are more than acceptance 'sample' knows"):
        recording().block([0], [0], draft_len=4)


def broken(column, row, value):
    frame = recording_frame()
    frame[column] = frame[column].astype(object)
    frame.at[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (recording_frame()[:0], "is empty"),
        (recording_frame().drop(index=2), "positions of request 'a' must be 0, 1, 2"),
        (recording_frame().drop(index=4), "positions of request 'b' must be 0, 1, 2"),
        (recording_frame()[::-1], "positions of request 'd' must be 0, 1, 2"),
        (pd.concat([recording_frame()] * 2), "positions of request 'a' must be 0, 1, 2"),
        (broken("accepted", 1, 4), r"accepted must lie in 0\.\.3, found 0\.\.4"),
        (broken("accepted", 1, -1), r"accepted must lie in 0\.\.3, found -1\.\.3"),
        (broken("accepted", 1, 1.5), "accepted must"),
        (broken("accepted", 1, None), "accepted must"),
        (broken("confidence", 1, None), "confidence must be given for all rows or for none"),
        (broken("confidence", 1, [0.5, 0.5]), r"every confidence must be 3 numbers in 0\.\.1"),
        (broken("confidence", 1, [0.5, 0.5, 1.5]), r"every confidence must be 3 numbers in 0\.\.1"),
        (broken("confidence", 1, [0.5, 0.5, np.nan]), "every confidence must be 3 numbers"),
    ],
)
def test_a_broken_recording_is_told_in_one_sentence(frame, message):
    with pytest.raises(UserError, match=f"recording 'sample'.*{message}") as error:
        RecordedAcceptance("sample", frame, GAMMA)
    assert "\n" not in str(error.value)


def test_confidences_of_wrong_widths_are_an_error_even_if_they_are_right_on_average():
    frame = broken("confidence", 1, [0.5] * 2)
    frame.at[2, "confidence"] = [0.5] * 4
    with pytest.raises(UserError, match=r"every confidence must be 3 numbers in 0\.\.1"):
        RecordedAcceptance("sample", frame, GAMMA)


def test_a_file_that_is_no_parquet_or_is_missing_is_an_error(tmp_path):
    path = tmp_path / "sample.parquet"
    with pytest.raises(UserError, match=r"sample\.parquet.*cannot be read"):
        read_recording(path)
    path.write_text("request_id,position\n")
    with pytest.raises(UserError, match=r"sample\.parquet.*cannot be read as a Parquet recording"):
        read_recording(path)


@pytest.mark.parametrize("column", ["request_id", "position", "accepted"])
def test_a_missing_column_is_named(tmp_path, column):
    path = tmp_path / "sample.parquet"
    pq.write_table(pa.Table.from_pandas(recording_frame().drop(columns=column)), path)
    with pytest.raises(UserError, match=f"column '{column}' is missing"):
        read_recording(path)


def test_an_empty_file_is_an_error(tmp_path):
    path = tmp_path / "sample.parquet"
    write_recording(path, recording_frame()[:0])
    with pytest.raises(UserError, match="empty"):
        read_recording(path)
