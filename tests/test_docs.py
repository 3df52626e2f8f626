"""The documentation against the program: commands and outputs, keys, names, links.

A page's fenced blocks are run in order, in an empty folder. A block with a file name after its
language (```` ```toml study.toml ````) writes that file; a `console` block runs its `$` lines and
compares what they print (`...` stands for anything left out); `console slow` does so under
`-m slow` only. Other blocks are read, not run.
"""

import ast
import doctest
import json
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main

from dspark_sim import Scenario, simulate
from dspark_sim.acceptance import recorded
from dspark_sim.cli import app, main
from dspark_sim.config import Belief, Prefill
from dspark_sim.policies import POLICIES, DraftView, SchedulerView, list_policies
from dspark_sim.simulator.state import STEP_COLUMNS
from dspark_sim.study import sweep
from dspark_sim.throughput.schema import TABLES, ProfileHeader
from dspark_sim.trace.formats import LAYOUTS
from dspark_sim.trace.load import LENGTH_KEYS, OTHER_KEYS

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
FENCE = re.compile(r"^```(\w*) *(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = {
    "trace": "synth:fixed,in=100,out=20",
    "profile": "dsv4-flash-b300-tp4",
    "prefill": {"mode": "none"},
    "concurrency": 4,
    "requests": 40,
}


class Block(NamedTuple):
    language: str
    label: str
    text: str


class Command(NamedTuple):
    argv: list[str]
    shown: str


def blocks(page):
    return [Block(*found.groups()) for found in FENCE.finditer(page.read_text(encoding="utf-8"))]


def commands(text):
    """Split a console block into its `$` lines, joined where they end in a backslash."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    for part in parts:
        line, _, shown = re.sub(r"\\\n", " ", part).partition("\n")
        yield Command(shlex.split(line), shown)


def run(argv, monkeypatch, capsys):
    """Run one command in this process; return its exit code and what it prints."""
    several = {"sweep", "demo", "plan", "tune", "belief"} & set(argv) and "--jobs" not in argv
    monkeypatch.setattr(sys, "argv", [*argv, "--jobs", "1"] if several else argv)
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, err if code else out


def forget_modules_of(folder):
    for name, module in list(sys.modules.items()):
        path = vars(module).get("__path__", ())
        places = [vars(module).get("__file__"), *path]
        if any(str(place).startswith(str(folder)) for place in places):
            del sys.modules[name]


def run_page(page, folder, monkeypatch, capsys, slow):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for block in blocks(page):
        if block.language == "console" and (slow or block.label != "slow"):
            for command in commands(block.text):
                yield command, run(command.argv, monkeypatch, capsys)
        elif block.language != "console" and block.label:
            file = folder / block.label
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
    forget_modules_of(folder)


def assert_as_shown(command, code, printed):
    line = shlex.join(command.argv)
    assert code == (2 if command.shown.startswith("dspark-sim: ") else 0), f"{line}\n{printed}"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    alike = doctest.OutputChecker().check_output(command.shown, printed, flags)
    assert not command.shown.strip() or alike, f"{line}\nprints\n{printed}"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_the_commands_of_a_page_print_what_it_shows(page, tmp_path, monkeypatch, capsys):
    for command, (code, printed) in run_page(page, tmp_path, monkeypatch, capsys, slow=False):
        assert_as_shown(command, code, printed)


@pytest.mark.slow
@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_the_slow_commands_of_a_page_print_what_it_shows(page, tmp_path, monkeypatch, capsys):
    for command, (code, printed) in run_page(page, tmp_path, monkeypatch, capsys, slow=True):
        assert_as_shown(command, code, printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_have_the_options_it_gives_them(page):
    for block in blocks(page):
        if block.language not in ("sh", "console"):
            continue
        text = block.text.replace("$ ", "").replace("\\\n", " ")
        for line in text.splitlines():
            if line.startswith("dspark-sim "):
                command, args = typer.main.get_command(app), shlex.split(line, comments=True)[1:]
                while hasattr(command, "commands"):
                    command, args = command.commands[args[0]], args[1:]
                if "--help" not in args:
                    command.make_context(command.name, args)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def unmentioned(names, page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [name for name in names if f"`{name}`" not in text]


def test_every_key_of_a_summary_is_defined_in_metrics():
    result = simulate(Scenario.check({**SMALL, "goodput": {"ttft": 500}}))
    assert unmentioned(result.summary, "metrics.md") == []


def test_every_column_of_a_sweep_is_defined_in_metrics():
    assert unmentioned(sweep(Scenario.check(SMALL), ["none"]).columns, "metrics.md") == []


def test_every_policy_has_a_section_that_names_its_form():
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    assert [name for name in POLICIES if f"\n## `{name}`\n" not in text] == []
    assert unmentioned((row["name"] for row in list_policies()), "policies.md") == []


def test_all_that_a_policy_may_see_is_told_in_policies():
    seen = [*DraftView.__dataclass_fields__, *SchedulerView.__dataclass_fields__, "survival"]
    assert unmentioned(seen, "policies.md") == []


@pytest.mark.parametrize("model", [Scenario, Belief, Prefill], ids=lambda model: model.__name__)
def test_every_key_of_a_scenario_is_told_in_formats(model):
    table = {Scenario: "", Belief: "belief.", Prefill: "prefill."}[model]
    assert unmentioned((table + key for key in model.model_fields), "formats.md") == []


def test_every_key_and_column_of_a_profile_is_told_in_formats():
    columns = [column for spec in TABLES for column in spec.columns]
    assert unmentioned([*ProfileHeader.model_fields, *columns], "formats.md") == []


def test_every_trace_format_and_generator_key_is_told_in_formats():
    keys = [key for one in LAYOUTS for key in (one.time_key, one.prompt_key, one.output_key)]
    assert unmentioned([*keys, *LENGTH_KEYS, *OTHER_KEYS], "formats.md") == []


def test_every_column_of_a_recording_is_told_in_formats():
    assert unmentioned(recorded._COLUMNS, "formats.md") == []


def test_every_part_of_a_result_is_told_in_formats(tmp_path):
    result = simulate(Scenario.check(SMALL))
    result.save(tmp_path / "run")
    files = [path.name for path in (tmp_path / "run").iterdir()]
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert unmentioned([*files, *config], "formats.md") == []
    assert unmentioned([*result.requests.columns, *STEP_COLUMNS], "formats.md") == []


def test_every_invariant_names_a_test_that_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/test_\w+\.py)::(test_\w+)`", text)
    assert named
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
