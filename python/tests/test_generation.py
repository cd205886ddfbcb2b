"""OpenAI's API over a generator: text, requests, answers. Needs no torch."""

import asyncio
import json

import pytest

from roundhouse.runtimes import openai
from roundhouse.runtimes.chat import Chat
from roundhouse.runtimes.sequences import Busy, End, Text, Token

WHOLE = "Grüße, 世界! and so on"


def decode(ids):
    """A token is a byte."""
    return bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize("prompt", [b"", b"before "])
def test_characters_are_whole(prompt):
    text = Text(decode, list(prompt), [])
    pieces = [text.add(byte) for byte in WHOLE.encode()]
    assert "".join(pieces) + text.end() == WHOLE
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_text_are_not_held_forever():
    text = Text(decode, [], [])
    pieces = [text.add(0xFF) for _ in range(100)]
    assert "".join(pieces) + text.end() == "\ufffd" * 100
    assert max(map(len, pieces)) < 20


@pytest.mark.parametrize(
    ("stop", "want"),
    [
        (["so"], "Grüße, 世界! and "),
        (["d so", "nd"], "Grüße, 世界! a"),
        (["世界!"], "Grüße, "),
        (["界! and so on and on"], None),
        (["G"], ""),
    ],
)
def test_stop_strings(stop, want):
    text, said = Text(decode, [], stop), ""
    for byte in WHOLE.encode():
        said += text.add(byte)
        assert not any(s in said for s in stop)
        if text.stopped:
            break
    assert text.stopped == (want is not None)
    assert said + text.end() == (WHOLE if want is None else want)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "not JSON"),
        (b"[" * 100000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"prompt": 1}', "prompt has to be"),
        (b'{"prompt": []}', "prompt has to be"),
        (b'{"prompt": ["a", [1]]}', "neither text nor tokens"),
        (b'{"prompt": [true]}', "neither text nor tokens"),
        (b'{"prompt": [-1]}', "a token that is none"),
        (b'{"prompt": [256]}', "a token that is none"),
        (b'{"prompt": "x", "n": 65}', "n is 65; it may be 1 to 64"),
        (b'{"prompt": ["x", "y"], "n": 40}', "64 choices"),
        (b'{"prompt": "x", "n": 1.5}', "not a whole number"),
        (b'{"prompt": "x", "temperature": "hot"}', "temperature is not a number"),
        (b'{"prompt": "x", "temperature": NaN}', "temperature is nan"),
        (b'{"prompt": "x", "max_tokens": 0}', "max_tokens is 0"),
        (b'{"prompt": "x", "max_tokens": 64}', "64 fit"),
        (b'{"prompt": "x", "stop": [""]}', "stop has"),
        (b'{"prompt": "x", "stop": 7}', "stop has"),
        (b'{"prompt": "x", "logit_bias": {"256": 1}}', "logit_bias has '256'"),
        (json.dumps({"prompt": "x", "logit_bias": {f"{i:09}": 1 for i in range(1025)}}).encode(),
         "logit_bias has 1025 tokens"),
        (b'{"prompt": "%s"}' % (b"x" * 4097), "prompt 0 has 4097 characters"),
        (b'{"prompt": "x", "stream": "yes"}', "stream is not true or false"),
        (b'{"prompt": "x", "best_of": 2}', "best_of has no effect here"),
        (b'{"prompt": "x", "response_format": {"type": "json_object"}}', "response_format"),
    ],
)
def test_what_is_refused(body, word):
    with pytest.raises(openai.Refused) as refused:
        asyncio.run(Rig().chat.answer(openai.Fields(body), "m", False))
    assert word in str(refused.value)
    assert refused.value.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([], "list of messages"),
        ([{"content": "x"}], "without a role"),
        ([{"role": "user", "content": 7}], "not text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "reads text"),
        ([{"role": "bad", "content": "x"}], "the chat template refuses the messages"),
        ([{"role": "user", "content": ""}], "makes no text"),
        ([{"role": "user", "content": "x" * 2048}] * 2, "messages 0 has 4097 characters"),
        ([{"role": "user", "content": ""}] * 5000, "messages 0 has 4999 characters"),
    ],
)
def test_messages_that_are_refused(messages, word):
    body = json.dumps({"messages": messages}).encode()
    with pytest.raises(openai.Refused) as refused:
        asyncio.run(Rig().chat.answer(openai.Fields(body), "m", True))
    assert word in str(refused.value)


