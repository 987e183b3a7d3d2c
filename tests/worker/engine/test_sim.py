"""The simulated engine's answers: texts, token ids, limits, shapes, refusals."""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode
from statistics import mean
from typing import Any

import pytest
from tests.worker.engine.calls import PROMPT, answer, chat, chunks, completion, post, said, sim

from forebay_worker.engine import EngineCall, EngineRejected
from forebay_worker.engine.profile import Profile
from forebay_worker.engine.sim import SimEngine

pytestmark = pytest.mark.anyio


async def test_the_same_request_gives_the_same_text_on_any_engine() -> None:
    """Whichever engine, profile, id, and way of asking; other seeds and prompts differ."""
    async with sim() as one, sim("default") as two, sim(seed=1) as other:
        text = said(await answer(one, chat())).text
        assert text == said(await answer(two, chat("r-2"))).text
        assert text == said(await chunks(one, chat(stream=True))).text
        assert text != said(await answer(other, chat())).text
        assert text != said(await answer(one, chat(messages=[{**PROMPT[0], "content": "?"}]))).text


@pytest.mark.parametrize("call", [chat, completion])
async def test_a_text_goes_on_from_token_ids_wherever_it_was_cut(call: Any) -> None:
    """Prompt ids and received ids as the prompt give exactly the rest, character halves too."""
    asked: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True, "return_token_ids": True}
    async with sim() as engine:
        whole = said(got := await chunks(engine, call(stream=True, **asked)))
        prompt = prompt_ids(got)
        assert "" in texts(got)  # the first half of a character
        for cut in range(200):
            head = "".join(texts(got)[:cut])
            asked["max_tokens"] = 200 - cut
            again = completion(prompt=prompt + whole.ids[:cut], **asked)
            rest = said(await answer(engine, again))
            assert (head + rest.text, whole.ids[:cut] + rest.ids) == (whole.text, whole.ids)


def prompt_ids(got: list[Any]) -> list[int]:
    first = got[0]
    ids = first.get("prompt_token_ids") or first["choices"][0]["prompt_token_ids"]
    assert isinstance(ids, list)
    return ids


def texts(got: list[Any]) -> list[str]:
    """What each token added."""
    parts = [choice for chunk in got for choice in chunk["choices"] if choice.get("token_ids")]
    return [p["delta"]["content"] if "delta" in p else p["text"] for p in parts]


async def test_a_natural_end_is_the_same_after_a_cut() -> None:
    """A text ends where it would have ended, with the end-of-text token counted."""
    async with sim() as engine:
        whole = await answer(engine, chat(return_token_ids=True))
        assert said(whole).finish == "stop"
        assert whole["usage"]["completion_tokens"] == len(said(whole).ids)
        prompt = whole["prompt_token_ids"] + said(whole).ids[:5]
        rest = await answer(
            engine, completion(prompt=prompt, max_tokens=5_000, return_token_ids=True)
        )
    assert said(rest).ids == said(whole).ids[5:]
    assert said(rest).finish == "stop"


async def test_a_chat_goes_on_by_text() -> None:
    """`continue_final_message` takes up the assistant's own words."""
    async with sim() as engine:
        whole = said(await answer(engine, chat(max_tokens=60, ignore_eos=True)))
        head = said(await answer(engine, chat(max_tokens=20, ignore_eos=True))).text
        messages = [*PROMPT, {"role": "assistant", "content": head}]
        flags = {"continue_final_message": True, "add_generation_prompt": False}
        again = chat(messages=messages, max_tokens=40, ignore_eos=True, **flags)
        assert head + said(await answer(engine, again)).text == whole.text


async def test_lengths_have_a_mean_of_100_and_a_heavy_tail() -> None:
    """A limit that is absent leaves it to the prompt how long the answer is."""
    async with sim() as engine:
        lengths = []
        for i in range(600):
            got = await answer(engine, chat(messages=[{"role": "user", "content": f"tell me {i}"}]))
            lengths.append(got["usage"]["completion_tokens"])
    lengths.sort()
    assert 85 < mean(lengths) < 115
    assert lengths[300] < 75
    assert lengths[-1] > 500


async def test_texts_hold_characters_of_many_bytes() -> None:
    """Two, three and four bytes, the last in two tokens of which the first has no text."""
    async with sim() as engine:
        got = await chunks(
            engine, chat(stream=True, max_tokens=2_000, ignore_eos=True, return_token_ids=True)
        )
    sizes = {len(character.encode()) for character in said(got).text}
    assert sizes == {1, 2, 3, 4}
    tokens = texts(got)
    assert all(tokens[i + 1] == " 🙂" for i, text in enumerate(tokens[:-1]) if text == "")


async def test_a_completion_without_a_limit_gets_16_tokens() -> None:
    """As vLLM: who resumes a text has to say how much is left."""
    async with sim() as engine:
        got = await answer(engine, completion(ignore_eos=True))
    assert (got["usage"]["completion_tokens"], said(got).finish) == (16, "length")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_limits_end_a_text(name: str) -> None:
    """Both names of the limit count."""
    async with sim() as engine:
        got = await answer(engine, chat(**{name: 3}, ignore_eos=True, return_token_ids=True))
    assert (len(said(got).ids), said(got).finish) == (3, "length")


