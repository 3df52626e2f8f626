"""The command that serves a real model pair over HTTP (torch)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from dspark_sim import options as opt
from dspark_sim import show
from dspark_sim.core import UserError


def serve(
    target: Annotated[str, typer.Option(help="tiny, smollm2-135m or your own.")] = "tiny",
    drafter: Annotated[
        str | None, typer.Option(help="Name, as dspark-markov; none: plain.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="NAME:ARGS; default vllm, or none without a drafter.")
    ] = None,
    host: Annotated[str, typer.Option(help="This machine: 127.0.0.1, ::1 or localhost.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="0 takes a free one.", **opt.WHOLE)] = 8000,
    max_num_seqs: Annotated[int, typer.Option(help="Requests at once.", **opt.WHOLE)] = 16,
    max_num_batched_tokens: Annotated[
        int, typer.Option(help="Tokens per step, prompts included.", **opt.WHOLE)
    ] = 512,
    max_model_len: Annotated[
        int | None,
        typer.Option(help="Prompt and output; default the target's, 1024 at most.", **opt.WHOLE),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of requests that name none.")] = 1.0,
    profile: Annotated[
        str | None, typer.Option(help="Believed step costs; default: measured at the start.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Folder of weights.")] = None,
    seed: opt.Seed = None,
) -> None:
    """Serve a real target and drafter, OpenAI-compatible, on this machine only.

    dspark-sim serve --target tiny --drafter dspark-markov --policy vllm --port 8000
    """
    try:
        from dspark_sim.model.server import listen
        from dspark_sim.model.server import serve as run
        from dspark_sim.model.server.setup import build_service
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{error.name}' is missing: serving needs pip install 'dspark-sim[model,serve]'"
        ) from None
    with closing(listen(host, port)) as listener:  # before seconds of loading
        service = build_service(
            target, drafter, policy,
            limits=(max_num_seqs, max_num_batched_tokens, max_model_len),
            temperature=temperature, profile=profile, weights=weights, seed=seed or 0,
            note=show.note,
        )  # fmt: skip
        run(service, listener, lambda url: show.note(f"serving {service.name} at {url}"))
