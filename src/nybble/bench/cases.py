"""What can be measured of a model: prompts, generation, and both, behind a context and in batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import InvalidParameter

MOST_TOKENS = 1 << 20
MOST_SEQUENCES = 1024

OPERATION_TEST = "M="


@dataclass(frozen=True, slots=True)
class Case:
    """``prompt`` tokens computed at once with the logits of the last, then ``generated`` ones computed one by one.

    Before them lie ``depth`` tokens that are not timed. ``batch`` sequences generate together, a token each per step.
    Of an operation on its own, ``prompt`` is the number of rows.
    """

    prompt: int
    generated: int
    depth: int = 0
    batch: int = 1
    is_operation: bool = False

    @property
    def test(self) -> str:
        """``pp512``, ``tg128`` or ``pg512+128``, as users of llama-bench know them; ``M=512`` for an op."""
        if self.is_operation:
            return f"{OPERATION_TEST}{self.prompt}"
        if not self.generated:
            return f"pp{self.prompt}"
        return f"pg{self.prompt}+{self.generated}" if self.prompt else f"tg{self.generated}"

    @property
    def tokens(self) -> int:
        """How many tokens a sample computes, those of all sequences together."""
        return (self.prompt + self.generated) * self.batch

    @property
    def context(self) -> int:
        """How many tokens a sequence has in the end."""
        return self.depth + self.prompt + self.generated


def cross_product(
    prompts: Sequence[int],
    generated: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    depths: Sequence[int],
    batches: Sequence[int],
) -> tuple[Case, ...]:
    """Every prompt, every number of generated tokens and every pair, each at every depth; generation in every batch.

    Numbers of 0 are left out, repetitions too. Raises :class:`InvalidParameter` if nothing is left.
    """
    cases: list[Case] = []
    for depth in depths:
        cases += [Case(prompt, 0, depth) for prompt in prompts if prompt]
        cases += [Case(0, count, depth, batch) for count in generated if count for batch in batches]
        cases += [Case(prompt, count, depth) for prompt, count in pairs]
    if not cases:
        raise InvalidParameter("there is nothing to measure; give -p, -n or -pg numbers above 0")
    return tuple(dict.fromkeys(cases))


def parse_counts(text: str, option: str, least: int, most: int) -> tuple[int, ...]:
    """``1,2,8`` as numbers from ``least`` to ``most``; raises :class:`InvalidParameter` naming the option."""
    return tuple(_number(word, text, option, least, most) for word in text.split(","))


def parse_pairs(texts: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """``512+128,64+8`` as pairs of prompt and generated tokens; raises :class:`InvalidParameter`."""
    pairs = []
    for text in texts:
        for word in text.split(","):
            parts = word.split("+")
            if len(parts) != 2:
                raise InvalidParameter(f"-pg is {text!r}; expected PROMPT+GENERATED, as in 512+128")
            prompt, count = (_number(part, text, "-pg", 1, MOST_TOKENS) for part in parts)
            pairs.append((prompt, count))
    return tuple(pairs)


def _number(word: str, text: str, option: str, least: int, most: int) -> int:
    # Not int(): that takes signs, underscores and digits of other scripts too.
    digits = word.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9 and least <= int(digits) <= most):
        raise InvalidParameter(f"{option} is {text!r}; expected whole numbers from {least} to {most}, commas between")
    return int(digits)
