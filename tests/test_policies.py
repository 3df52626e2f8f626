import re
import sys

import numpy as np
import pytest
from policy_steps import step_view

from dspark_sim.core import UserError
from dspark_sim.policies import (
    POLICIES,
    KernelPolicy,
    expand_policy,
    list_policies,
    load_policy,
    policy_draft_len,
)

VIEW = step_view([[0.9, 0.8], [0.7, 0.6]], [0, 10, 10, 11, 12, 13, 14])
USER_MODULE = """
class Longest:
    '''Takes γ.'''
    def __init__(self, num_speculative_tokens):
        self.max_draft_len = num_speculative_tokens
    def verify_lengths(self, view):
        return view.draft_len

class Plain:
    '''Takes nothing.'''
    def verify_lengths(self, view):
        return view.draft_len - 1

ready = Plain()

def half(view):
    return view.draft_len // 2

class NoRule:
    pass

number = 3
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch, request):
    """A module of the user's own, importable by a dotted name of its own."""
    package = "own_" + re.sub(r"\W", "_", request.node.name)
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "rules.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield f"{package}.rules"
    for name in (package, f"{package}.rules"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("spec", "gamma", "lag", "confidence"),
    [
        ("none", 0, 0, False),
        ("fixed:3", 3, 0, False),
        ("fixed:9", 9, 0, False),
        ("fixed:3,gamma=7", 7, 0, False),
        ("threshold:0.6", 5, 0, True),
        ("threshold:0.6,on=survival", 5, 0, True),
        ("dspark", 5, 0, True),
        ("dspark-async", 5, 2, True),
        ("dspark-async:lag=3", 5, 3, True),
        ("vllm", 5, 1, True),
        ("vllm:lag=0", 5, 0, True),
        ("oracle", 5, 0, False),
        ("sglang", 5, 2, True),
        ("trt", 5, 0, True),
        ("atom", 5, 2, True),
        ("k-table:1-4:3,5-9:0", 5, 0, False),
        ("k-table:1-4:3,5-9:0,adaptive=yes", 5, 0, True),
        ("dcut:lag=1", 5, 1, True),
        ("ratio:0.5", 5, 0, True),
        ("tetris:3", 5, 0, True),
        ("tetris:3,extra=1", 4, 0, True),
        ("knee", 5, 0, True),
        ("fixed:2,gamma=4,fill=tier", 4, 0, True),
    ],
)
def test_a_policy_knows_its_draft_length_its_lag_and_whether_it_reads_confidence(
    spec, gamma, lag, confidence
):
    policy = load_policy(f" {spec} ", num_speculative_tokens=5)
    assert isinstance(policy, KernelPolicy)
    assert (policy.name, policy_draft_len(policy, 5)) == (spec, gamma)
    assert (policy.lag, policy.needs_confidence) == (lag, confidence)


ARGUMENTS = {
    "fixed": "1", "threshold": "0.5", "k-table": "1-9:3", "ratio": "0.5", "tetris": "2",
    "gate-off": "1",
}  # fmt: skip
SPECS = [f"{name}:{ARGUMENTS.get(name, '')}".removesuffix(":") for name in POLICIES]


def test_only_the_oracle_knows_outcomes():
    policies = {spec: load_policy(spec) for spec in SPECS}
    knowing = [s for s, policy in policies.items() if getattr(policy, "knows_outcomes", False)]
    assert knowing == ["oracle"]


def test_only_vllm_reads_a_monotone_cost_table_by_itself():
    believes = {spec: getattr(load_policy(spec), "believes", "truth") for spec in SPECS}
    assert [spec for spec, how in believes.items() if how != "truth"] == ["vllm"]


