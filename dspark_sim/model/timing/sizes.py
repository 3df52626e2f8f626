"""The true dimensions of the models that can be timed, their drafters, and what a step moves."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_sim.core import unknown_name


@dataclass(frozen=True)
class ModelSizes:
    """Dimensions of a decoder-only model and of the drafters that are timed with it.

    Parameters
    ----------
    intermediate_size : int
        Of the feed-forward layer; of one expert where there are experts.
    tied, qk_norm : bool
        The LM head is the embedding; queries and keys are normalised per head.
    experts, experts_per_token : int
        0 and 0 for a dense model.
    draft_layers, draft_rank, draft_features : int
        Block drafter: layers, rank of its Markov head (arXiv 2607.05147, section 3.1), and how many
        hidden states of the target it fuses. The paper's released drafters have 5 layers, rank 256.
    draft_vocab_size : int
        Vocabulary of the autoregressive drafter (EAGLE-3 keeps the 32,000 most frequent tokens).
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    tied: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    draft_layers: int = 5
    draft_rank: int = 256
    draft_features: int = 5
    draft_vocab_size: int = 32_000

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's attention."""
        heads = self.num_heads + self.num_kv_heads
        return 2 * self.hidden_size * heads * self.head_dim

    @property
    def kv_numbers(self) -> int:
        """Numbers that one token leaves in the KV cache of one layer."""
        return 2 * self.num_kv_heads * self.head_dim

    def mlp_weights(self, experts: float = 1.0) -> float:
        """Weights of one layer's feed-forward part, or of so many of its experts."""
        return 3 * self.hidden_size * self.intermediate_size * experts

    def touched_experts(self, tokens: int) -> float:
        """How many experts of a layer a batch reaches if its tokens choose evenly; 1 if dense."""
        if not self.experts:
            return 1.0
        return self.experts * (1 - (1 - self.experts_per_token / self.experts) ** tokens)

    def weights_of(self, layers: int) -> int:
        """Weights of the model with so many layers."""
        layer = self.attention_weights + self.mlp_weights(self.experts or 1)
        return int(layers * layer + self.vocab_size * self.hidden_size * (2 - self.tied))

    def traffic(
        self,
        tokens: int,
        logit_rows: int,
        kv_positions: int,
        pairs: int,
        layers: int,
        itemsize: int,
    ) -> tuple[float, float]:
        """Return the fewest bytes a pass moves and its floating-point operations.

        Parameters
        ----------
        tokens, logit_rows : tokens in the pass; how many of them get logits
        kv_positions : cached positions its attention reads, over all requests
        pairs : query-key pairs of one head
        layers, itemsize : layers that run; bytes of a number
        """
        active = self.experts_per_token or 1
        read = self.attention_weights + self.mlp_weights(self.touched_experts(tokens))
        head = self.vocab_size * self.hidden_size if logit_rows else 0
        numbers = layers * (read + self.kv_numbers * (kv_positions + tokens))
        numbers += head + tokens * self.hidden_size + logit_rows * self.vocab_size
        work = layers * (self.attention_weights + self.mlp_weights(active)) * tokens
        work += head * logit_rows + 2 * layers * self.num_heads * self.head_dim * pairs
        return itemsize * numbers, 2.0 * work


MODELS = {
    row.name: row
    for row in (
        #          name             V        d   layers H  kv  D   mlp
        ModelSizes(
            "smollm2-135m", 49_152, 576, 30, 9, 3, 64, 1_536, tied=True,
            draft_layers=2, draft_rank=128, draft_features=3,
        ),
        ModelSizes("qwen3-4b", 151_936, 2_560, 36, 32, 8, 128, 9_728, tied=True, qk_norm=True),
        ModelSizes("qwen3-8b", 151_936, 4_096, 36, 32, 8, 128, 12_288, qk_norm=True),
        ModelSizes("qwen3-14b", 151_936, 5_120, 40, 40, 8, 128, 17_408, qk_norm=True),
        ModelSizes("llama3.1-8b", 128_256, 4_096, 32, 32, 8, 128, 14_336),
        ModelSizes(  # as Granite 3.0 1B-A400M
            "small-moe", 49_155, 1_024, 24, 16, 8, 64, 512, tied=True,
            experts=32, experts_per_token=8,
        ),
        ModelSizes(  # for trying the harness out, no real model
            "trial", 512, 64, 2, 4, 2, 16, 128, tied=True, qk_norm=True,
            draft_layers=1, draft_rank=16, draft_features=2, draft_vocab_size=256,
        ),
    )
}  # fmt: skip


def model_sizes(name: str) -> ModelSizes:
    """Return the dimensions of a model that can be timed."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]