def test_clients_bring_no_template():
    hi = [{"role": "user", "content": "ab"}]
    a = Rig().ask(True, messages=hi, chat_template_kwargs={"enable_thinking": False})
    assert a["choices"][0]["message"]["content"] == "ba!"
    for name in ("chat_template", "tokenize"):
        with pytest.raises(openai.Refused, match=f"may not have {name}"):
            Rig().ask(True, messages=hi, chat_template_kwargs={name: "x"})


class Tokenizer:
    """A token is a byte."""

    chat_template = "yes"

    def __call__(self, texts, **_):
        many = [list(t.encode()) for t in ([texts] if isinstance(texts, str) else texts)]
        return {"input_ids": many[0] if isinstance(texts, str) else many}

    def apply_chat_template(self, messages, chat_template=None, tokenize=True, **_):
        assert all(m["role"] == "user" for m in messages), "only users speak"
        return "".join(m["content"] for m in messages)


class Rig:
    """A Chat whose generator says each prompt backwards, a byte at a time."""

    vocabulary = 256
    defaults = None

    def __init__(self, hang=False, busy=False):
        self.chat = Chat(Tokenizer(), self, 64, False)
        self.sequences, self.hang, self.busy = [], hang, busy

    decode = staticmethod(decode)

    def start(self, sequences):
        if self.busy:
            raise Busy("no place")
        self.sequences = sequences
        for sequence in sequences:
            s = sequence.sampling
            logprob = None if s.logprobs is None else -0.5
            for byte in sequence.prompt[::-1][: s.max_tokens]:
                sequence.put(Token(byte, chr(byte), logprob, ((byte, -0.5),) * (s.logprobs or 0)))
            if not self.hang:
                reason = "length" if s.max_tokens < len(sequence.prompt) else "stop"
                sequence.put(End("!", reason))

    def ask(self, chat=False, **body):
        """The answer to a request, read whole."""

        async def answered():
            answer = await self.chat.answer(openai.Fields(json.dumps(body).encode()), "m", chat)
            if hasattr(answer, "body_iterator"):
                events = [e async for e in answer.body_iterator]
                assert all(e.startswith(b"data: ") and e.endswith(b"\n\n") for e in events)
                return events
            return json.loads(answer.body)

        return asyncio.run(answered())


def test_completions():
    rig = Rig()
    a = rig.ask(prompt=["abc", "xy"], n=2, seed=7, logprobs=1)
    assert [c["text"] for c in a["choices"]] == ["cba!", "cba!", "yx!", "yx!"]
    assert [c["index"] for c in a["choices"]] == [0, 1, 2, 3]
    assert a["usage"] == {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}
    assert a["choices"][0]["logprobs"] == {
        "tokens": ["c", "b", "a"], "token_logprobs": [-0.5] * 3, "text_offset": [0, 1, 2],
        "top_logprobs": [{"c": -0.5}, {"b": -0.5}, {"a": -0.5}],
    }
    assert [s.sampling.seed for s in rig.sequences] == [7, 8, 9, 10]
    assert all(s.ended for s in rig.sequences)
    assert rig.ask(prompt="abcdef", max_tokens=2)["choices"][0]["finish_reason"] == "length"


def test_chat_stream():
    hi = [{"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]}]
    options = {"include_usage": True}
    events = Rig().ask(True, messages=hi, n=2, stream=True, stream_options=options)
    assert events[-1] == b"data: [DONE]\n\n"
    chunks = [json.loads(e[6:]) for e in events[:-1]]
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 6
    for index in (0, 1):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == "cba!"
        assert [c["finish_reason"] for c in mine][-2:] == [None, "stop"]


def test_busy():
    with pytest.raises(openai.Refused) as refused:
        Rig(busy=True).ask(prompt="x")
    assert refused.value.status == 429
    assert refused.value.body()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_sequences(stream):
    rig = Rig(hang=True)

    async def leaves():
        fields = openai.Fields(json.dumps({"prompt": "ab", "stream": stream}).encode())

        async def reads():
            answer = await rig.chat.answer(fields, "m", False)
            async for _ in answer.body_iterator:
                pass

        task = asyncio.ensure_future(reads())
        while not rig.sequences:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert not rig.sequences[0].ended
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leaves())
    assert rig.sequences[0].ended
