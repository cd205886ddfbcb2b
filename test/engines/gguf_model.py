"""Writes a tiny random Llama in GGUF: gguf_model.py FILE [mean|rank]

The tokenizer is byte-level BPE made here. Only ASCII letters, digits and space
are ever sampled, so that streams are valid UTF-8 and end at the asked length.
"mean" makes a model for embeddings, "rank" one for reranking.
"""

import sys

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, HIDDEN, CONTEXT = 64, 2, 4, 128, 65536
CONTROL = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
# A request that biases this one and the end has the model call a tool.
MARKS = ["<tool_call>\n"]
MERGES = ["t h", "Ġ th", "h e", "i n", "e r", "a n", "Ġ a"]
# Tool calls are those of Qwen and Hermes: the engine learns the form from here.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:\n<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools>\n"
    'Call one as:\n<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def alphabet():
    """GPT-2's characters for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def sampled(token):
    return token in ("Ġ", "th", "Ġth", "he", "in", "er", "an", "Ġa") or (
        len(token) == 1 and token.isascii() and token.isalnum()
    )


def tokenizer(w):
    tokens = alphabet() + [m.replace(" ", "") for m in MERGES] + CONTROL + MARKS
    plain = tokens.index(CONTROL[0])
    w.add_vocab_size(len(tokens))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    kind = gguf.TokenType
    w.add_token_types([kind.NORMAL] * plain + [kind.CONTROL] * len(CONTROL) + [kind.USER_DEFINED] * len(MARKS))
    w.add_token_merges(MERGES)
    w.add_bos_token_id(plain)
    w.add_eos_token_id(plain + 1)
    w.add_sep_token_id(plain + 1)
    w.add_add_bos_token(True)
    w.add_chat_template(TEMPLATE)
    return tokens


def weights(w, tokens, rank):
    rng = np.random.default_rng(7)
    # Channel 0 is a constant, because no layer writes to it: the head forbids
    # tokens with it.
    def add(name, *shape):
        if "norm" in name:
            a = np.ones(shape, np.float32)
        else:
            a = (rng.standard_normal(shape) * 0.05).astype(np.float32)
        if name == "token_embd.weight":
            a[:, 0] = 1.0
        if name == "output.weight":
            a *= 10
            a[:, 0] = np.where([sampled(t) for t in tokens], 0, -100)
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            a[0, :] = 0
        w.add_tensor(name, a)

    add("token_embd.weight", len(tokens), WIDTH)
    add("output_norm.weight", WIDTH)
    add("output.weight", len(tokens), WIDTH)
    if rank:
        add("cls.output.weight", 2, WIDTH)
    for i in range(LAYERS):
        block = f"blk.{i}."
        add(block + "attn_norm.weight", WIDTH)
        if rank:
            add(block + "attn_q_norm.weight", WIDTH // HEADS)
            add(block + "attn_k_norm.weight", WIDTH // HEADS)
        add(block + "ffn_norm.weight", WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(block + name + ".weight", WIDTH, WIDTH)
        add(block + "ffn_gate.weight", HIDDEN, WIDTH)
        add(block + "ffn_up.weight", HIDDEN, WIDTH)
        add(block + "ffn_down.weight", WIDTH, HIDDEN)


def main(path, pooling=""):
    # llama.cpp knows a head for ranking of Qwen 3, and none of Llama.
    w = gguf.GGUFWriter(path, "qwen3" if pooling == "rank" else "llama")
    w.add_name("tiny-random")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(HIDDEN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(HEADS)
    w.add_rope_dimension_count(WIDTH // HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    if pooling:
        w.add_pooling_type({"mean": gguf.PoolingType.MEAN, "rank": gguf.PoolingType.RANK}[pooling])
    if pooling == "rank":
        w.add_classifier_output_labels(["yes", "no"])
    weights(w, tokenizer(w), pooling == "rank")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