async def test_min_tokens_holds_the_end_back() -> None:
    """Neither the natural end nor a stop text comes before."""
    async with sim() as engine:
        natural = (await answer(engine, chat()))["usage"]["completion_tokens"]
        got = await answer(engine, chat(min_tokens=natural + 10, stop=[" "]))
        assert got["usage"]["completion_tokens"] > natural + 10
        assert said(got).finish == "stop"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_stop_text_ends_the_answer_before_it(streaming: bool) -> None:
    """Also where it spans tokens, and no stream shows its begin."""
    async with sim() as engine:
        text = said(await answer(engine, chat())).text
        stop = text[37:45]
        ask = chat(stop=["never said", stop], stream=streaming)
        got = await (chunks if streaming else answer)(engine, ask)
        last = got[-1] if streaming else got
        assert said(got).text == text[: text.index(stop)]
        assert (said(got).finish, last["choices"][0]["stop_reason"]) == ("stop", stop)
        kept = await answer(engine, chat(stop=stop, include_stop_str_in_output=True))
        assert said(kept).text == text[: text.index(stop)] + stop


async def test_the_first_stop_text_counts() -> None:
    """Not the first in the list, where one token holds several."""
    async with sim() as engine:
        word = said(await answer(engine, chat(max_tokens=1))).text
        got = await answer(engine, chat(stop=[word[3], word[2], word[4]]))
    assert (said(got).text, got["choices"][0]["stop_reason"]) == (word[:2], word[2])


async def test_choices_are_numbered_by_prompt() -> None:
    """n choices for each prompt; the prompt is charged once."""
    ask = {"prompt": ["one", [1, 2, 3]], "n": 2, "max_tokens": 4, "ignore_eos": True}
    async with sim("default") as engine:
        got = await answer(engine, completion(**ask))
        streamed = await chunks(engine, completion(**ask, stream=True))
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2, 3]
    assert got["usage"] == {"prompt_tokens": 4, "completion_tokens": 16, "total_tokens": 20}
    everything = {said(got, i).text for i in range(4)}
    assert len(everything) == 4
    assert {said(streamed, i).text for i in range(4)} == everything


async def test_a_chat_stream_has_vllm_s_shape() -> None:
    """Role first, then text, then the usage that was asked for, under one id."""
    ask = chat("r-7", stream=True, max_tokens=2, stream_options={"include_usage": True})
    async with sim() as engine:
        role, first, last, usage = await chunks(engine, ask)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0]["finish_reason"] is None
    assert first["choices"][0]["token_ids"] is None
    assert last["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 2)
    assert {chunk["id"] for chunk in (role, first, last, usage)} == {"chatcmpl-r-7"}
    assert {chunk["object"] for chunk in (role, first, last, usage)} == {"chat.completion.chunk"}


TOOLS = [
    {"type": "function", "function": {"name": "other"}},
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 3},
                    "unit": {"enum": ["C", "F"]},
                    "places": {"type": "array", "items": {"$ref": "#/$defs/place"}},
                },
                "$defs": {"place": {"anyOf": [{"type": "boolean"}]}},
            },
        },
    },
]


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_forced_tool_is_called(streaming: bool) -> None:
    """The arguments are JSON that fits the schema."""
    choice = {"type": "function", "function": {"name": "weather"}}
    async with sim() as engine:
        if streaming:
            got = await chunks(engine, chat(tools=TOOLS, tool_choice=choice, stream=True))
            calls = [c for g in got for c in g["choices"][0]["delta"].get("tool_calls", [])]
            name = calls[0]["function"]["name"]
            arguments = "".join(c["function"]["arguments"] for c in calls)
        else:
            got = await answer(engine, chat(tools=TOOLS, tool_choice=choice))
            (one,) = got["choices"][0]["message"]["tool_calls"]
            name, arguments = one["function"]["name"], one["function"]["arguments"]
    fields = json.loads(arguments)
    assert name == "weather"
    assert isinstance(fields.pop("city"), str)
    assert fields == {"days": 3, "unit": "C", "places": [True]}


async def test_a_required_tool_is_the_first() -> None:
    """`required` leaves the choice to the model, and finishes with `tool_calls`."""
    async with sim() as engine:
        got = await answer(engine, chat(tools=TOOLS, tool_choice="required"))
        free = await answer(engine, chat(tools=TOOLS, tool_choice="auto"))
    assert got["choices"][0]["finish_reason"] == "tool_calls"
    assert got["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "other"
    assert isinstance(free["choices"][0]["message"]["content"], str)


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {}}}}},
        {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}},
    ],
)
async def test_a_structured_answer_is_an_object(form: dict[str, Any]) -> None:
    """Whatever the schema says, the text is a JSON object."""
    async with sim() as engine:
        got = said(await answer(engine, chat(response_format=form)))
    assert isinstance(json.loads(got.text), dict)


