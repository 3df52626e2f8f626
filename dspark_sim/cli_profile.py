"""Commands about what a step costs: engine throughput profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dspark_sim import options as opt
from dspark_sim import show
from dspark_sim.config import with_settings
from dspark_sim.core import UserError

profile_app = typer.Typer(no_args_is_help=True, help="Engine throughput profiles.")

Name = Annotated[
    str | None, typer.Option("--name", help="Name of the profile; default: the folder's.")
]
Additive = Annotated[
    bool, typer.Option("--additive", help="Also: where bias + α(R) + θ(M) + κ·KV is wrong.")
]


@profile_app.command("show")
def profile_show(
    name: Annotated[str, typer.Argument(help="Shipped name or folder.")],
    requests: Annotated[
        int | None,
        typer.Option("--requests", help="Add the terms of this many requests.", **opt.WHOLE),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Picture to draw (PNG, SVG).")] = None,
    additive: Additive = False,
    as_json: opt.Json = False,
) -> None:
    """Print a profile's step times and SPS(B): staircase, measured points and cliff."""
    from dspark_sim.throughput import (
        additive_form,
        load_profile,
        plot_profile,
        summarize_profile,
    )

    profile = load_profile(name)
    table = summarize_profile(profile, requests)
    if out is not None:
        plot_profile(profile, out, requests)
    if as_json:
        header = {key: value for key, value in profile.header().items() if key != "provenance"}
        about = {**header, "provenance": profile.provenance, "steps": show.records(table)}
        if additive:
            about["additive"] = additive_form(profile).summary()
        print(json.dumps(about, indent=2))
        return
    print(
        f"{profile.name}: {profile.model} on {profile.num_gpus} x {profile.gpu}, {profile.engine}; "
        f"up to {profile.max_num_seqs} requests and {profile.max_num_batched_tokens} tokens a step"
    )
    print(show.brief(table))
    if additive:
        print(additive_form(profile).report())
    for key, value in profile.provenance.items():
        print(f"{key}: {value}")


@profile_app.command("compare")
def profile_compare(
    names: Annotated[list[str], typer.Argument(help="Shipped names or folders.")],
    out: Annotated[Path, typer.Option("--out", help="Picture to draw (PNG, SVG).")],
    requests: Annotated[
        int | None,
        typer.Option("--requests", help="Add the terms of this many requests.", **opt.WHOLE),
    ] = None,
    additive: Additive = False,
    as_json: opt.Json = False,
) -> None:
    """Draw several profiles over each other and print their step times in ms.

    dspark-sim profile compare dsv4-flash-b300-tp4 llama3.1-8b-h100 --out both.png
    """
    from dspark_sim.throughput import (
        additive_form,
        compare_profiles,
        load_profile,
        plot_profiles,
    )

    profiles = [load_profile(name) for name in names]
    written = plot_profiles(profiles, out, requests, additive)
    table = compare_profiles(profiles, requests)
    if as_json:
        print(json.dumps(show.records(table), indent=2))
        return
    print(show.brief(table))
    for profile in profiles if additive else []:
        print(f"{profile.name}: {additive_form(profile).report()}")
    print(f"picture: {written[0]}")


