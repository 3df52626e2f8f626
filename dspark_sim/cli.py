"""The command line: each command is a few lines over one public function.

Results go to stdout or files, progress and notes to stderr. Heavy imports stay inside commands,
so that `--help` is quick. Exit codes: 2 for a mistake in the input, 1 for a failed run.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dspark_sim import options as opt
from dspark_sim import show
from dspark_sim.cli_belief import belief
from dspark_sim.cli_drafter import drafter_app
from dspark_sim.cli_explain import explain
from dspark_sim.cli_inputs import acceptance_app, trace_app
from dspark_sim.cli_plan import plan
from dspark_sim.cli_profile import profile_app
from dspark_sim.cli_serve import serve
from dspark_sim.cli_trial import trial
from dspark_sim.cli_tune import tune
from dspark_sim.cli_validate import validate
from dspark_sim.config import Scenario
from dspark_sim.core import OBJECTS_BEFORE_COLLECTING, RunError, UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate speculative decoding in LLM serving: which policy, at which load, what gain?",
)
app.add_typer(trace_app, name="trace")
app.add_typer(profile_app, name="profile")
app.add_typer(acceptance_app, name="acceptance")
app.add_typer(drafter_app, name="drafter")
app.command()(serve)
app.command()(explain)
app.command()(plan)
app.command()(tune)
app.command()(belief)
app.command()(trial)
app.command()(validate)

INTERRUPTED = 130
DEMO_LOADS = (1, 4, 16, 64, 256)
DEMO_RECORDING = "tiny-dspark-markov-t1"
DEMO_LAWS = "mix:math=math-dspark,code=code-dspark,chat=chat-dspark"
DEMO_RULES = ("none", "fixed:3", "fixed:7", "vllm", "oracle")
DEMO_POLICIES = (
    "none", "fixed:1", "fixed:3", "fixed:5", "fixed:7", "threshold:0.6",
    "dspark", "dspark-async", "vllm", "oracle",
)  # fmt: skip


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from dspark_sim import __version__

        print(f"dspark-sim {__version__}")
        raise typer.Exit


@app.command()
def simulate(
    trace: opt.Trace = None,
    profile: opt.Profile = None,
    acceptance: opt.Acceptance = None,
    policy: opt.Policies = None,
    concurrency: opt.Concurrency = None,
    request_rate: opt.Rate = None,
    rate_scale: opt.Scale = None,
    requests: opt.Requests = None,
    num_speculative_tokens: opt.Gamma = None,
    prefill: opt.Prefill = None,
    goodput: opt.Goodput = None,
    replicas: opt.Replicas = None,
    router: opt.Router = None,
    extend: opt.Extend = False,
    record: opt.Record = None,
    seed: opt.Seed = None,
    config: opt.Config = None,
    settings: opt.Set = None,
    out: opt.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Run one scenario and report every metric.

    dspark-sim simulate --trace synth:chat --profile dsv4-flash-b300-tp4 --policy vllm
    --concurrency 64
    """
    from dspark_sim.simulator import simulate as run
    from dspark_sim.simulator.result import check_result_folder, to_json

    chosen = opt.options(locals())
    opt.one(chosen, "policy", policy)
    if concurrency is not None:
        opt.one(chosen, "concurrency", opt.whole_numbers(concurrency, "concurrency"))
    if request_rate is not None:
        opt.one(chosen, "request_rate", opt.numbers(request_rate, "request_rate"))
    scenario = opt.scenario_from(chosen, config, settings)
    if out is not None:
        check_result_folder(out)
    show.note_compilation()
    result = run(scenario)
    if out is not None:
        result.save(out)
    identity = scenario.model_dump(
        include={"policy", "profile", "trace", "acceptance", "concurrency", "request_rate", "seed"}
    )
    if as_json:
        print(to_json({**identity, **result.summary}), end="")
    else:
        show.print_summary(identity, result.summary)


