"""Published acceptance numbers, each with its source."""

from __future__ import annotations

_FIG2 = "arXiv 2607.05147, Fig. 2 (conditional acceptance per position, Qwen3-4B, γ = 7)"
_GOLDEN = "InferenceX golden_al_distribution (SPEED-Bench coding, T = 1, draft lengths 1 to 8)"

CONDITIONAL_RATES: dict[str, tuple[float, ...]] = {
    "math-dspark": (0.9053, 0.8899, 0.8878, 0.8854, 0.8872, 0.8906, 0.8824),
    "math-dflash": (0.8850, 0.8270, 0.8198, 0.8338, 0.8414, 0.8390, 0.8277),
    "math-eagle3": (0.8106, 0.8231, 0.8382, 0.8442, 0.8508, 0.8557, 0.8502),
    "code-dspark": (0.8857, 0.8719, 0.8598, 0.8608, 0.8579, 0.8594, 0.8510),
    "code-dflash": (0.8654, 0.8145, 0.7971, 0.8013, 0.8098, 0.8014, 0.7770),
    "code-eagle3": (0.7710, 0.7737, 0.7812, 0.7913, 0.7870, 0.7939, 0.7840),
    "chat-dspark": (0.7353, 0.7376, 0.7402, 0.7441, 0.7583, 0.7656, 0.7609),
    "chat-dflash": (0.7181, 0.6479, 0.6382, 0.6606, 0.6820, 0.6919, 0.6877),
    "chat-eagle3": (0.5336, 0.5894, 0.6421, 0.6782, 0.7086, 0.7289, 0.7325),
}

ACCEPTANCE_LENGTHS: dict[str, tuple[float, ...]] = {
    "golden-dsv4-pro-dspark": (1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73, 3.47),
    "golden-kimi-k3-dspark": (1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88),
}

ORIGINS: dict[str, str] = dict.fromkeys(CONDITIONAL_RATES, _FIG2) | dict.fromkeys(
    ACCEPTANCE_LENGTHS, _GOLDEN
)
