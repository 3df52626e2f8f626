import ast
import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import dspark_sim

PACKAGE = Path(dspark_sim.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
STUBS = sorted(PACKAGE.rglob("__init__.pyi"))
HEAVY = {
    "torch",
    "matplotlib",
    "plotly",
    "dask",
    "distributed",
    "safetensors",
    "tokenizers",
    "gguf",
}
LEARNING = {"torch", "safetensors", "tokenizers", "gguf"}

# What each room, or module at the top, may import from. Data flows one way: trace → simulator ←
# throughput, acceptance, policies; simulator → study → cli; model makes profiles and recordings.
SOURCES = {"trace", "throughput", "acceptance", "policies"}
BASE = {"core", "jit", "version"}
ALLOWED = {
    "core": set(),
    "jit": {"core"},
    "config": {"core"},
    "trace": BASE,
    "throughput": BASE,
    "acceptance": BASE,
    "policies": BASE,
    "simulator": BASE | SOURCES | {"config"},
    "study": BASE | SOURCES | {"config", "simulator"},
    "model": BASE | SOURCES | {"config"},
}


def name_of(path):
    return ".".join(("dspark_sim", *path.relative_to(PACKAGE).with_suffix("").parts))


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree):
    """Yield every module that a syntax tree imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_on_loading(tree):
    """Yield the modules that are imported as soon as the file is."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def modules_after(statement):
    """Return the modules that a fresh interpreter holds after a statement."""
    code = f"{statement}; import sys, json; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(answer.stdout))


def loaded_by(statement):
    """Return which heavy packages a fresh interpreter holds after a statement."""
    return {name.partition(".")[0] for name in modules_after(statement)} & HEAVY


@pytest.mark.parametrize(
    "module",
    [
        "dspark_sim",
        "dspark_sim.trace",
        "dspark_sim.throughput",
        "dspark_sim.simulator",
        "dspark_sim.study",
        "dspark_sim.cli",
    ],
)
def test_importing_loads_nothing_heavy(module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not there yet")
    assert loaded_by(f"from {module} import *") == set()


@pytest.mark.parametrize("stub", STUBS, ids=name_of)
def test_a_room_gives_every_name_that_its_stub_lists(stub):
    names = next(n.value for n in parsed(stub).body if isinstance(n, ast.Assign))
    room = importlib.import_module(name_of(stub).removesuffix(".__init__"))
    assert list(room.__all__) == ast.literal_eval(names) == sorted(ast.literal_eval(names))
    for name in room.__all__:
        assert not inspect.ismodule(getattr(room, name))


def test_a_worker_loads_only_what_a_run_needs():
    loaded = modules_after("import dspark_sim.study.workers")
    for module in ("study.sweep", "study.plot", "throughput.probe", "throughput.formats"):
        assert f"dspark_sim.{module}" not in loaded


SIMULATING = (
    "from dspark_sim.config import Scenario; from dspark_sim.simulator import simulate; "
    "simulate(Scenario(profile='dsv4-flash-b300-tp4', trace='synth:code', requests=3))"
)


def test_simulating_loads_nothing_heavy():
    assert loaded_by(SIMULATING) == set()


def test_simulating_under_a_shipped_law_loads_no_solver():
    assert modules_after(SIMULATING).isdisjoint({"scipy.optimize", "scipy.special", "joblib"})


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_rooms_import_in_one_direction(path):
    room = room_of(path)
    for module in imports(parsed(path)):
        package, _, rest = module.partition(".")
        if package != "dspark_sim" or not rest:
            continue
        source = rest.partition(".")[0]
        allowed = ALLOWED.get(room)
        if allowed is not None and source not in {room, "__version__"}:
            assert source in allowed, f"{room} imports {source}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_model_room_imports_torch(path):
    if room_of(path) != "model":
        assert LEARNING.isdisjoint(name.partition(".")[0] for name in imports(parsed(path)))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_heavy_packages_are_imported_where_they_are_used(path):
    heavy = HEAVY - LEARNING if room_of(path) == "model" else HEAVY
    assert heavy.isdisjoint(n.partition(".")[0] for n in imports_on_loading(parsed(path)))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is_and_keeps_to_one_noun(path):
    source = path.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", "?"))
    assert len(source.splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_command_line_prints(path):
    calls = [n.func for n in ast.walk(parsed(path)) if isinstance(n, ast.Call)]
    prints = any(isinstance(f, ast.Name) and f.id == "print" for f in calls)
    assert not prints or room_of(path).startswith(("cli", "show", "__main__"))
