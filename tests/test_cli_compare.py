import pytest
from command_line import call, strict
from small_recording import GAMMA, recording_frame

from dspark_sim.acceptance import write_recording


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    about = {"num_speculative_tokens": GAMMA}
    write_recording("plain.parquet", recording_frame().assign(confidence=None), about)
    return tmp_path


def test_compare_prints_a_table_and_writes_tables_and_pictures(folder):
    code, out, err = call("acceptance", "compare", "tiny-eagle3-t1", "chat-dspark", "--out", "o")
    assert (code, err) == (0, "")
    assert out.startswith("category  recording")
    assert "acceptance_length.csv" in out
    names = ("acceptance_length", "conditional", "thresholds")
    expected = {f"{name}.{kind}" for name in names for kind in ("csv", "png", "svg")}
    assert {path.name for path in (folder / "o").iterdir()} == expected


def test_compare_prints_json_alone_and_notes_on_stderr():
    code, out, err = call("acceptance", "compare", "plain.parquet", "tiny-eagle3-t1", "--json")
    found = strict(out)
    assert code == 0
    assert list(found) == ["recordings", "acceptance_length", "conditional", "thresholds"]
    assert found["acceptance_length"][2]["rounds"] == 5
    assert found["recordings"][1]["drafter"] == "eagle3"
    assert {row["recording"] for row in found["thresholds"]} == {"tiny-eagle3-t1"}
    assert err == "recording 'plain' has no confidences, hence no threshold sweep\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "NAME"),
        (["absent.parquet"], "unknown acceptance 'absent.parquet'"),
        (["tiny-eagle-t1"], "did you mean 'tiny-eagle3-t1'"),
        (["plain.parquet"] * 2, "'plain.parquet' is named twice"),
        (["plain.parquet", "--num-speculative-tokens", "4"], "4 draft tokens are more than"),
        (["plain.parquet", "--out", "plain.parquet"], "plain.parquet"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments, sentence):
    code, out, err = call("acceptance", "compare", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) - err.count("hence no threshold sweep") == 1
