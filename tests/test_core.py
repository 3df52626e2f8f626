"""Errors, names, numbers, ranges and whole-file writes, which every room shares."""

import itertools
import signal
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_sim.core import (
    UserError,
    expand_range,
    parse_number,
    parse_spec,
    shipped_dir,
    unknown_name,
    whole_file,
)


@contextmanager
def given_up_after(seconds):
    """Fail instead of hanging."""

    def give_up(*_):
        raise AssertionError(f"still at work after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_unknown_name_is_told_with_its_place_the_nearest_and_all_allowed():
    error = unknown_name("policy", "vlm", ["vllm", "none"], "row 3")
    assert isinstance(error, UserError)
    assert str(error) == ("unknown policy 'vlm' in row 3: did you mean 'vllm'? allowed: none, vllm")


def test_a_name_near_to_none_gets_no_suggestion():
    assert "did you mean" not in str(unknown_name("policy", "xyzzy", ["vllm", "none"]))


@pytest.mark.parametrize("text", ["", "abc", "1,5", "1 2", "0x10", "--1"])
def test_what_is_no_number_is_told(text):
    with pytest.raises(UserError, match="speed must be a number"):
        parse_number(text, "speed")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_a_number_that_is_not_finite_is_told(text):
    with pytest.raises(UserError, match="speed must be finite"):
        parse_number(text, "speed")


def test_a_spec_has_a_name_plain_arguments_and_keyed_ones():
    assert parse_spec("none") == ("none", [], {})
    assert parse_spec(" fixed : 3 , gamma = 7 ")[1:] == (["3"], {"gamma": "7"})
    assert parse_spec("synth:chat,in=5,from=a:b.csv") == (
        "synth",
        ["chat"],
        {"in": "5", "from": "a:b.csv"},
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [("fixed:gamma=7,3", "'3' must come before"), ("a:x=1,x=2", "'x' is given twice")],
)
def test_a_spec_in_disorder_is_told(text, words):
    with pytest.raises(UserError, match=words):
        parse_spec(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("7", [7]),
        ("1,2,5", [1, 2, 5]),
        ("1..256", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ("1..100", [1, 2, 4, 8, 16, 32, 64]),
        ("3..3", [3]),
        ("1..7:2", [1, 3, 5, 7]),
        ("1..1000:x10", [1, 10, 100, 1000]),
        ("0..2:1", [0, 1, 2]),
        ("0.1..0.9:0.1", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        ("1..4,6", [1, 2, 4, 6]),
    ],
)
def test_a_range_expands(text, values):
    assert expand_range(text, "load") == values


@pytest.mark.parametrize(
    "text",
    ["8..1", "0..8", "-1..8", "1...8", "1..8:0", "1..8:-1", "1..8:x1", "1..8:x0.5", "1..8:x-2"],
)
def test_a_range_that_never_ends_or_falls_is_told(text):
    with pytest.raises(UserError, match=r"load: '.*' is no rising range; allowed: low..high"):
        expand_range(text, "load")


@pytest.mark.parametrize("text", ["1..", "..8", "1..x", "1,,2", "", "1..8:y", "1..8:xx"])
def test_a_range_with_a_missing_or_wrong_number_is_told(text):
    with pytest.raises(UserError, match="load must be a number"):
        expand_range(text, "load")


@pytest.mark.parametrize("text", ["1e-13..1e-12", "1..2:1e-300", "1..2:x1.0000000000001"])
def test_a_range_whose_steps_vanish_ends_nevertheless(text):
    with given_up_after(2):
        try:
            values = expand_range(text, "load")
        except UserError:
            return
    assert len(values) < 1000
    assert values == sorted(set(values))


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9))
def test_a_stepped_range_rises_evenly_from_low_and_stays_within_high(low, span, step):
    values = expand_range(f"{low}..{low + span}:{step}", "load")
    assert values == list(range(low, low + span + 1, step))


@given(st.floats(0.01, 100), st.floats(1, 1000))
def test_a_doubling_range_doubles_from_low_and_stays_within_high(low, ratio):
    values = expand_range(f"{low!r}..{low * ratio!r}", "load")
    assert values[0] == low
    assert all(b == pytest.approx(2 * a, rel=1e-9) for a, b in itertools.pairwise(values))
    assert values[-1] <= low * ratio * (1 + 1e-9) < 2.0000001 * values[-1]


def test_shipped_folders_are_there():
    assert (shipped_dir("profiles") / "dsv4-flash-b300-tp4" / "profile.toml").is_file()
    assert (shipped_dir("traces") / "chat-1k.jsonl").is_file()


def test_a_file_appears_whole_with_its_folder_and_nothing_beside_it(tmp_path):
    path = tmp_path / "deep" / "er" / "table.csv"
    with whole_file(path) as aside:
        assert aside.suffix == ".csv"
        aside.write_text("a")
        assert not path.exists()
    assert path.read_text() == "a"
    assert [entry.name for entry in path.parent.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_failed_write_leaves_what_was_there_before(tmp_path, kind):
    path = tmp_path / "result"
    write(path, kind, "old")
    with pytest.raises(RuntimeError, match="half way"):
        write_half(path, kind)
    assert read(path, kind) == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_failed_first_write_leaves_nothing(tmp_path, kind):
    path = tmp_path / "result"
    with pytest.raises(RuntimeError, match="half way"):
        write_half(path, kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_second_write_replaces_all_of_the_first(tmp_path, kind):
    path = tmp_path / "result"
    write(path, kind, "old")
    if kind == "folder":
        (path / "stale").write_text("x")
    with whole_file(path) as aside:
        write(aside, kind, "new")
    assert read(path, kind) == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result"]
    assert kind == "file" or not (path / "stale").exists()


def test_an_old_folder_stays_when_the_new_one_cannot_take_its_place(tmp_path):
    path = tmp_path / "result"
    write(path, "folder", "old")
    with pytest.raises(OSError, match="result"), whole_file(path):
        pass  # nothing was written, so there is nothing to move into place
    assert read(path, "folder") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result"]


def test_a_folder_is_never_replaced_by_a_file(tmp_path):
    write(tmp_path / "result", "folder", "old")
    with pytest.raises((OSError, UserError)):
        write_file(tmp_path / "result")
    assert read(tmp_path / "result", "folder") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result"]


def write_file(path):
    with whole_file(path) as aside:
        aside.write_text("new")


def write_half(path, kind):
    with whole_file(path) as aside:
        write(aside, kind, "new")
        raise RuntimeError("half way")


def write(path, kind, text):
    if kind == "folder":
        path.mkdir()
        path = path / "inner"
    path.write_text(text)


def read(path, kind):
    return (path / "inner" if kind == "folder" else path).read_text()
