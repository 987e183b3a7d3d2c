"""Answers of chats and completions in vLLM's shapes.

Chunks are written by hand: one is made for every token, and encoding a dict costs ten times
as much as filling the two or three places in which chunks differ.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from forebay_worker.engine.sim_request import TextRequest
from forebay_worker.engine.sim_writer import Delta

_quote = json.JSONEncoder(ensure_ascii=False).encode
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage field."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def compact_json(value: Any) -> bytes:
    """JSON without blanks, texts as UTF-8."""
    return _compact(value).encode()


class TextAnswer:
    """Writes one request's answer, whole or as chunks."""

    def __init__(self, request: TextRequest) -> None:
        self._request = request
        self._common = {
            "id": request.common.id,
            "object": "chat.completion" if request.chat else "text_completion",
            "created": int(time.time()),
            "model": request.common.model,
        }
        self._call_id = f"chatcmpl-tool-{request.common.id}"

    def whole(self, deltas: Iterable[Delta]) -> bytes:
        """The answer that does not stream."""
        by_choice: list[list[Delta]] = [[] for _ in self._request.writers]
        for delta in deltas:
            by_choice[delta.choice].append(delta)
        answer: dict[str, Any] = {
            **self._common,
            "choices": [self._choice(i, said) for i, said in enumerate(by_choice)],
            "usage": self._usage(),
        }
        if self._request.chat:
            ids = self._request.form.return_token_ids
            answer["prompt_token_ids"] = self._request.prompts[0] if ids else None
        return compact_json(answer)

    def _choice(self, index: int, said: list[Delta]) -> dict[str, Any]:
        request, last = self._request, said[-1]
        ids = [i for delta in said for i in delta.token_ids]
        choice: dict[str, Any] = {
            "index": index,
            "logprobs": None,
            "finish_reason": self._finish(last),
            "stop_reason": last.stop_reason,
            "token_ids": ids if request.form.return_token_ids else None,
        }
        text = "".join(delta.text for delta in said)
        if request.chat:
            return {**choice, "message": self._message(text)}
        prompt = request.prompt_of(index) if request.form.return_token_ids else None
        return {**choice, "text": text, "prompt_token_ids": prompt}

    def _message(self, text: str) -> dict[str, Any]:
        tool = self._request.tool
        if tool is None:
            return {"role": "assistant", "content": text, "refusal": None}
        call = {
            "id": self._call_id,
            "type": "function",
            "function": {"name": tool.name, "arguments": text},
        }
        return {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}

    def _finish(self, delta: Delta) -> str | None:
        tool = self._request.tool
        return tool.finish if tool is not None and delta.finish == "stop" else delta.finish

    def _usage(self) -> dict[str, int]:
        said = sum(writer.count for writer in self._request.writers)
        return usage(self._request.prompt_tokens, said)


class ChunkWriter(TextAnswer):
    """Writes the data of a stream's events."""

    def __init__(self, request: TextRequest) -> None:
        super().__init__(request)
        if request.chat:
            self._common["object"] = "chat.completion.chunk"
        self._head = _compact(self._common)[:-1] + ',"choices":['
        self._unopened = set(range(len(request.writers)))

    def chunks(self, deltas: Iterable[Delta]) -> list[bytes]:
        """The events of these deltas; before the first of all, the role of each choice."""
        events = []
        if self._request.chat and self._unopened:
            events = [self._role(i) for i in sorted(self._unopened)]
            if self._request.tool is not None:
                events += [self._call_begin(i) for i in sorted(self._unopened)]
            self._unopened.clear()
        write = self._chat_chunk if self._request.chat else self._completion_chunk
        return events + [write(delta).encode() for delta in deltas]

    def closing(self) -> list[bytes]:
        """What follows the last delta: the usage, if it was asked for."""
        if not self._request.form.include_usage:
            return []
        return [f'{self._head}],"usage":{_compact(self._usage())}}}'.encode()]

    def _role(self, choice: int) -> bytes:
        ids = self._request.prompts[0] if self._request.form.return_token_ids else None
        return (
            f'{self._head}{{"index":{choice},"delta":{{"role":"assistant","content":""}},'
            f'"logprobs":null,"finish_reason":null}}],"prompt_token_ids":{_compact(ids)}}}'
        ).encode()

    def _call_begin(self, choice: int) -> bytes:
        name = self._request.tool.name if self._request.tool is not None else ""
        return (
            f'{self._head}{{"index":{choice},"delta":{{"tool_calls":[{{"index":0,'
            f'"id":{_quote(self._call_id)},"type":"function",'
            f'"function":{{"name":{_quote(name)},"arguments":""}}}}]}},'
            f'"logprobs":null,"finish_reason":null}}]}}'
        ).encode()

    def _chat_chunk(self, delta: Delta) -> str:
        text = _quote(delta.text)
        if self._request.tool is not None:
            said = f'{{"tool_calls":[{{"index":0,"function":{{"arguments":{text}}}}}]}}'
        else:
            said = f'{{"content":{text}}}'
        end = f"{self._end(delta)}}}]}}"
        return f'{self._head}{{"index":{delta.choice},"delta":{said},"logprobs":null,{end}'

    def _completion_chunk(self, delta: Delta) -> str:
        prompt = "null"
        if delta.choice in self._unopened:
            self._unopened.remove(delta.choice)
            if self._request.form.return_token_ids:
                prompt = _compact(self._request.prompt_of(delta.choice))
        return (
            f'{self._head}{{"index":{delta.choice},"text":{_quote(delta.text)},"logprobs":null,'
            f'{self._end(delta)},"prompt_token_ids":{prompt}}}]}}'
        )

    def _end(self, delta: Delta) -> str:
        ids = _compact(delta.token_ids) if self._request.form.return_token_ids else "null"
        if delta.finish is None:
            return f'"finish_reason":null,"token_ids":{ids}'
        finish, stop = _compact(self._finish(delta)), _compact(delta.stop_reason)
        return f'"finish_reason":{finish},"stop_reason":{stop},"token_ids":{ids}'
