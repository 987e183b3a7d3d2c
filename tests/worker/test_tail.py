"""What the last chunk states reaches the client though the chunk itself does not."""

from __future__ import annotations

from forebay_worker.tail import Tail

MARK = b"1,2"
END = b'{"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
TEXT = b'{"id":"a","choices":[{"index":0,"delta":{"content":"}"},"finish_reason":null}]}'
USAGE = b'{"id":"a","choices":[],"usage":{"prompt_tokens":1},"system_fingerprint":"x","n":{"a":1}}'


def test_statements_go_into_the_chunk_before() -> None:
    """Text passes at once, the end waits, and takes over what is not its own or usage."""
    tail = Tail(held_back=True)
    assert tail.push(TEXT, TEXT, MARK) == [(TEXT, MARK)]
    assert tail.push(END, END, MARK) == []
    told = END[:-1] + b',"system_fingerprint":"x","n":{"a":1}}'
    assert tail.push(USAGE, None) == [(told, MARK)]
    assert tail.rest() == []


def test_each_choice_has_its_end() -> None:
    """With n > 1 several chunks have a finish reason: only the last one waits for the usage."""
    tail = Tail(held_back=True)
    assert tail.push(END, END) == []
    assert tail.push(TEXT, TEXT) == [(END, b""), (TEXT, b"")]
    assert tail.push(END, END) == []
    assert tail.rest() == [(END, b"")]


def test_nothing_waits_where_nothing_was_added() -> None:
    tail = Tail(held_back=False)
    assert tail.push(END, END) == [(END, b"")]
    assert tail.push(USAGE, USAGE) == [(USAGE, b"")]


def test_unreadable_chunks_stay_as_they_are() -> None:
    tail = Tail(held_back=True)
    broken = b'{"choices":[{"finish_reason":"stop"}], oops'
    assert tail.push(broken, broken) == []
    assert tail.push(USAGE, None) == [(broken, b"")]
