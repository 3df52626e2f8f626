"""From tokens back to text, as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

_BROKEN = "\ufffd"


class Detokenizer:
    """Text of a growing token list; bytes of an unfinished character wait for the rest."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending: list[int] = []

    def add(self, tokens: Sequence[int], last: bool = False) -> str:
        """Return the text that more tokens add; all that is left with the `last` ones."""
        self._pending += tokens
        text: str = self._tokenizer.decode(self._pending, skip_special_tokens=True)
        if text.endswith(_BROKEN) and not last:
            return ""
        self._pending = []
        return text
