"""Attention kernels for a batch of requests of different lengths, and which of them to use.

Shapes: N tokens of all requests, H query heads, G key heads, D head size, S cache slots.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dspark_sim.model.timing.plan import PAGE, Group, Plan

if TYPE_CHECKING:
    from dspark_sim.model.timing.clock import Clock

Kernel = Callable[[Tensor, Tensor, Tensor, Plan], Tensor]


def masked(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
    """Attend with scaled_dot_product_attention and a mask, rows padded to the longest request.

    A key head's query heads stand side by side, so that keys and values are not copied.
    """
    return _by_group(q, k, v, plan, _masked_group)


def flash(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
    """Attend with FlashAttention's fixed-length kernel, which splits long keys (split-KV)."""
    return _by_group(q, k, v, plan, _flash_group)


def varlen(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
    """Attend with torch.nn.attention.varlen: no padding; no split-KV for more than one token."""
    slots = plan.cache_slots
    return _varlen(q, k[:slots], v[:slots], plan)


def paged(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
    """Attend with torch.nn.attention.varlen on pages of the KV cache, with split-KV."""
    slots = plan.cache_slots
    k, v = (t[:slots].view(-1, PAGE, *t.shape[1:]) for t in (k, v))
    return _varlen(q, k, v, plan, seqused_k=plan.key_lengths, block_table=plan.block_table)


KERNELS: dict[str, Kernel] = {"masked": masked, "flash": flash, "varlen": varlen, "paged": paged}


def _by_group(  # type: ignore[no-untyped-def]
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, attend
) -> Tensor:
    """Call `attend` with (R, W, H, D) queries and (R, S, G, D) keys of one group at a time."""
    out = torch.zeros_like(q) if plan.rows > plan.tokens else torch.empty_like(q)
    token = slot = 0
    for index, group in enumerate(plan.groups):
        tokens = slice(token, token := token + group.tokens)
        slots = slice(slot, slot := slot + group.requests * group.span)
        mine, pad = q[tokens], plan.pads[index]
        rows = mine if pad is None else mine[pad[0]]
        keys, values = (t[slots].view(group.requests, group.span, *t.shape[1:]) for t in (k, v))
        found = attend(rows.view(group.requests, -1, *q.shape[1:]), keys, values, plan, index)
        found = found.reshape(-1, *q.shape[1:])
        out[tokens] = found if pad is None else found[pad[1]]
    return out


def _masked_group(q: Tensor, k: Tensor, v: Tensor, plan: Plan, index: int) -> Tensor:
    requests, width, heads, size = q.shape
    share = heads // k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mask = plan.masks[index]
    if mask is not None and width == k.shape[2]:  # a prompt from its start
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    folded = q.reshape(requests, -1, share * width, size)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask)
    return out.reshape(requests, heads, width, size).transpose(1, 2)


def _flash_group(q: Tensor, k: Tensor, v: Tensor, plan: Plan, index: int) -> Tensor:
    turned = (t.transpose(1, 2) for t in (q, k, v))
    causal = plan.causal and plan.groups[index].width > 1  # aligned at the lower right
    call = torch.ops.aten._scaled_dot_product_flash_attention
    return call(*turned, 0.0, causal, False)[0].transpose(1, 2)


def _varlen(q: Tensor, k: Tensor, v: Tensor, plan: Plan, **options: Any) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    options["window_size"] = (-1, 0 if plan.causal else -1)
    if "enable_gqa" in _varlen_options():  # older versions group heads without being told
        options["enable_gqa"] = True
    out: Any = varlen_attn(
        q[: plan.tokens], k, v, plan.query_starts, plan.key_starts,
        max(plan.lengths), max(plan.spans), **options,
    )  # fmt: skip
    missing = plan.rows - plan.tokens
    return F.pad(out, (0, 0, 0, 0, 0, missing)) if missing else out


@cache
def _varlen_options() -> frozenset[str]:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def usable_kernels(device: torch.device, dtype: torch.dtype) -> tuple[list[str], dict[str, str]]:
    """Return the kernels that work here, and for each known one what became of it.

    On a GPU every kernel is tried on a small ragged batch and held against `masked`; one that
    fails, or answers otherwise, is left out and the reason kept. On a CPU there is `masked` alone.
    """
    if device.type != "cuda":
        return ["masked"], {"masked": "scaled_dot_product_attention on the CPU"}
    if dtype not in (torch.bfloat16, torch.float16):
        return ["masked"], {"masked": f"the others need bfloat16, not {dtype}"}
    wanted = masked(*_trial(device, dtype))
    good, said = [], {"masked": "the reference; used only where nothing else works"}
    for name in ("flash", "varlen", "paged"):
        if name == "paged" and "block_table" not in _varlen_options():
            said[name] = f"torch {torch.__version__} has no varlen_attn with a block table"
            continue
        try:
            off = float((KERNELS[name](*_trial(device, dtype)) - wanted).float().abs().max())
        except Exception as error:
            said[name] = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
            continue
        said[name] = f"off the reference by {off:.1g} at most"
        if off < 0.05:
            good.append(name)
    return good or ["masked"], said


def _trial(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Plan]:
    """Return a small ragged batch, two query heads to a key head, equal at every call."""
    groups = (Group((1, 3, 2), PAGE), Group((40,), 2 * PAGE))
    plan = Plan(groups, rows=48, causal=True, device=device, share=2, dtype=dtype)
    chance = torch.Generator(device).manual_seed(0)
    shapes = ((48, 4, 64), (plan.cache_slots + 1, 2, 64), (plan.cache_slots + 1, 2, 64))
    q, k, v = (torch.randn(s, generator=chance, device=device, dtype=dtype) for s in shapes)
    return q, k, v, plan


def fastest_kernel(
    names: list[str], q: Tensor, k: Tensor, v: Tensor, plan: Plan, clock: Clock
) -> str:
    """Return the kernel that takes least time on one layer of this batch."""
    fit = [name for name in names if name != "paged" or plan.paged]
    if len(fit) == 1:
        return fit[0]
    return min(fit, key=lambda name: clock.best(lambda: KERNELS[name](q, k, v, plan)))


__all__ = ["KERNELS", "Group", "Kernel", "Plan", "fastest_kernel", "usable_kernels"]