@app.command()
def sweep(
    trace: opt.Trace = None,
    profile: opt.Profile = None,
    acceptance: opt.Acceptance = None,
    policy: opt.Policies = None,
    concurrency: opt.Concurrency = None,
    request_rate: opt.Rate = None,
    rate_scale: opt.Scale = None,
    requests: opt.Requests = None,
    num_speculative_tokens: opt.Gamma = None,
    prefill: opt.Prefill = None,
    goodput: opt.Goodput = None,
    replicas: opt.Replicas = None,
    router: opt.Router = None,
    extend: opt.Extend = False,
    record: opt.Record = None,
    seed: opt.Seed = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from --seed on.", **opt.WHOLE)] = 1,
    refine: opt.Refine = 0,
    jobs: opt.Jobs = -1,
    backend: opt.Backend = "loky",
    scheduler: opt.Scheduler = None,
    config: opt.Config = None,
    settings: opt.Set = None,
    out: opt.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Run policies over loads and seeds; write sweep.csv and pictures; resume where it stopped.

    dspark-sim sweep --profile dsv4-flash-b300-tp4 --policy none --policy fixed:1..7:2
    --policy vllm --concurrency 1..256 --prefill none --out out
    """
    from dspark_sim.policies import expand_policy
    from dspark_sim.study import sweep as run

    chosen = opt.options(locals())
    scenario = opt.scenario_from(chosen, config, settings, without=("concurrency", "request_rate"))
    if seeds < 1:
        raise UserError(f"--seeds must be 1 or more, got {seeds}")
    named = [scenario.policy] if "policy" in scenario.model_fields_set else DEMO_POLICIES
    policies = policy or named
    show.note_compilation()
    table = run(
        scenario,
        [name for spec in policies for name in expand_policy(spec)],
        opt.whole_numbers(concurrency, "concurrency"),
        opt.numbers(request_rate, "request_rate"),
        range(scenario.seed, scenario.seed + seeds),
        jobs=jobs,
        backend=backend,
        scheduler=scheduler,
        refine=refine,
        out=out,
        progress=not as_json,
    )
    show.report_sweep(table, out, as_json)


@app.command()
def pareto(
    source: Annotated[Path, typer.Argument(help="Folder of a sweep, or its sweep.csv.")],
    policy: opt.Policies = None,
    baseline: Annotated[str | None, typer.Option(help="Policy to compare with.")] = None,
    at_tok_s_user: Annotated[
        str | None, typer.Option(help="Interactivities to compare at, as in 80,120.")
    ] = None,
    at_tok_s_gpu: Annotated[str | None, typer.Option(help="Throughputs to compare at.")] = None,
    out: opt.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Print the frontier of a sweep, compare two policies as the paper does, draw the picture.

    dspark-sim pareto out --policy vllm --baseline fixed:3 --at-tok-s-user 80,120
    """
    from dspark_sim.policies import expand_policy
    from dspark_sim.study import compare, frontier, read_sweep, save_pareto

    runs = read_sweep(source)
    folder = out or (source if source.is_dir() else source.parent)
    best = frontier(runs)
    columns = ["policy", "load", "tok_s_gpu", "tok_s_user", "acceptance_length", "verify_budget"]
    joint = best[best["on_frontier"]].sort_values("tok_s_user")
    if policy is None and (baseline or at_tok_s_user or at_tok_s_gpu):
        raise UserError("--baseline and --at-… compare the policies that --policy names: give it")
    tables = {"frontier": joint[[name for name in columns if name in joint]]}
    for name in [name for spec in policy or [] for name in expand_policy(spec)]:
        if baseline is None:
            raise UserError("--policy needs --baseline, the policy to compare it with")
        points = (
            opt.numbers(at_tok_s_user, "interactivity"),
            opt.numbers(at_tok_s_gpu, "throughput"),
        )
        tables[f"{name} against {baseline}"] = compare(
            runs, name, baseline, *(values or None for values in points)
        )
    save_pareto(runs, folder / "pareto.png")
    if as_json:
        print(json.dumps({name: show.records(table) for name, table in tables.items()}, indent=2))
        return
    for name, table in tables.items():
        print(f"{name}\n{show.brief(table)}\n")
    print(f"picture: {folder / 'pareto.png'}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo-out"),
    jobs: opt.Jobs = -1,
    as_json: opt.Json = False,
) -> None:
    """Run the main job on shipped data: policies × concurrency, a table and a Pareto picture."""
    from dspark_sim.study import compare_drafters
    from dspark_sim.study import sweep as run

    scenario = Scenario.check(
        {"trace": "chat-1k", "profile": "dsv4-flash-b300-tp4", "prefill": {"mode": "none"}}
    )
    show.note(
        "chat requests on DeepSeek-V4-Flash, 4 x B300 (vLLM's published cost table), "
        "drafter and confidences as in arXiv 2607.05147; decoding only (--prefill none)."
    )
    show.note_compilation()
    table = run(scenario, DEMO_POLICIES, DEMO_LOADS, jobs=jobs, out=out, progress=True)
    show.report_sweep(table, out, as_json)
    if not as_json:
        show.note(f"\nThe same with a recording of a real, much smaller pair: {DEMO_RECORDING}.")
        recorded = scenario.model_copy(update={"acceptance": DEMO_RECORDING})
        folder = out / "recorded"
        table = run(recorded, DEMO_RULES, DEMO_LOADS, jobs=jobs, out=folder, progress=True)
        show.report_sweep(table, folder, as_json)
        show.report_drafters(compare_drafters([DEMO_LAWS, DEMO_RECORDING]), folder, as_json)


