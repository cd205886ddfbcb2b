"""Asks engines through the gateway with people's SDKs: sdks.py GATEWAY ENGINE

Each check prints its line; the first that fails ends the script with a trace.
"""

import json
import sys
import urllib.error
import urllib.request

import anthropic
import openai

gateway, engine = sys.argv[1:3]
client = openai.OpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0, timeout=120)
claude = anthropic.Anthropic(base_url=gateway, api_key="none", max_retries=0, timeout=120)
HI = [{"role": "user", "content": "hello there"}]
SCHEMA = {
    "type": "object",
    "properties": {"fits": {"type": "boolean"}},
    "required": ["fits"],
    "additionalProperties": False,
}
WEATHER = {
    "name": "weather",
    "strict": True,
    "description": "The weather of a town",
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string", "enum": ["Bern"]}},
        "required": ["town"],
        "additionalProperties": False,
    },
}
# What has a random model begin a tool call, and end after it: tokens of llama's, and
# quote, colon, braces and end of text of the others', rather than one blank after another.
JSON = {"5": 100, "29": 100, "94": 100, "96": 100, "1": 100}
BIAS = {"llama": {"267": 2000, "264": 4000}, "vllm": JSON, "sglang": JSON}


def post(path, body):
    """Returns status and JSON of a path that no SDK has."""
    request = urllib.request.Request(gateway + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def models(model):
    assert model in [m.id for m in client.models.list()]
    assert client.models.retrieve(model).id == model


def completions(model):
    a = client.completions.create(model=model, prompt="hello", max_tokens=8)
    assert len(a.choices[0].text) >= 8, a
    assert a.usage.completion_tokens == 8 and a.choices[0].finish_reason == "length", a


def seeded(model):
    def once():
        return client.completions.create(model=model, prompt="hello", max_tokens=16, temperature=0, seed=1).choices[0].text

    assert once() == once()


def chat(model):
    a = client.chat.completions.create(model=model, messages=HI, max_tokens=8)
    assert len(a.choices[0].message.content) >= 8 and a.model == model, a
    assert a.usage.completion_tokens == 8, a


def stream(model):
    text, usage, finish = "", None, None
    for part in client.chat.completions.create(
        model=model, messages=HI, max_tokens=40, stream=True, stream_options={"include_usage": True}
    ):
        usage = part.usage or usage
        for choice in part.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert len(text) >= 40 and finish == "length" and usage.completion_tokens == 40, (text, finish, usage)


def several(model):
    a = client.completions.create(model=model, prompt="hello", max_tokens=4, n=3, temperature=1)
    assert [c.index for c in sorted(a.choices, key=lambda c: c.index)] == [0, 1, 2], a


def logprobs(model):
    a = client.chat.completions.create(model=model, messages=HI, max_tokens=3, logprobs=True, top_logprobs=2)
    tokens = a.choices[0].logprobs.content
    assert len(tokens) == 3 and all(t.logprob <= 0 and len(t.top_logprobs) == 2 for t in tokens), a


def json_schema(model):
    a = client.chat.completions.create(
        model=model,
        messages=HI,
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    )
    assert isinstance(json.loads(a.choices[0].message.content)["fits"], bool), a


def tools(model):
    ask = {
        "model": model,
        "messages": HI,
        "max_tokens": 200,
        "tools": [{"type": "function", "function": WEATHER}],
        "tool_choice": "required",
        "logit_bias": BIAS[engine],
    }
    a = client.chat.completions.create(**ask)
    assert a.choices[0].message.tool_calls, a
    call = a.choices[0].message.tool_calls[0].function
    assert call.name == "weather" and json.loads(call.arguments) == {"town": "Bern"}, a
    name, arguments = "", ""
    for part in client.chat.completions.create(**ask, stream=True):
        for call in (part.choices[0].delta.tool_calls or []) if part.choices else []:
            if call.index == 0:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert name == "weather" and json.loads(arguments) == {"town": "Bern"}, (name, arguments)


def responses(model):
    a = client.responses.create(model=model, input="hello", max_output_tokens=16)
    assert len(a.output_text) >= 16, a
    events = [e.type for e in client.responses.create(model=model, input="hello", max_output_tokens=16, stream=True)]
    assert events[0] == "response.created" and events.count("response.output_text.delta") >= 4, events
    assert events[-1] in ("response.completed", "response.incomplete"), events


def messages(model):
    a = claude.messages.create(model=model, max_tokens=8, messages=HI)
    assert len(a.content[0].text) >= 8 and a.usage.output_tokens == 8 and a.stop_reason == "max_tokens", a
    with claude.messages.stream(model=model, max_tokens=40, messages=HI) as s:
        text = "".join(s.text_stream)
        last = s.get_final_message()
    assert len(text) >= 40 and last.usage.output_tokens == 40, last


def count_tokens(model):
    few = claude.messages.count_tokens(model=model, messages=HI).input_tokens
    more = claude.messages.count_tokens(model=model, messages=[{"role": "user", "content": "hello " * 20}]).input_tokens
    assert 0 < few < more, (few, more)


def tokenize(model):
    status, a = post("/tokenize", {"model": model, "content": "hello there", "prompt": "hello there"})
    assert status == 200 and len(a["tokens"]) > 1, a
    status, b = post("/detokenize", {"model": model, "tokens": a["tokens"]})
    assert status == 200 and "hello there" in json.dumps(b), b


def embeddings(model):
    a = client.embeddings.create(model=model, input=["hello", "hello", "there"])
    v = [d.embedding for d in a.data]

    def apart(a, b):
        return max(abs(x - y) for x, y in zip(a, b, strict=True))

    assert len(v) == 3 and len(v[0]) == (64 if engine in ("llama", "huggingface") else 128) and apart(v[0], v[1]) < 1e-5 < apart(v[0], v[2]), v


def rerank(model):
    status, a = post("/v1/rerank", {"model": model, "query": "hello", "documents": ["hello there", "a town", "x"]})
    assert status == 200 and sorted(r["index"] for r in a["results"]) == [0, 1, 2], a
    assert len({r["relevance_score"] for r in a["results"]}) == 3, a


def score(model):
    status, a = post("/v1/score", {"model": model, "text_1": "hello", "text_2": ["hello", "a town"]})
    assert status == 200 and a["data"][0]["score"] > a["data"][1]["score"], a


def label_scores(model):
    """SGLang's score: how probable each label is after the query and each item."""
    ask = {"model": model, "query": "hello", "items": ["there", "a town", "a town"], "label_token_ids": [80, 81], "apply_softmax": True}
    status, a = post("/v1/score", ask)
    assert status == 200 and len(a["scores"]) == 3, a
    assert all(abs(sum(s) - 1) < 1e-3 for s in a["scores"]) and a["scores"][0] != a["scores"][1], a
    assert a["usage"]["prompt_tokens"] > 0, a


def judges(model):
    """SGLang's rerank: a list, the best first."""
    status, a = post("/v1/rerank", {"model": model, "query": "hello", "documents": ["hello there", "a town", "x"]})
    assert status == 200 and sorted(r["index"] for r in a) == [0, 1, 2], a
    scores = [r["score"] for r in a]
    assert len(set(scores)) == 3 and scores == sorted(scores, reverse=True) and all(0 < s < 1 for s in scores), a


def refuses(path, body, *words):
    """The engine's own refusal comes through, as JSON."""

    def check(model):
        status, a = post(path, {"model": model, **body})
        assert 400 <= status <= 501 and all(w in json.dumps(a) for w in words), (status, a)

    check.__name__ = "refuses " + path
    return check


TEXT = [models, completions, seeded, chat, stream, several, logprobs, json_schema]
CHECKS = {
    "llama": [
        ("tiny", [*TEXT, tools, responses, messages, count_tokens, tokenize]),
        ("tiny", [refuses("/v1/embeddings", {"input": "x"}, "--embeddings"), refuses("/v1/rerank", {"query": "x", "documents": ["y"]}, "--reranking")]),
        ("embed", [embeddings]),
        ("rank", [rerank]),
    ],
    "vllm": [
        ("tiny", [*TEXT, tools, responses, messages, count_tokens, tokenize]),
        ("tiny", [refuses("/v1/embeddings", {"input": "x"}), refuses("/v1/rerank", {"query": "x", "documents": ["y"]})]),
    ],
    "huggingface": [
        ("tiny", [models, completions, seeded, chat, stream, several, logprobs]),
        ("tiny", [refuses("/v1/embeddings", {"input": "x"}), refuses("/v1/responses", {"input": "x"})]),
        ("embed", [embeddings, rerank]),
        ("rank", [rerank]),
    ],
    "sglang": [("tiny", [*TEXT, tools, responses, messages, count_tokens, tokenize, label_scores])],
    "sglang-judges": [("tiny", [judges, label_scores])],
    "sglang-embeds": [("tiny", [embeddings])],
    "vllm-pooling": [("tiny", [embeddings, rerank, score, tokenize])],
}

for model, checks in CHECKS[engine]:
    for check in checks:
        check(model)
        print(f"{engine} {model}: {check.__name__}")