@profile_app.command("measure")
def profile_measure(
    out: Annotated[Path, typer.Option("--out", help="Profile folder to write.")],
    model: Annotated[
        str | None,
        typer.Option("--model", help="smollm2-135m, qwen3-8b, llama3.1-8b, small-moe, …"),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Few points: under a minute.")] = False,
    max_seconds: Annotated[
        float, typer.Option("--max-seconds", help="Of the run; what does not fit is left out.")
    ] = 0.0,
    dtype: Annotated[
        str, typer.Option("--dtype", help="float32, bfloat16, float16; default: the device's.")
    ] = "",
    contexts: Annotated[
        str | None, typer.Option("--contexts", help="KV tokens of a request; the main one first.")
    ] = None,
    max_requests: Annotated[
        int, typer.Option("--max-requests", help="Most requests at once.", **opt.WHOLE)
    ] = 0,
    num_speculative_tokens: opt.Gamma = None,
    capture_limit: Annotated[
        int, typer.Option("--capture-limit", help="Largest CUDA graph, in tokens.", **opt.WHOLE)
    ] = 1024,
    layers: Annotated[
        int, typer.Option("--layers", help="Run so many and scale up.", **opt.WHOLE)
    ] = 0,
    drafter: Annotated[
        str, typer.Option("--drafter", help="Whose cost draft.csv holds: block, autoregressive.")
    ] = "block",
    timings: Annotated[
        Path | None,
        typer.Option("--timings", help="Take these timings instead of measuring (timings.json)."),
    ] = None,
    name: Name = None,
    seed: opt.Seed = None,
    as_json: opt.Json = False,
) -> None:
    """Time a real model's forward on this machine and write it as a profile.

    dspark-sim profile measure --model smollm2-135m --quick --out mine
    """
    from dspark_sim.model.measure import measure_profile, read_timings, write_measured

    if (model is None) == (timings is None):
        raise UserError("give --model NAME to measure, or --timings FILE to convert; one of them")
    if timings is not None:
        measured = write_measured(read_timings(timings), out, name, drafter)
    else:
        from dspark_sim.study import stage_bar

        settings = _timing_settings(
            model=model, device=device, dtype=dtype, quick=quick, max_seconds=max_seconds,
            contexts=tuple(opt.whole_numbers(contexts, "--contexts")), layers=layers,
            max_requests=max_requests, draft_len=num_speculative_tokens or 7,
            capture_limit=capture_limit, seed=seed or 0,
        )  # fmt: skip
        with stage_bar() as progress:
            measured = measure_profile(settings, out, name, drafter, progress)
    show.report_measured(measured, out, as_json)


def _timing_settings(**given: Any) -> Any:
    try:
        from dspark_sim.model.timing import Settings
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{error.name}' is missing: measuring needs pip install 'dspark-sim[model]'"
        ) from None
    return Settings(**given)