@app.command("ls")
def list_names(as_json: opt.Json = False) -> None:
    """List shipped profiles, acceptance laws, traces and policies, with their origin."""
    from dspark_sim.acceptance import list_acceptance
    from dspark_sim.policies import list_policies
    from dspark_sim.throughput import list_profiles
    from dspark_sim.trace import list_traces

    names = {
        "profiles": list_profiles(),
        "acceptance": list_acceptance(),
        "traces": list_traces(),
        "policies": list_policies(),
    }
    if as_json:
        print(json.dumps(names, indent=2))
        return
    for kind, rows in names.items():
        print(kind)
        width = max(len(row["name"]) for row in rows)
        for row in rows:
            print(f"  {row['name']:<{width}}  {row['origin']}")


@app.command()
def lossless(
    policy: opt.Policies = None,
    setting: Annotated[
        str, typer.Option("--setting", help="sampled, greedy or token-confidence.")
    ] = "sampled",
    seed: Annotated[int, typer.Option("--seed", help="Of the worlds.", **opt.WHOLE)] = 0,
    as_json: opt.Json = False,
) -> None:
    """Enumerate which policies keep the target's distribution, and how biased the others are."""
    from dspark_sim.policies import expand_policy
    from dspark_sim.study import check_lossless, format_lossless

    specs = [name for spec in policy or [] for name in expand_policy(spec)]
    rows = check_lossless(specs or None, seed=seed, setting=setting)
    print(json.dumps(show.records(rows), indent=2) if as_json else format_lossless(rows))


def main() -> None:
    """Run the command line; a user's mistake is one sentence on stderr and exit code 2."""
    gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
    atexit.register(gc.freeze)  # nor is there any use in looking at the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = app(standalone_mode=False) or 0
    except UserError as error:
        _fail(str(error), 2)
    except RunError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:
        _fail(str(error), 1)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            sys.exit(2)
        _fail(error.format_message(), error.exit_code)  # type: ignore[attr-defined]
    if code == INTERRUPTED:
        _fail("interrupted; what was finished is kept", code)
    sys.exit(code)


def _fail(message: str, code: int) -> NoReturn:
    print(f"dspark-sim: {message}", file=sys.stderr)
    sys.exit(code)
