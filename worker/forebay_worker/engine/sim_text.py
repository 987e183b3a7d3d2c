"""The simulated model's language: token ids, texts, and what it says to a prompt.

Ids of generated tokens (≥ GENERATED) are apart from those of prompt tokens. So a prompt that
ends in generated ids is known to be a continuation, and the next token depends only on the
words before those ids and on how many they are:

    token(k) = h(h(seed, model, choice, prompt words), k)

The rest of a text is therefore the same wherever the text was cut.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import exp
from statistics import NormalDist
from typing import NamedTuple, Protocol
from zlib import crc32

GENERATED = 1 << 17
_MASK = (1 << 64) - 1
_PIECE = re.compile(r" ?\w{1,8}| ?[^\w\s]|\s")
# Marks of the chat template, below the ids of words.
_BEGIN = {"system": 1, "developer": 1, "user": 2, "assistant": 3, "tool": 4, "function": 4}
_END = 5
_FIRST_WORD, _WORDS = 1_000, 100_000

# Log-normal lengths with this sigma have a heavy tail, and a mean of 100 tokens by this mu.
_SIGMA, _MU = 1.0, 4.105
_NORMAL = NormalDist()


class Token(NamedTuple):
    """One generated token and the text it adds."""

    id: int
    text: str


def _vocabulary() -> list[str]:
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    count = len(syllables)
    words = [
        f" {syllables[i % count]}{syllables[(i * 7 + i // count) % count]}" for i in range(228)
    ]
    return [
        *words,
        *(",", ".", "?", "\n", " 7", " 42", ' "', " (", " café", " señor", " naïve", " über"),
        *(" 日本", " 東京", " привет", " 한국", " œuvre", " Ω", " €", " ½"),
    ]


_TEXTS = _vocabulary()
_SPEECH = [Token(GENERATED + 3 + i, text) for i, text in enumerate(_TEXTS)]
END_OF_TEXT = Token(GENERATED, "")
# A character of four bytes comes as two tokens; the first has no text yet, as in real
# byte-level vocabularies, where a client gets an empty chunk with a token id.
_EMOJI = (Token(GENERATED + 1, ""), Token(GENERATED + 2, " 🙂"))
# Drawn at even positions only, so that its second half cannot be drawn over.
_EMOJI_DRAWS = 8
_DRAWS = len(_SPEECH) + _EMOJI_DRAWS
_BY_TEXT = {token.text: token.id for token in _SPEECH}


def encode(text: str) -> list[int]:
    """Ids of a prompt's text: one for each word-like piece, the space before it included."""
    return [_FIRST_WORD + crc32(piece.encode()) % _WORDS for piece in _PIECE.findall(text)]


def encode_generated(text: str) -> list[int]:
    """Ids of a text this model said; other words get prompt ids, as `encode` gives."""
    ids: list[int] = []
    for piece in _PIECE.findall(text):
        if piece == _EMOJI[1].text:
            ids += (token.id for token in _EMOJI)
        else:
            ids.append(_BY_TEXT.get(piece) or encode(piece)[0])
    return ids


def encode_chat(turns: Iterable[tuple[str, str]], open_end: bool) -> list[int]:
    """Ids of (role, text) turns, then the mark that asks the assistant to speak.

    With `open_end` the last turn is left open instead, and its text counts as generated.
    """
    ids: list[int] = []
    turns = list(turns)
    for role, text in turns[:-1] if open_end else turns:
        ids += (_BEGIN[role], *encode(text), _END)
    ids.append(_BEGIN["assistant"])
    return ids + encode_generated(turns[-1][1]) if open_end else ids


def _mix(word: int) -> int:
    """A 64-bit finaliser (splitmix64): near inputs come out unrelated."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)


class Source(Protocol):
    """A text that can be said from any of its tokens on."""

    start: int
    """Position of the first token that is still to be said."""
    length: int
    """Tokens of the whole text, the end-of-text token included."""

    def token(self, position: int) -> Token:
        """The token at this position, also beyond the natural end."""


class Monologue:
    """What the model says to a prompt by itself."""

    __slots__ = ("_key", "length", "start")

    def __init__(self, seed: int, model: str, prompt: Sequence[int], choice: int = 0) -> None:
        words = len(prompt)
        while words and prompt[words - 1] >= GENERATED:
            words -= 1
        self.start = len(prompt) - words
        head = struct.pack(f"{words}q", *prompt[:words])
        digest = blake2b(f"{seed}/{model}/{choice}/".encode() + head, digest_size=8).digest()
        self._key = int.from_bytes(digest)
        draw = (_mix(self._key) + 0.5) / (_MASK + 1)
        self.length = max(2, round(exp(_MU + _SIGMA * _NORMAL.inv_cdf(draw))))

    def token(self, position: int) -> Token:
        if position & 1 and self._draw(position - 1) >= len(_SPEECH):
            return _EMOJI[1]
        draw = self._draw(position)
        if draw < len(_SPEECH):
            return _SPEECH[draw]
        return _SPEECH[draw % len(_SPEECH)] if position & 1 else _EMOJI[0]

    def _draw(self, position: int) -> int:
        return _mix(self._key + (position + 1) * 0x9E3779B97F4A7C15 & _MASK) % _DRAWS


class Recital:
    """A fixed text, such as the arguments of a tool call."""

    __slots__ = ("_tokens", "length", "start")

    def __init__(self, text: str) -> None:
        self._tokens = [
            Token(GENERATED + i, t) for i, t in zip(encode(text), _PIECE.findall(text), strict=True)
        ]
        self.start = 0
        self.length = len(self._tokens) + 1

    def token(self, position: int) -> Token:
        # Asked to go on past the end it pads with blanks, which change no JSON.
        return self._tokens[position] if position < len(self._tokens) else Token(GENERATED + 3, " ")
