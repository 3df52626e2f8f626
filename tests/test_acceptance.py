import numpy as np
import pytest
from small_recording import GAMMA, recording_frame

from dspark_sim.acceptance import (
    MixedAcceptance,
    ParametricAcceptance,
    RecordedAcceptance,
    list_acceptance,
    load_acceptance,
    write_recording,
)
from dspark_sim.acceptance.published import ORIGINS
from dspark_sim.core import UserError


@pytest.mark.parametrize("name", ORIGINS)
def test_every_shipped_law_loads_by_name(name):
    law = load_acceptance(name)
    assert (law.name, law.origin) == (name, ORIGINS[name])
    assert law.max_draft_len == (8 if name.startswith("golden") else 7)


def test_the_shipped_names_are_domain_and_drafter_and_the_golden_ones():
    laws = {f"{d}-{m}" for d in ("math", "code", "chat") for m in ("dspark", "dflash", "eagle3")}
    golden = {"golden-dsv4-pro-dspark", "golden-kimi-k3-dspark"}
    names = [row["name"] for row in list_acceptance()]
    assert laws | golden <= set(names)
    assert len(names) == len(set(names))
    assert all(row["origin"] for row in list_acceptance())


def test_a_law_takes_its_heterogeneity_and_the_quality_of_its_confidence():
    law = load_acceptance("chat-dspark:request_sd=0.5,token_sd=0,scale=1.5,bias=-0.25,noise=2")
    expected = (0.5, 0.0, 1.5, -0.25, 2.0)
    found = (law.request_sd, law.token_sd, law.confidence_scale, law.confidence_bias)
    assert (*found, law.confidence_noise) == expected
    assert law.rates == load_acceptance("chat-dspark").rates


def test_a_law_takes_an_auc():
    law = load_acceptance("chat-dspark:auc=0.75,request_sd=1.2")
    assert law.request_sd == 1.2
    assert law.prefix_auc(1) == pytest.approx(0.75, abs=1e-3)


@pytest.mark.parametrize("gamma", [4, 7])
@pytest.mark.parametrize("form", ["geometric", "minvar"])
def test_a_synthetic_law_has_its_mean_length_at_the_stated_draft_length(form, gamma):
    law = load_acceptance(f"{form}:3.5", gamma)
    assert isinstance(law, ParametricAcceptance)
    assert law.max_draft_len == gamma
    assert 1 + np.cumprod(law.rates).sum() == pytest.approx(3.5)


def test_a_recording_loads_by_path(tmp_path):
    path = tmp_path / "mine.parquet"
    write_recording(path, recording_frame(), {"num_speculative_tokens": GAMMA})
    source = load_acceptance(str(path))
    assert isinstance(source, RecordedAcceptance)
    assert (source.name, source.max_draft_len) == ("mine", GAMMA)


def test_a_mixture_loads_its_parts_by_category(tmp_path):
    path = tmp_path / "mine.parquet"
    write_recording(path, recording_frame(), {"num_speculative_tokens": GAMMA})
    spec = f"mix:math=math-dspark:noise=1,tape={path},easy=geometric:3.5,default=chat-dspark"
    mixed = load_acceptance(spec, 5)
    assert isinstance(mixed, MixedAcceptance)
    assert list(mixed.sources) == ["math", "tape", "easy"]
    assert mixed.sources["math"] == load_acceptance("math-dspark:noise=1")
    assert mixed.sources["easy"].max_draft_len == 5
    assert mixed.default == load_acceptance("chat-dspark")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("chat-dspak", "unknown acceptance 'chat-dspak': did you mean 'chat-dspark'"),
        ("chat-dspak:request_sd=0.5,noise=1", "did you mean 'chat-dspark'"),
        ("nowhere.parquet", r"'nowhere\.parquet'"),
        ("chat-dspark:3", "'3' is not of the form key=value"),
        ("chat-dspark:nois=1", "unknown key 'nois'.*did you mean 'noise'"),
        ("chat-dspark:noise=much", "noise must be a number, got 'much'"),
        ("chat-dspark:noise=inf", "noise must be finite, got 'inf'"),
        ("chat-dspark:noise=-1", "noise must be 0 or more, got -1"),
        ("chat-dspark:noise=1,noise=2", "'noise' is given twice"),
        ("chat-dspark:auc=0.99", r"an AUC of 0\.99 at position 1 is outside"),
        ("geometric", "write geometric:LENGTH"),
        ("geometric:3,4", "write geometric:LENGTH"),
        ("minvar:3,k=4", "write minvar:LENGTH"),
        ("geometric:long", "the length must be a number, got 'long'"),
        ("geometric:9", r"acceptance length 9\.0 is impossible with 7 draft tokens.* 1\.\.8"),
        ("minvar:0.5", r"acceptance length 0\.5 is impossible"),
        ("mix:", "a mixture needs at least one category=NAME"),
        ("mix:default=chat-dspark", "a mixture needs at least one category=NAME"),
        ("mix:math=math-dspak", "unknown acceptance 'math-dspak'"),
        ("mix:chat-dspark,math=math-dspark", "'chat-dspark'"),
    ],
)
def test_a_wrong_name_or_option_is_told_in_one_sentence(spec, message):
    with pytest.raises(UserError, match=message) as error:
        load_acceptance(spec)
    assert "\n" not in str(error.value)
