"""The text of a policy, `NAME:ARGS`, read with errors that name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspark_sim.core import UserError, parse_number, parse_spec, unknown_name
from dspark_sim.policies.switches import MEANINGS, Switches

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Spec:
    """A policy as the user wrote it, with γ for rules that do not set their own."""

    text: str
    gamma: int
    name: str
    args: tuple[str, ...]
    keywords: dict[str, str]

    @classmethod
    def parse(cls, text: str, gamma: int) -> Spec:
        """Split `NAME:a,b,key=value`."""
        name, args, keywords = parse_spec(text)
        return cls(text.strip(), gamma, name, tuple(args), keywords)

    def expect(self, least: int, most: int, *known: str) -> None:
        """Refuse another number of plain arguments, unknown keys, and switches without meaning."""
        if not least <= len(self.args) <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            raise UserError(
                f"policy '{self.text}' takes {wanted} plain argument(s), got {len(self.args)}"
            )
        for key in self.keywords:
            if key in MEANINGS and key not in known:
                raise UserError(
                    f"policy '{self.text}': {key} {MEANINGS[key]}, and {self.name} has none"
                )
            if key not in known:
                raise unknown_name("key", key, known or ["(none)"], f"policy '{self.text}'")

    def wrong(self, what: str, allowed: str, got: str) -> UserError:
        """Say what an argument must be and what stood in its place."""
        return UserError(f"policy '{self.text}': {what} must {allowed}, got {got}")

    def number(self, what: str, text: str, low: float, high: float) -> float:
        """Read a number in low..high."""
        value = parse_number(text, f"policy '{self.text}': {what}")
        if not low <= value <= high:
            limits = f"lie in {low:g}..{high:g}" if high < 1e9 else f"be {low:g} or more"
            raise self.wrong(what, limits, f"{value:g}")
        return value

    def whole(self, what: str, text: str, low: int = 0, high: int | None = None) -> int:
        """Read a whole number of `low` or more, up to `high` where there is one."""
        value = parse_number(text, f"policy '{self.text}': {what}")
        if value != int(value) or value < low:
            raise self.wrong(what, f"be a whole number of {low} or more", text)
        if high is not None and value > high:
            raise self.wrong(what, f"lie in {low}..{high}", f"{value:g}")
        return int(value)

    def choice(self, key: str, allowed: Iterable[str], usual: str) -> str:
        """Read one of some words."""
        value, words = self.keywords.get(key, usual), tuple(allowed)
        if value not in words:
            raise unknown_name(f"value of {key}", value, words, f"policy '{self.text}'")
        return value

    def key(self, key: str, usual: float, low: float, high: float) -> float:
        """Read a keyword's number in low..high, or its usual value."""
        return self.number(key, self.keywords.get(key, repr(usual)), low, high)

    def whole_key(self, key: str, usual: int, low: int = 0, high: int | None = None) -> int:
        """Read a keyword's whole number, or its usual value."""
        return self.whole(key, self.keywords.get(key, str(usual)), low, high)

    def lag(self, usual: int) -> int:
        """Read `lag`, 0 to 3 steps."""
        return self.whole_key("lag", usual, 0, 3)

    def switches(self, least: int = 0, guard: float | None = None) -> Switches:
        """Read the switches that the rule takes, with its own usual values."""
        keys = self.keywords
        return Switches(
            least=self.whole_key("min", least),
            guard=self.key("guard", 0.0, 0.0, 1e9) if "guard" in keys else guard,
            fill=self.choice("fill", ("none", "tier"), "none") == "tier",
            most=self.choice("tie", ("fewest", "most"), "fewest") == "most",
            every=self.whole_key("every", 1, 1),
        )
