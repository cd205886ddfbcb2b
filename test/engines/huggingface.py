"""Compares our runtime for Hugging Face models with transformers itself.

huggingface.py make FOLDER writes tiny random BERTs, one for each task.
huggingface.py ask GATEWAY FOLDER asks the services of their names, and of "tiny",
the Llama that hf_model.py wrote to FOLDER/model.
"""

import concurrent.futures
import json
import pathlib
import shutil
import sys
import urllib.error
import urllib.request

import openai
import torch
import transformers

WORDS = "hello there what is a roundhouse building for locomotives the quick brown fox".split()
TEXTS = ["hello there", "what is a roundhouse building for", "fox"]
# More than go through a model together, of many lengths, the longest amid them.
MANY = [" ".join((WORDS * 3)[i % 5 : i % 5 + (i * 7) % 29 + 1]) for i in range(40)]
TASKS = {
    "embed": transformers.BertModel,
    "rank": transformers.BertForSequenceClassification,
    "classify": transformers.BertForSequenceClassification,
    "tokens": transformers.BertForTokenClassification,
    "mask": transformers.BertForMaskedLM,
}


def make(folder):
    torch.manual_seed(3)
    root = pathlib.Path(folder)
    (root / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    tokenizer = transformers.BertTokenizer(str(root / "vocab.txt"), model_max_length=32)
    for name, kind in TASKS.items():
        config = transformers.BertConfig(
            vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=128, max_position_embeddings=32, num_labels=1 if name == "rank" else 3,
            initializer_range=0.5,
        )
        kind(config).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
        # None of a model's files is code that runs.
        (root / name / "torch.py").write_text("raise SystemExit('a file of the model ran')")
    (root / "embed" / "modules.json").write_text("[]")
    (root / "embed" / "1_Pooling").mkdir()
    (root / "embed" / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    # One cache for all sequences, and stops that generate() wants a tokenizer for.
    path = root / "model" / "generation_config.json"
    said = {**json.loads(path.read_text()), "cache_implementation": "static", "stop_strings": ["never said"]}
    path.write_text(json.dumps(said))
    # The same, and a letter ends it.
    shutil.copytree(root / "model", root / "ended")
    said["eos_token_id"] = transformers.AutoTokenizer.from_pretrained(root / "model").convert_tokens_to_ids("Z")
    (root / "ended" / "generation_config.json").write_text(json.dumps(said))
    config = transformers.BertConfig(vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=1, architectures=["BertModel"])
    (root / "pickled").mkdir()
    config.save_pretrained(root / "pickled")
    tokenizer.save_pretrained(root / "pickled")
    torch.save(transformers.BertModel(config).state_dict(), root / "pickled" / "pytorch_model.bin")


def post(path, body):
    request = urllib.request.Request(sys.argv[2] + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def near(got, want):
    assert torch.allclose(torch.tensor(got), torch.as_tensor(want), atol=1e-4), (got, want)


def generates(client, root):
    """Greedy tokens are those of generate, alone and beside others; so is a chat's."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(root / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(root / "model").eval()
    model.generation_config.cache_implementation = model.generation_config.stop_strings = None

    def expected(ids, count):
        prompt = torch.tensor([ids])
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False)
        return tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)

    def asked(text):
        a = client.completions.create(model="tiny", prompt=text, max_tokens=24, temperature=0)
        assert a.usage.prompt_tokens == len(tokenizer(text)["input_ids"]), a
        return a.choices[0].text

    want = [expected(tokenizer(text)["input_ids"], 24) for text in TEXTS]
    with concurrent.futures.ThreadPoolExecutor(6) as together:
        assert list(together.map(asked, TEXTS * 4)) == want * 4
    tokens = client.completions.create(model="tiny", prompt=tokenizer(TEXTS[1])["input_ids"], max_tokens=24, temperature=0)
    assert tokens.choices[0].text == want[1], tokens
    hi = [{"role": "user", "content": "hello there"}]
    text = tokenizer.apply_chat_template(hi, tokenize=False, add_generation_prompt=True)
    want = expected(tokenizer(text, add_special_tokens=False)["input_ids"], 32)
    got = client.chat.completions.create(model="tiny", messages=hi, max_tokens=32, temperature=0)
    assert got.choices[0].message.content == want, (got, want)
    parts = client.chat.completions.create(model="tiny", messages=hi, max_tokens=32, temperature=0, stream=True)
    pieces = [c.delta.content or "" for p in parts for c in p.choices]
    assert "".join(pieces) == want and len(pieces) > 8, pieces
    stop = want[10:14]
    cut = client.chat.completions.create(model="tiny", messages=hi, max_tokens=32, temperature=0, stop=stop)
    assert cut.choices[0].message.content == want[: want.index(stop)] and cut.choices[0].finish_reason == "stop", cut


def samples(client, root):
    """A seed gives one answer again, and choices of their own."""

    def asked(**options):
        a = client.completions.create(model="tiny", prompt="hello", max_tokens=12, n=3, **options)
        return [c.text for c in sorted(a.choices, key=lambda c: c.index)]

    assert asked(seed=5) == asked(seed=5) != asked(seed=6) and len(set(asked(seed=5))) > 1
    assert len(set(asked(seed=5, top_p=0))) == 1 and asked(top_p=0) == asked(temperature=0)


def ends(client, root):
    """The model's own end ends a sequence, unless the request ignores it."""

    end = transformers.AutoTokenizer.from_pretrained(root / "model").convert_tokens_to_ids("Z")

    def asked(**options):
        a = client.completions.create(model="ended", prompt="hello", max_tokens=5, logit_bias={end: 100}, extra_body=options)
        return a.usage.completion_tokens, a.choices[0].finish_reason

    assert asked() == (1, "stop") and asked(ignore_eos=True) == (5, "length"), (asked(), asked(ignore_eos=True))


def penalized(client, root):
    """A penalty is for what was said: without one the bias says the same again."""
    a, b = transformers.AutoTokenizer.from_pretrained(root / "model").convert_tokens_to_ids(["A", "B"])

    def asked(**options):
        bias = {a: 100, b: 75}
        said = client.completions.create(model="tiny", prompt="hello", max_tokens=40, temperature=0, logit_bias=bias, **options)
        return set(said.choices[0].text)

    assert asked() == {"A"} and asked(presence_penalty=2, frequency_penalty=2) == {"A", "B"}


def refuses(client, root):
    for body, word in (
        ({"prompt": "x", "max_tokens": 5000}, "2048 fit"), ({"prompt": "x", "n": 65}, "n is 65"), ({"prompt": [9999]}, "prompt"),
        ({"prompt": "x", "temperature": 3}, "temperature"), ({"prompt": "x", "tools": [1]}, "tools"), ({"prompt": {}}, "prompt"),
    ):
        status, a = post("/v1/completions", {"model": "tiny", **body})
        assert status == 400 and word in a["error"]["message"], (status, a)
    for path, body in (("/v1/embeddings", {"input": "x"}), ("/v1/rerank", {"query": "x", "documents": ["y"]})):
        status, a = post(path, {"model": "tiny", **body})
        assert status == 400 and "text-generation" in a["error"]["message"], (status, a)
    status, a = post("/v1/completions", {"model": "mask", "prompt": "x"})
    assert status == 400 and "fill-mask" in a["error"]["message"], (status, a)


def encoder(root, name, kind=None):
    tokenizer = transformers.AutoTokenizer.from_pretrained(root / name)
    model = (kind or TASKS[name]).from_pretrained(root / name).eval()

    def run(*texts):
        with torch.inference_mode():
            return model(**tokenizer(*texts, padding=True, return_tensors="pt"))

    return tokenizer, run


def embeds(client, root):
    _, run = encoder(root, "embed")
    want = torch.nn.functional.normalize(run(TEXTS).last_hidden_state[:, 0], dim=-1)
    for encoding in ("float", "base64"):
        got = client.embeddings.create(model="embed", input=TEXTS, encoding_format=encoding)
        near([d.embedding for d in got.data], want) if encoding == "float" else None
        assert got.usage.prompt_tokens == 2 + 6 + 1 + 2 * len(TEXTS), got.usage
    near([d.embedding for d in client.embeddings.create(model="embed", input=TEXTS).data], want)
    want = torch.cat([torch.nn.functional.normalize(run(text).last_hidden_state[:, 0], dim=-1) for text in MANY])
    near([d.embedding for d in client.embeddings.create(model="embed", input=MANY).data], want)
    want = torch.nn.functional.normalize(run(TEXTS).last_hidden_state[:, 0], dim=-1)
    short = client.embeddings.create(model="embed", input=TEXTS[0], dimensions=8).data[0].embedding
    near(short, torch.nn.functional.normalize(want[0, :8], dim=-1))
    status, a = post("/v1/models/embed:predict", {"instances": TEXTS})
    assert status == 200, a
    near(a["predictions"], want)
    status, a = post("/v1/rerank", {"model": "embed", "query": TEXTS[0], "documents": TEXTS[1:]})
    near(sorted(r["relevance_score"] for r in a["results"]), sorted((want[1:] @ want[0]).tolist()))
    status, a = post("/v1/embeddings", {"model": "embed", "input": "hello " * 40})
    assert status == 400 and a["error"]["code"] == "context_length_exceeded", a


def ranks(client, root):
    _, run = encoder(root, "rank")
    want = torch.sigmoid(run([TEXTS[0]] * len(TEXTS), TEXTS).logits[:, 0])
    status, a = post("/v1/rerank", {"model": "rank", "query": TEXTS[0], "documents": TEXTS, "top_n": 2})
    assert a["usage"]["prompt_tokens"] == 3 * (2 + 3) + 2 + 6 + 1, a["usage"]
    order = want.argsort(descending=True)[:2].tolist()
    assert status == 200 and [r["index"] for r in a["results"]] == order, (a, want)
    near([r["relevance_score"] for r in a["results"]], want[order])
    assert a["results"][0]["document"]["text"] == TEXTS[order[0]], a


def predicts(name, texts):
    """The answers over v1 and over OIP, which are the same."""
    status, v1 = post(f"/v1/models/{name}:predict", {"instances": texts})
    assert status == 200, v1
    inputs = [{"name": "input-0", "shape": [len(texts)], "datatype": "BYTES", "data": texts}]
    status, v2 = post(f"/v2/models/{name}/infer", {"inputs": inputs})
    assert status == 200, v2
    (output,) = v2["outputs"]
    assert output["name"] == "output-0" and output["shape"][0] == len(texts), v2
    return v1["predictions"], output["data"]


def classifies(client, root):
    _, run = encoder(root, "classify")
    v1, v2 = predicts("classify", TEXTS)
    assert v1 == v2 == run(TEXTS).logits.argmax(-1).tolist(), (v1, v2)
    assert predicts("classify", MANY)[0] == [run(text).logits.argmax().item() for text in MANY]
    want = [{str(i): p for i, p in enumerate(row)} for row in run(TEXTS).logits.softmax(-1).tolist()]
    v1, _ = predicts("chances", TEXTS)
    for got, chances in zip(v1, want, strict=True):
        assert got.keys() == chances.keys() and all(abs(got[k] - chances[k]) < 1e-3 for k in got), (got, chances)


def tags(client, root):
    _, run = encoder(root, "tokens")
    for texts in (TEXTS[:2], MANY):
        v1, v2 = predicts("tokens", texts)
        want = run(texts).logits.argmax(-1)
        assert v1 == [[row] for row in want.tolist()] and v2 == want.flatten().tolist(), (v1, v2, want)


def fills(client, root):
    tokenizer, run = encoder(root, "mask")
    texts = ["hello [MASK]", "what is a [MASK] [MASK] for"]
    logits = run(texts).logits
    masks = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"] == tokenizer.mask_token_id
    want = [tokenizer.decode(rows[mask].argmax(-1)) for rows, mask in zip(logits, masks, strict=True)]
    v1, v2 = predicts("mask", texts)
    assert v1 == v2 == want, (v1, v2, want)
    # One long text beside many short ones takes no more memory than itself.
    v1, _ = predicts("mask", ["[MASK]"] * 2047 + ["[MASK]" + " fox" * 29])
    assert len(v1) == 2048 and len(set(v1[:2047])) == 1, v1[:20]
    status, a = post("/v1/models/mask:predict", {"instances": ["[MASK]" + " " * 4096]})
    assert status == 400 and "4102 characters" in json.dumps(a), (status, a)
    status, a = post("/v1/models/mask:predict", {"instances": ["no mask"]})
    assert status == 400 and "[MASK]" in json.dumps(a), (status, a)


def ask(folder):
    root = pathlib.Path(folder)
    client = openai.OpenAI(base_url=sys.argv[2] + "/v1", api_key="none", max_retries=0, timeout=120)
    for check in (generates, samples, ends, penalized, refuses, embeds, ranks, classifies, tags, fills):
        check(client, root)
        print("huggingface:", check.__name__)


if __name__ == "__main__":
    make(sys.argv[2]) if sys.argv[1] == "make" else ask(sys.argv[3])
