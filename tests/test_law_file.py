from dataclasses import replace

import pytest

from dspark_sim.acceptance import ParametricAcceptance, load_acceptance, read_law, write_law
from dspark_sim.core import UserError

LAW = ParametricAcceptance("m\u00fc \x7f", lengths=(1.8, 2.4, 2.8), request_sd=0.5, origin='a "b"')


@pytest.mark.parametrize("law", [LAW, replace(LAW, lengths=(), rates=(0.8, 0.7))])
def test_a_law_is_read_back_as_it_was_written(tmp_path, law):
    path = tmp_path / "law.toml"
    write_law(law, path, {"intervals": "1.7 to 1.9"})
    assert read_law(path) == law


def test_a_laws_file_is_an_acceptance_with_the_keys_of_a_shipped_law(tmp_path):
    path = tmp_path / "law.toml"
    write_law(LAW, path)
    law = load_acceptance(f"{path}:request_sd=0,scale=1.5")
    assert law == replace(LAW, name=f"{path}:request_sd=0,scale=1.5", request_sd=0.0,
                          confidence_scale=1.5)  # fmt: skip
    assert load_acceptance(str(path)).origin == 'a "b"'


MISTAKES = {
    "lengths = [1.5]": ("'name' is missing",),
    'name = "a"': ("give either rates or lengths",),
    'name = "a"\nlengths = [1.5]\nrates = [0.5]': ("give either rates or lengths",),
    'name = "a"\nlength = [1.5]': ("unknown key 'length'", "did you mean 'lengths'"),
    'name = "a"\nrates = [1.5]': ("rates must lie in 0..1",),
    'name = "a"\nrates = ["x"]': ("rates.0", "'x'"),
    'name = "a"\nrates = [nan]': ("rates.0", "finite"),
    "name = ": ("no valid TOML",),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_wrong_law_is_told_with_file_and_key(tmp_path, text):
    path = tmp_path / "law.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_law(path)
    for word in ("law.toml", *MISTAKES[text]):
        assert word in str(error.value)


def test_a_missing_law_is_named():
    with pytest.raises(UserError, match=r"absent\.toml: cannot be read"):
        load_acceptance("absent.toml")


def test_impossible_lengths_are_told(tmp_path):
    path = tmp_path / "law.toml"
    path.write_text('name = "a"\nlengths = [2.5]\n')
    with pytest.raises(UserError, match="impossible"):
        load_acceptance(str(path)).intercepts()