async def test_embeddings_are_unit_vectors_of_their_text() -> None:
    """Equal texts, equal vectors; base64 holds the same numbers as floats of four bytes."""
    async with sim("default") as engine:
        got = await answer(engine, post("/v1/embeddings", input=["a", "b", "a"], dimensions=100))
        packed = await answer(
            engine, post("/v1/embeddings", input="a", dimensions=100, encoding_format="base64")
        )
    a, b, again = (item["embedding"] for item in got["data"])
    assert a == again != b
    assert math.hypot(*a) == pytest.approx(1)
    assert struct.unpack("<100f", b64decode(packed["data"][0]["embedding"])) == pytest.approx(a)
    assert got["usage"]["prompt_tokens"] == 3


async def test_scores_and_ranks_put_the_equal_text_first() -> None:
    """One text against many, and the same as a ranking."""
    documents = ["the sea", "the sky", "the sun"]
    async with sim() as engine:
        scores = await answer(engine, post("/v1/score", text_1="the sky", text_2=documents))
        pairs = await answer(engine, post("/v1/score", queries=documents, documents=documents))
        ranks = await answer(
            engine, post("/v1/rerank", query="the sky", documents=documents, top_n=2)
        )
    assert max(scores["data"], key=lambda item: item["score"])["index"] == 1
    assert [item["score"] for item in pairs["data"]] == pytest.approx([1, 1, 1])
    best = ranks["results"][0]
    assert (best["index"], best["document"]) == (1, {"text": "the sky"})
    assert len(ranks["results"]) == 2


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (EngineCall("r", "/v1/chat/completions", b"{no", False), "body"),
        (EngineCall("r", "/v1/chat/completions", b"[]", False), "body"),
        (post("/v1/chat/completions"), "body.messages"),
        (chat(messages="hi"), "messages"),
        (chat(messages=[]), None),
        (chat(messages=[{"content": "no role"}]), "body.messages"),
        (chat(messages=[{"role": "user", "content": 7}]), "body.messages"),
        (chat(max_tokens="10"), "max_tokens"),
        (chat(max_tokens=True), "max_tokens"),
        (chat(max_tokens=0), "max_tokens"),
        (chat(max_tokens=65), "max_tokens"),
        (chat(min_tokens=11, max_tokens=10), None),
        (chat(messages=[{"role": "user", "content": "word " * 64}]), "input_tokens"),
        (chat(n=0), "n"),
        (chat(stream="yes"), "stream"),
        (chat(stream_options={"include_usage": True}), "stream_options"),
        (chat(temperature=-1), "temperature"),
        (chat(top_p=1.5), "top_p"),
        (chat(stop=[""]), None),
        (chat(stop=[1]), "stop"),
        (chat(tool_choice="required"), "tool_choice"),
        (chat(tools=TOOLS, tool_choice={"function": {"name": "absent"}}), "tool_choice"),
        (chat(tools=TOOLS, tool_choice=5), "tool_choice"),
        (chat(response_format={"type": "xml"}), "response_format"),
        (chat(sim={"fail": "typo"}), "sim"),
        (post("/v1/completions"), "prompt"),
        (completion(prompt=[]), "prompt"),
        (completion(prompt=["a", 1]), "prompt"),
        (completion(prompt=[1 << 40]), "prompt"),
        (post("/v1/embeddings"), "input"),
        (post("/v1/embeddings", input="a", encoding_format="hex"), "encoding_format"),
        (post("/v1/score", text_1="a"), None),
        (post("/v1/score", text_1=["a", "b"], text_2=["a", "b", "c"]), None),
        (post("/v1/rerank", query="a"), None),
    ],
)
async def test_bad_fields_are_refused_as_vllm_does(call: EngineCall, param: str | None) -> None:
    """400 with message, type, param and code; nothing runs."""
    profile = Profile(max_model_len=64)
    async with sim(profile) as engine:
        with pytest.raises(EngineRejected) as caught:
            await answer(engine, call)
        assert (await engine.load()).running == 0
    error = json.loads(caught.value.body)["error"]
    assert (caught.value.status, error["code"], error["param"]) == (400, 400, param)
    assert error["message"]
    assert "Request" in error["type"]


@pytest.mark.parametrize(
    ("call", "type_"),
    [(chat(model="absent"), "NotFoundError"), (post("/v1/absent"), None)],
)
async def test_an_unknown_model_or_path_is_404(call: EngineCall, type_: str | None) -> None:
    """Passed through as vLLM's own answer."""
    async with sim(models=["sim", "other"]) as engine:
        with pytest.raises(EngineRejected) as caught:
            await answer(engine, call)
        assert await engine.models() == ["sim", "other"]
    assert caught.value.status == 404
    assert json.loads(caught.value.body).get("error", {}).get("type") == type_


@pytest.mark.parametrize(
    "arguments", [{"profile": "fast"}, {"models": []}, {"speed": 0}, {"speed": -1}]
)
def test_a_wrong_engine_is_not_built(arguments: dict[str, Any]) -> None:
    """Bad settings fail at once."""
    with pytest.raises(ValueError, match=r"profile|model"):
        SimEngine(**arguments)