@profile_app.command("probe")
def profile_probe(
    base_url: Annotated[
        str, typer.Option("--base-url", help="OpenAI-compatible server, as http://127.0.0.1:8000.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Profile folder to write.")],
    model: Annotated[
        str | None, typer.Option("--model", help="Its name there; default: the server's first.")
    ] = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", help="Streams at once, one closed loop each.")
    ] = "1..16",
    output_tokens: Annotated[
        int, typer.Option("--output-tokens", help="Of every answer.", **opt.WHOLE)
    ] = 64,
    steps: Annotated[
        int, typer.Option("--steps", help="So many are enough for one load.", **opt.WHOLE)
    ] = 200,
    max_seconds: Annotated[
        float, typer.Option("--max-seconds", help="Of the run; what does not fit is left out.")
    ] = 120.0,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the requests.")] = 0.0,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "--num-speculative-tokens",
            help="k, of a server that speculates but does not report it.",
            **opt.WHOLE,
        ),
    ] = None,
    name: Name = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Key of profile.toml that a probe lacks, as in gpu=H100."),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Time the steps of a running server from outside and write them as a profile.

    dspark-sim profile probe --base-url http://127.0.0.1:8000 --out mine --set gpu=H100
    """
    from dspark_sim.throughput import (
        ImportOptions,
        ProbeSettings,
        check_probe_output,
        probe_server,
        write_probe,
    )

    asked = ProbeSettings(
        base_url, model, tuple(opt.whole_numbers(concurrency, "--concurrency")), output_tokens,
        max_seconds, temperature, num_speculative_tokens, steps,
    )  # fmt: skip
    options = ImportOptions(name or out.name, with_settings({}, settings or []))
    check_probe_output(out, options)
    probed = probe_server(asked, show.note)
    profile = write_probe(probed, out, options)
    _report_probe(probed, profile, as_json)
    show.note(f"wrote profile '{profile.name}' to {out}")
    if probed.failure is not None:
        measured = ", ".join(str(requests) for requests in probed.levels["num_requests"])
        raise UserError(f"{probed.failure}; {out} keeps R = {measured}")


def _report_probe(probed: Any, profile: Any, as_json: bool) -> None:
    """Print the steps by load, and what stands beside them in the provenance."""
    if as_json:
        header = {key: value for key, value in profile.header().items() if key != "provenance"}
        about = {**header, "provenance": profile.provenance}
        about |= {"left_out": probed.left_out, "failure": probed.failure}
        print(json.dumps({**about, "levels": show.records(probed.levels)}, indent=2))
        return
    print(show.brief(probed.levels))
    for key in ("overhead", "speculation", "bundled"):
        if key in profile.provenance:
            print(f"{key}: {profile.provenance[key]}")
    for reason in probed.left_out:
        show.note(f"left out: {reason}")


@profile_app.command("import")
def profile_import(
    source: Annotated[Path, typer.Argument(help="SGLang, TensorRT-LLM, vLLM, …, by content.")],
    out: Annotated[Path, typer.Option("--out", help="Profile folder to write.")],
    format: Annotated[
        str | None, typer.Option("--format", help="Name of the format, if its content misleads.")
    ] = None,
    name: Name = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Key of profile.toml that the file lacks, as in gpu=H100."),
    ] = None,
    num_speculative_tokens: opt.Gamma = None,
    layers: Annotated[
        int | None,
        typer.Option("--layers", help="Layers of the model (LLMServingSim).", **opt.WHOLE),
    ] = None,
) -> None:
    """Read another program's table of step costs and write it as a profile.

    dspark-sim profile import sps.json --out sps --set gpu=H100 --set max_num_seqs=64
    """
    from dspark_sim.throughput import ImportOptions, import_profile, write_profile

    keys = with_settings({}, settings or [])
    given = ImportOptions(name or out.name, keys, num_speculative_tokens, layers)
    profile = import_profile(source, given, format)
    write_profile(profile, out)
    for key in ("source", "method", "residuals", "assumed"):
        if key in profile.provenance:
            show.note(f"{key}: {profile.provenance[key]}")
    show.note(f"wrote profile '{profile.name}' to {out}")


@profile_app.command("export")
def profile_export(
    name: Annotated[str, typer.Argument(help="Shipped name or folder.")],
    format: Annotated[
        str,
        typer.Option("--format", help="sglang, sglang-additive, trt, trt-gv or inference-lab."),
    ],
    out: Annotated[Path, typer.Option("--out", help="File to write.")],
    num_speculative_tokens: opt.Gamma = None,
    context: Annotated[
        int, typer.Option("--context", help="KV tokens per request; goes into α(R).", **opt.WHOLE)
    ] = 0,
    graphs: Annotated[
        str | None, typer.Option("--graphs", help="trt-gv: captured requests, as in 16,32,64.")
    ] = None,
    fingerprint: Annotated[
        Path | None, typer.Option("--fingerprint", help="trt-gv: JSON of the running engine.")
    ] = None,
) -> None:
    """Write a profile as the step cost table of another program.

    dspark-sim profile export qwen3-8b-h20 --format sglang-additive --out sps.json
    """
    from dspark_sim.throughput import export_profile, load_profile

    profile = load_profile(name)
    export_profile(
        profile, out, format,
        draft_len=num_speculative_tokens, context=context, fingerprint=fingerprint,
        graphs=None if graphs is None else opt.whole_numbers(graphs, "--graphs"),
    )  # fmt: skip
    if profile.context_ms_per_kv_token and not context:
        show.note("the context term is left out: --context N adds that of N KV tokens per request")
    if format == "trt-gv" and fingerprint is None:
        show.note("TensorRT-LLM accepts this table only with --fingerprint of the running engine")
    show.note(f"wrote {out}")


@profile_app.command("fit")
def profile_fit(
    results: Annotated[
        list[Path], typer.Argument(help="JSON of vllm bench serve --save-result, or CSV tables.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for profile and acceptance law.")],
    draft_len: Annotated[
        list[str] | None,
        typer.Option("--draft-len", help="NAME=k for a file or policy that does not tell it."),
    ] = None,
    acceptance_length: Annotated[
        list[str] | None,
        typer.Option("--acceptance-length", help="k=LENGTH, taken as exact; bonus included."),
    ] = None,
    drafter: Annotated[
        str, typer.Option("--drafter", help="What drafting costs: block, autoregressive or none.")
    ] = "block",
    hold_out: Annotated[
        list[str] | None,
        typer.Option("--hold-out", help="Predict instead of fit: k=5,6 or c=64; repeatable."),
    ] = None,
    name: Name = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Key of profile.toml that results lack, as in gpu=H100."),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Recover step time and acceptance from benchmark results at several loads and draft lengths.

    dspark-sim profile fit results/*.json --draft-len 'nospec-*=0' --hold-out k=5 --out mine
    """
    from dspark_sim.study import fit_bench, fit_summary, format_fit, write_fit
    from dspark_sim.throughput import ImportOptions

    lengths = opt.named_numbers(acceptance_length, "--acceptance-length")
    draft_lens = opt.named_numbers(draft_len, "--draft-len", whole=True)
    found = fit_bench(
        results,
        draft_lens={key: int(value) for key, value in draft_lens.items()},
        lengths={opt.whole_numbers(k, "--acceptance-length")[0]: v for k, v in lengths.items()},
        drafter=drafter,
        hold_out=hold_out or [],
    )
    written = write_fit(
        found, out, ImportOptions(name or out.name, with_settings({}, settings or []))
    )
    print(json.dumps(fit_summary(found), indent=2) if as_json else format_fit(found))
    for path in written:
        show.note(f"wrote {path}")