def test_every_policy_is_listed_with_its_origin():
    rows = list_policies()
    assert [row["name"] for row in rows] == list(POLICIES)
    assert all(row["origin"] for row in rows)
    assert "not lossless" in rows[-1]["origin"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dspak", "unknown policy 'dspak': did you mean 'dspark'"),
        ("vlm:lag=1", "unknown policy 'vlm': did you mean 'vllm'"),
        ("", "unknown policy ''.*allowed: atom, dcut, dsd-online, dspark"),
        (":half", "unknown policy ''"),
        (".rules:half", "unknown policy '.rules'"),
        ("treshold:half", "unknown policy 'treshold': did you mean 'threshold'"),
        ("__main__:half", "'__main__"),
        ("none:3", "policy 'none:3' takes 0 plain argument"),
        ("fixed", r"policy 'fixed' takes 1 plain argument\(s\), got 0"),
        ("fixed:", r"takes 1 plain argument\(s\), got 0"),
        ("fixed:1,2", r"takes 1 plain argument\(s\), got 2"),
        ("fixed:three", "'fixed:three': K must be a number, got 'three'"),
        ("fixed:2.5", "K must be a whole number of 0 or more, got 2.5"),
        ("fixed:-1", "K must be a whole number of 0 or more, got -1"),
        ("fixed:nan", "K must be finite, got 'nan'"),
        ("fixed:3,gama=7", "unknown key 'gama'.*did you mean 'gamma'"),
        ("fixed:3,gamma=2", "gamma must be at least K = 3, got 2"),
        ("fixed:3,gamma=x", "gamma must be a number, got 'x'"),
        ("threshold", "takes 1 plain argument"),
        ("threshold:high", "TAU must be a number, got 'high'"),
        ("threshold:1.5", r"TAU must lie in 0\.\.1, got 1\.5"),
        ("threshold:-0.1", r"TAU must lie in 0\.\.1, got -0\.1"),
        ("threshold:inf", "TAU must be finite"),
        ("threshold:0.5,on=survivl", "unknown value of on 'survivl'.*'survival'"),
        ("dspark:leg=1", "unknown key 'leg' in policy 'dspark:leg=1'"),
        ("dspark:lag=1", "lag is the age of the survivals behind a budget, and dspark has none"),
        ("threshold:0.5,guard=0.1", "guard weighs a budget .*, and threshold has none"),
        ("fixed:3,tie=most", "tie chooses between equally good budgets, and fixed has none"),
        ("fixed:3,min=1", "min is the least that trimming leaves of a draft, and fixed has none"),
        ("none:fill=tier", "fill spends a captured size's padding .*, and none has none"),
        ("tetris:2,every=4", "every keeps a budget for some steps, and tetris has none"),
        ("vllm:every=0", "every must be a whole number of 1 or more, got 0"),
        ("vllm:guard=-1", "guard must be 0 or more, got -1"),
        ("vllm:fill=edge", "unknown value of fill 'edge'.*allowed: none, tier"),
        ("vllm:tie=longest", "unknown value of tie 'longest'"),
        ("threshold:0.5,on=confidence,low=0.1", "unknown key 'low'"),
        ("threshold:auto,low=0.9", r"high must lie in 0\.9\.\.1, got 0\.8"),
        ("k-table", "takes 1 to 999 plain argument"),
        ("k-table:2-4:3", r"range 2-4 must begin at 1 and not end before, got '2-4:3'"),
        ("k-table:1-4:3,4-9:1", "range 4-9 must begin at 5 or later"),
        ("k-table:1-4=3", r"unknown key '1-4'|takes 1 to 999 plain"),
        ("k-table:1-4", "a range must be of the form LO-HI:K, as in 1-64:7, got '1-4'"),
        ("k-table:1-4:3,min=1", "min and fill change what is trimmed, and without adaptive=yes"),
        ("trt:tail=4", "tail must come with drain"),
        ("trt:budgets=tier", "unknown value of budgets 'tier'.*did you mean 'tiers'"),
        ("atom:buckets=1+x", "a bucket must be a number, got 'x'"),
        ("ratio:1.5", r"RHO must lie in 0\.\.1"),
        ("ratio:0.5,width=0", "width must be 1 or more, got 0"),
        ("tetris:0", "K must be a whole number of 1 or more, got 0"),
        ("knee:1,2", r"takes 0 to 1 plain argument\(s\), got 2"),
        ("dspark-async:2", "takes 0 plain argument"),
        ("dspark-async:lag=4", r"lag must lie in 0\.\.3, got 4"),
        ("dspark-async:lag=-1", "lag must be a whole number of 0 or more, got -1"),
        ("vllm:lag=1.5", "lag must be a whole number of 0 or more, got 1.5"),
        ("vllm:lag=1,lag=2", "'lag' is given twice"),
        ("oracle:1", "takes 0 plain argument"),
    ],
)
def test_a_wrong_policy_is_told_in_one_sentence(spec, message):
    with pytest.raises(UserError, match=message) as error:
        load_policy(spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "expanded"),
    [
        ("threshold:0.1..0.3:0.1", ["threshold:0.1", "threshold:0.2", "threshold:0.3"]),
        ("threshold:0.5..0.9:0.4,on=survival",
         ["threshold:0.5,on=survival", "threshold:0.9,on=survival"]),
        ("fixed:1..8", ["fixed:1", "fixed:2", "fixed:4", "fixed:8"]),
        ("fixed:0..3:1,gamma=7", [f"fixed:{k},gamma=7" for k in range(4)]),
        (" dspark ", ["dspark"]),
        ("vllm:lag=2", ["vllm:lag=2"]),
        ("mine.rules:Longest", ["mine.rules:Longest"]),
        ("no-such..policy:1..3", ["no-such..policy:1..3"]),
    ],
)  # fmt: skip
def test_a_range_becomes_one_policy_per_value(spec, expanded):
    assert expand_policy(spec) == expanded


