#!/usr/bin/env python3
"""Asks `roundhouse up` with OpenAI's package.

usage: openai_client.py HOST:PORT QUICKSTART
"""

import asyncio
import sys

try:
    import openai
except ImportError:
    print("the openai package is not installed")
    sys.exit(77)

TIMEOUT = 60  # seconds
HELLO = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say <hello> & größe 🚂"}]


def models(client):
    """The list, and one model of it."""
    listed = {m.id: m for m in client.models.list()}
    assert {"chat", "iris", "digits"} <= set(listed), listed
    assert all(m.object == "model" and m.owned_by == "default" and m.created > 0 for m in listed.values()), listed
    assert client.models.retrieve("chat").id == "chat"


def chat(client):
    """A chat completion, whole and as a stream."""
    whole = client.chat.completions.create(model="chat", messages=HELLO, max_tokens=20)
    assert whole.object == "chat.completion" and whole.model == "chat", whole
    assert whole.choices[0].message.role == "assistant" and whole.choices[0].message.content, whole
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and 0 < usage.completion_tokens <= 20, usage

    text, finish, used = "", None, None
    stream = client.chat.completions.create(model="chat", messages=HELLO, max_tokens=20, stream=True, stream_options={"include_usage": True})
    chunks = 0
    for chunk in stream:
        chunks += 1
        if chunk.usage:
            used = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert text and finish in ("stop", "length") and chunks > 2, (text, finish, chunks)
    assert used and 0 < used.completion_tokens <= 20, used


def text(client):
    """A completion of text, and embeddings."""
    whole = client.completions.create(model="chat", prompt="Once", max_tokens=8)
    assert whole.object == "text_completion" and whole.choices[0].text, whole
    parts = [c.choices[0].text for c in client.completions.create(model="chat", prompt="Once", max_tokens=8, stream=True) if c.choices]
    assert "".join(parts), parts
    vectors = client.embeddings.create(model="chat", input=["one", "two"])
    assert [v.index for v in vectors.data] == [0, 1] and vectors.data[0].embedding, vectors


def abandoned(client):
    """A stream that its reader leaves does not keep the next from an answer."""
    for _ in range(5):
        with client.chat.completions.create(model="chat", messages=HELLO, stream=True, max_tokens=500) as stream:
            next(iter(stream))
    assert client.chat.completions.create(model="chat", messages=HELLO, max_tokens=2).choices


def errors(client):
    """Errors have the package's own classes."""
    def raises(kind, call):
        try:
            call()
        except kind as e:
            return e
        raise AssertionError(f"no {kind.__name__}")

    missing = raises(openai.NotFoundError, lambda: client.chat.completions.create(model="nope", messages=HELLO))
    assert missing.code == "model_not_found" and missing.param == "model" and "iris" in missing.message, missing.body
    raises(openai.NotFoundError, lambda: client.models.retrieve("nope"))
    raises(openai.BadRequestError, lambda: client.post("/chat/completions", body={"messages": HELLO}, cast_to=object))
    raises(openai.BadRequestError, lambda: client.post("/chat/completions", body={"model": 7}, cast_to=object))
    # What a server behind refuses is its own affair, and comes as it is.
    wrong = raises(openai.APIStatusError, lambda: client.chat.completions.create(model="iris", messages=HELLO))
    assert wrong.status_code in (404, 405), wrong
    answered = client.chat.completions.with_raw_response.create(model="chat", messages=HELLO, max_tokens=1, extra_headers={"x-request-id": "mine"})
    assert answered.headers["x-request-id"] == "mine", answered.headers


async def concurrent(address):
    """Streams side by side."""
    async with openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="none", timeout=TIMEOUT, max_retries=0) as client:
        async def one():
            stream = await client.chat.completions.create(model="chat", messages=HELLO, max_tokens=10, stream=True)
            return len([c async for c in stream])
        counts = await asyncio.gather(*(one() for _ in range(20)))
        assert all(n > 2 for n in counts), counts


def main():
    address = sys.argv[1]
    for base in ("v1", "openai/v1"):
        client = openai.OpenAI(base_url=f"http://{address}/{base}", api_key="none", timeout=TIMEOUT, max_retries=0)
        models(client)
        chat(client)
        text(client)
        abandoned(client)
        errors(client)
    asyncio.run(concurrent(address))


if __name__ == "__main__":
    main()
