"""Small vocabularies of each kind, made here, and slow encoders that say what the kinds mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from nybble.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from nybble.tokenizer.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Written out from the definition rather than imported: printable Latin-1 is itself, the rest counts up from U+0100.
PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
SPELLED = {byte: chr(byte) for byte in PRINTABLE}
for place, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE):
    SPELLED[byte] = chr(256 + place)

CORPUS = (
    "the cat sat on the mat, the 12 cats sat; naïve café — 猫が座った 😀😀 \n\n  don't  DON'T\t<|im_end|> </s> [INST]"
)


def spell(text: str) -> str:
    """Text in the byte alphabet."""
    return "".join(SPELLED[byte] for byte in text.encode())


def learn_merges(words: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Plain BPE training: join the most frequent pair, again and again."""
    split = [list(word) for word in words]
    merges = []
    for _ in range(count):
        pairs = Counter(pair for word in split for pair in pairwise(word))
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        split = [join_pair(word, best) for word in split]
    return merges


def join_pair(word: list[str], pair: tuple[str, str]) -> list[str]:
    """Every occurrence of a pair joined, from the left."""
    joined: list[str] = []
    for symbol in word:
        # A pair may not reuse what it has just joined.
        if joined and (joined[-1], symbol) == pair:
            joined[-1] = pair[0] + pair[1] + "\0"
        else:
            joined.append(symbol)
    return [symbol.removesuffix("\0") for symbol in joined]


def merge_by_rank(word: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """BPE by definition: while any neighbours have a rank, join all of the lowest."""
    while True:
        pairs = [pair for pair in pairwise(word) if pair in ranks]
        if not pairs:
            return word
        word = join_pair(word, min(pairs, key=ranks.__getitem__))


def byte_level_metadata(
    controls: Sequence[str] = ("<|im_start|>", "<|im_end|>"), user_defined: Sequence[str] = (), pre: str = "smollm"
) -> dict[str, object]:
    words = [spell(" " + word) for word in CORPUS.split()] + [spell(word) for word in CORPUS.split(" ")]
    merges = learn_merges(words, 60)
    tokens = [*controls, *SPELLED.values(), *dict.fromkeys(left + right for left, right in merges), *user_defined]
    kinds = [CONTROL] * len(controls) + [NORMAL] * (len(tokens) - len(controls) - len(user_defined))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds + [USER_DEFINED] * len(user_defined),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def sentence_piece_metadata(
    extra_controls: Sequence[str] = (), user_defined: Sequence[str] = (), byte_tokens: bool = True
) -> dict[str, object]:
    words = ["▁" + CORPUS.replace(" ", "▁")]
    merges = learn_merges(words, 40)
    characters = [character for character in dict.fromkeys(words[0]) if character not in "猫😀"]
    joined = [piece for piece in dict.fromkeys(left + right for left, right in merges) if not set(piece) & set("猫😀")]
    controls = ["<s>", "</s>", *extra_controls]
    octets = [f"<0x{byte:02X}>" for byte in range(256)] if byte_tokens else []
    tokens = ["<unk>", *controls, *octets, *joined, *characters, *user_defined]
    kinds = [UNKNOWN, *[CONTROL] * len(controls), *[BYTE] * len(octets)]
    kinds += [NORMAL] * (len(joined) + len(characters)) + [USER_DEFINED] * len(user_defined)
    first = len(tokens) - len(joined) - len(characters) - len(user_defined)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        # As trained: what was joined first scores best.
        "tokenizer.ggml.scores": [float(min(0, first - token)) for token in range(len(tokens))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def build(metadata: dict[str, object]) -> Tokenizer:
    return tokenizer_from_gguf(metadata, "toy.gguf")