def test_the_range_of_the_how_to_gives_nine_thresholds_that_load():
    specs = expand_policy("threshold:0.1..0.9:0.1")
    assert [load_policy(spec).params[0] for spec in specs] == pytest.approx(np.arange(1, 10) / 10)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("threshold:0.9..0.1:0.1", r"policy 'threshold:0\.9\.\.0\.1:0\.1': .*is no rising range"),
        ("threshold:0.1..0.9:0", "is no rising range"),
        ("threshold:0..0.9", "is no rising range"),
        ("threshold:a..0.9:0.1", "must be a number, got 'a'"),
    ],
)
def test_a_range_that_does_not_rise_is_an_error(spec, message):
    with pytest.raises(UserError, match=message):
        expand_policy(spec)


@pytest.mark.parametrize(
    ("name", "lengths", "gamma"),
    [("Longest", [2, 2], 5), ("Plain", [1, 1], 5), ("ready", [1, 1], 5), ("half", [1, 1], 5)],
)
def test_a_class_an_instance_or_a_function_of_the_users_own_is_a_policy(
    user_module, name, lengths, gamma
):
    policy = load_policy(f"{user_module}:{name}", num_speculative_tokens=5)
    assert policy.verify_lengths(VIEW).tolist() == lengths
    assert policy_draft_len(policy, 5) == gamma


def test_a_users_class_gives_a_fresh_policy_each_time(user_module):
    policies = [load_policy(f"{user_module}:Plain") for _ in range(2)]
    assert policies[0] is not policies[1]


@pytest.mark.parametrize("module", ["own_local.rules", "own_lone_module"])
def test_a_module_in_the_working_directory_is_found(tmp_path, monkeypatch, module):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    path = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(USER_MODULE)
    assert load_policy(f"{module}:half").verify_lengths(VIEW).tolist() == [1, 1]


def test_a_mistake_inside_a_users_class_is_not_hidden(user_module):
    module = __import__(user_module, fromlist=["Plain"])

    class Broken:
        def __init__(self, num_speculative_tokens):
            self.table = len(num_speculative_tokens)

    module.Broken = Broken
    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)"):
        load_policy(f"{user_module}:Broken")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Longst", r"rules:Longst' cannot be imported: .*no attribute 'Longst'"),
        ("number", "is neither callable nor has it verify_lengths"),
        ("NoRule", "is neither callable nor has it verify_lengths"),
    ],
)
def test_a_wrong_attribute_of_a_users_module_is_an_error(user_module, name, message):
    with pytest.raises(UserError, match=message):
        load_policy(f"{user_module}:{name}")


def test_a_users_module_that_does_not_exist_is_an_error():
    with pytest.raises(UserError, match=r"policy 'no_such\.module:Rule' cannot be imported"):
        load_policy("no_such.module:Rule")
