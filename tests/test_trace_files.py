"""Reading and writing traces."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_sim.core import UserError
from dspark_sim.trace import Trace, read_trace, summarize, write_trace

SHARED = Path(__file__).parents[2] / "shared" / "data" / "traces"
OK = {"timestamp": 0, "input_length": 8, "output_length": 4}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


@pytest.fixture
def file(tmp_path):
    """Write text, bytes or JSON rows to a file and return its path."""

    def write(content, name="t.txt"):
        path = tmp_path / name
        if isinstance(content, list):
            content = "\n".join(json.dumps(row) for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def fault(path):
    with pytest.raises(UserError) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@st.composite
def traces(draw):
    gaps = draw(st.lists(st.integers(0, 10**14), min_size=1, max_size=20))
    lengths = st.lists(st.integers(1, 10**6), min_size=len(gaps), max_size=len(gaps))
    names = st.lists(st.text(), min_size=len(gaps), max_size=len(gaps))
    frame = pd.DataFrame({"arrival_s": np.cumsum(gaps) / 1e9, "prompt_tokens": draw(lengths)})
    frame["output_tokens"], frame["category"] = draw(lengths), draw(names)
    if draw(st.booleans()):
        unique = st.lists(st.text(), min_size=len(gaps), max_size=len(gaps), unique=True)
        frame["request_id"] = draw(unique)
    return Trace(frame)


@settings(deadline=None)
@given(traces())
def test_what_is_written_is_read_back_exactly(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    write_trace(trace, path)
    again = read_trace(path)
    pd.testing.assert_frame_equal(again.requests, trace.requests, check_exact=True)
    write_trace(again, path.with_name("u.jsonl"))
    assert path.read_bytes() == path.with_name("u.jsonl").read_bytes()


def test_the_own_format_has_mooncakes_keys_and_no_superfluous_ones(tmp_path):
    frame = pd.DataFrame({"arrival_s": [0, 1.000000001], "prompt_tokens": 8, "output_tokens": 4})
    frame["request_id"], frame["category"] = ["0", "b"], ["", "math"]
    write_trace(Trace(frame), tmp_path / "t.jsonl")
    lines = (tmp_path / "t.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == OK
    assert lines[1] == (
        '{"timestamp": 1000.000001, "input_length": 8, "output_length": 4, '
        '"category": "math", "request_id": "b"}'
    )


@pytest.mark.parametrize(
    ("content", "layout"),
    [
        ([OK | {"hash_ids": [1, 2]}, OK | {"timestamp": 1500}], "Mooncake JSONL"),
        (
            [
                {"input_toks": 8, "output_toks": 4, "arrival_time_ns": 0},
                {"input_toks": 8, "output_toks": 4, "arrival_time_ns": 1_500_000_000},
            ],
            "LLMServingSim JSONL",
        ),
        (
            AZURE + "2023-11-16 18:15:59.5000001,8,4\r\n2023-11-16 18:16:01.0000001,8,4\r\n",
            "Azure CSV",
        ),
        (
            AZURE + "2024-05-10 00:00:00.5+00:00,8,4\r\n2024-05-10 00:00:02+00:00,8,4\r\n",
            "Azure CSV",
        ),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,8,4\n1.5,8,4\n\n", "Vidur CSV"),
        (
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,"
            "token_size\n0,2,0,0.0,1,8,4\n1,2,0,1.5,1,8,4\n",
            "Splitwise CSV",
        ),
        (b"\xef\xbb\xbftimestamp,input_length,output_length\r\n0,8,4\r\n1500,8.0,4", "Mooncake"),
        ([OK | {"timestamp": 1.7e12}, OK | {"timestamp": 1.7e12 + 1500}], "Mooncake JSONL"),
    ],
)
def test_the_format_is_recognised_by_content(file, content, layout):
    trace = read_trace(file(content, "no-suffix"))
    assert layout in trace.origin
    assert trace.requests["arrival_s"].tolist() == [0.0, 1.5]
    assert trace.requests["request_id"].tolist() == ["0", "1"]
    assert trace.requests["prompt_tokens"].tolist() == [8, 8]
    assert trace.requests["output_tokens"].tolist() == [4, 4]


def test_seven_decimals_and_unix_nanoseconds_are_kept(file):
    first = AZURE + "2023-11-16 18:15:46.6805900,1,1\n2023-11-16 18:15:50.9951697,1,1\n"
    assert read_trace(file(first)).arrival_ns.tolist() == [0, 4_314_579_700]
    rows = [
        {"input_toks": 1, "output_toks": 1, "arrival_time_ns": 1_700_000_000_000_000_000 + ns}
        for ns in (1, 8)
    ]
    assert read_trace(file(rows)).arrival_ns.tolist() == [0, 7]


def test_category_and_identifier_are_read_where_present(file):
    rows = [OK | {"category": "math", "request_id": 17}, OK | {"category": None}]
    frame = read_trace(file(rows)).requests
    assert frame["category"].tolist() == ["math", ""]
    assert frame["request_id"].tolist() == ["17", "1"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"timestamp": -5}, "timestamp must not be negative, got -5"),
        ({"timestamp": math.nan}, "timestamp must be a finite number, got nan"),
        ({"timestamp": math.inf}, "timestamp must be a finite number, got inf"),
        ({"timestamp": None}, "timestamp must be a finite number, got nothing"),
        ({"timestamp": True}, "timestamp must be a finite number, got True"),
        ({"timestamp": [1]}, "timestamp must be a finite number, got [1]"),
        ({"timestamp": 10**30}, "timestamp must lie within 90 days of the trace's zero, got 1000"),
        ({"input_length": 0}, "input_length must be at least 1, got 0"),
        ({"input_length": -3}, "input_length must be at least 1, got -3"),
        ({"output_length": 0}, "output_length must be at least 1, got 0"),
        ({"output_length": 2.5}, "output_length must be a whole number, got 2.5"),
        ({"output_length": "x"}, "output_length must be a whole number, got x"),
        ({"output_length": 10**12}, "output_length must be at most 2147483647, got 10000"),
        ({"request_id": "0"}, "request_id must be unique, got 0"),
    ],
)
def test_a_broken_json_row_names_its_line(file, row, words):
    path = file([OK, OK | row, OK])
    assert fault(path).startswith(f"{path}:2: {words}")


def test_a_missing_key_names_its_line_and_blank_lines_count(file):
    path = file("\n" + json.dumps(OK) + '\n\n{"timestamp": 0, "input_length": 8}\n')
    assert fault(path) == f"{path}:4: output_length must be a whole number, got nothing"


def test_a_falling_time_names_its_line(file):
    path = file([OK | {"timestamp": ms} for ms in (0, 5, 4)])
    words = "timestamp must not be earlier than the arrival before it, got 4"
    assert fault(path) == f"{path}:3: {words}"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("soon,8,4", "TIMESTAMP must be a finite number, got soon"),
        ("nan,8,4", "TIMESTAMP must be a finite number, got nan"),
        ("-5,8,4", "TIMESTAMP must be a finite number, got -5"),
        ("9999-01-01 00:00:00,8,4", "TIMESTAMP must be a finite number, got 9999"),
        ("2023-11-15 18:15:46,8,4", "TIMESTAMP must not be earlier than the arrival before it"),
        ("2023-11-17 18:15:46,8,0", "GeneratedTokens must be at least 1, got 0"),
        ("2023-11-17 18:15:46,,4", "ContextTokens must be a whole number, got nothing"),
        ("2023-11-17 18:15:46,8", "a row of 2 cells, the header names 3 columns"),
    ],
)
def test_a_broken_csv_row_names_its_line(file, line, words):
    path = file(AZURE + f"2023-11-16 18:15:46.6805900,374,44\r\n{line}\r\n")
    assert fault(path).startswith(f"{path}:3: {words}")


def test_a_negative_or_nan_time_in_seconds_names_its_line(file):
    header = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    for value, words in (("-0.5", "not be negative"), ("nan", "finite")):
        path = file(f"{header}0.0,1,1\n{value},1,1\n")
        assert f"{path}:3: arrived_at must" in fault(path)
        assert f"{words}" in fault(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no requests"),
        ("\n\n", "holds no requests"),
        (AZURE, "holds no requests"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "is not a text file"),
        (b"a\0b", "is not a text file"),
        ("a,b\n1,2\n", ":1: 'a, b' are the keys of no trace format"),
        ('{"a": 1}', ":1: 'a' are the keys of no trace format"),
        ("x" * 200_000, ":1: no CSV"),
    ],
)
def test_a_file_that_is_no_trace_is_told_the_recognised_formats(file, content, words):
    message = fault(file(content))
    assert words in message
    for name in ("Mooncake", "LLMServingSim", "Azure", "Vidur", "Splitwise"):
        assert name in message


def test_a_broken_line_of_json_is_named(file):
    for line in ("{oops", "[1]"):
        path = file(json.dumps(OK) + f"\n{line}\n")
        assert fault(path).startswith(f"{path}:2: '{line}' is no JSON object")


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path):
    assert "No such file" in fault(tmp_path / "absent.csv")
    assert "is a directory" in fault(tmp_path)


@pytest.mark.parametrize(
    ("name", "requests", "prompt_p50", "output_p50", "duration_s"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 1020, 129, 3501.721937),
        ("AzureLLMInferenceTrace_code.csv", 8_819, 1469, 13, 3435.948056),
        ("mooncake_conversation.jsonl", 12_031, 6909, 350, 3536.999),
        ("vidur_splitwise_code.csv", 8_819, 1469, 13, 3435.948056),
        ("llmservingsim_mixed.jsonl", 608, 2909.5, 873.5, 60.898463),
    ],
)
def test_public_traces_are_read_as_they_are(name, requests, prompt_p50, output_p50, duration_s):
    if not SHARED.is_dir():
        pytest.skip("needs the public traces in ../shared/data/traces")
    summary = summarize(read_trace(SHARED / name))
    assert summary["num_requests"] == requests
    assert summary["prompt_tokens"]["p50"] == prompt_p50
    assert summary["output_tokens"]["p50"] == output_p50
    assert summary["duration_s"] == pytest.approx(duration_s, abs=1e-6)


def test_azures_trace_and_vidurs_copy_of_it_hold_the_same_requests():
    if not SHARED.is_dir():
        pytest.skip("needs the public traces in ../shared/data/traces")
    azure = read_trace(SHARED / "AzureLLMInferenceTrace_code.csv").requests
    vidur = read_trace(SHARED / "vidur_splitwise_code.csv").requests
    pd.testing.assert_frame_equal(azure, vidur, rtol=0, atol=1e-6)
