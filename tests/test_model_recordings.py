import pytest

pytest.importorskip("torch", reason="the model room needs torch")

import pyarrow.parquet as pq

from dspark_sim.acceptance import read_recording
from dspark_sim.acceptance.recorded import recording_metadata
from dspark_sim.core import UserError
from dspark_sim.model import recordings
from dspark_sim.model.corpus import DOMAINS, Document
from dspark_sim.model.recordings import RecordingPlan, make_recordings

WORDS = ("How many are left?", "Add two numbers.", "What do you like?", "Sort a list.")


@pytest.fixture(autouse=True)
def few_documents(monkeypatch):
    documents = [
        Document(domain, (f"{word} {number}", "Yes."))
        for domain in DOMAINS
        for number in range(20)
        for word in WORDS
    ]
    monkeypatch.setattr(recordings, "load_documents", lambda corpora: documents)


def test_a_recording_of_the_shipped_pair_can_be_replayed(tmp_path):
    path = tmp_path / "tiny.parquet"
    plan = RecordingPlan(responses=1, positions=6, calibration=2)
    rows = make_recordings({"dspark-markov": path}, "tiny", plan)
    source = read_recording(path)
    assert rows == {"dspark-markov": 6 * len(DOMAINS)}
    assert len(source.frame) == 6 * len(DOMAINS)
    assert (source.max_draft_len, source.categories) == (7, sorted(DOMAINS))
    assert source.origin == "recorded: dspark-markov against tiny, T = 1"
    assert len(recording_metadata(pq.read_schema(path))["sts_temperatures"]) == 7


def test_drafters_recorded_together_are_recorded_as_alone_on_the_same_answers(tmp_path):
    plan = RecordingPlan(temperature=0.0, responses=1, positions=4, calibration=0)
    both = {name: tmp_path / f"{name}.parquet" for name in ("dflash", "eagle3")}
    make_recordings(both, "tiny", plan)
    make_recordings({"dflash": tmp_path / "alone.parquet"}, "tiny", plan)
    first, second = (read_recording(p).frame for p in (both["dflash"], tmp_path / "alone.parquet"))
    assert first["accepted"].tolist() == second["accepted"].tolist()
    assert first["confidence"].map(list).tolist() == second["confidence"].map(list).tolist()


def test_too_few_long_answers_are_told(tmp_path):
    plan = RecordingPlan(responses=90, positions=2)
    with pytest.raises(UserError, match="held-out answers of domain"):
        make_recordings({"dflash": tmp_path / "r"}, "tiny", plan)
    assert list(tmp_path.iterdir()) == []
