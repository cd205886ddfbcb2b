"""Writes a tiny random Llama as a Hugging Face folder, with a tokenizer trained
here, and two LoRA adapters that answer differently: hf_model.py FOLDER

FOLDER/model, FOLDER/sql (rank 8) and FOLDER/chat (rank 16); and FOLDER/judge, a
model whose template has it say yes or no, as those that rank do. Only ASCII letters and
digits are ever sampled, after a space or none, so that streams are valid UTF-8 and
end at the asked length. A space alone is as unlikely as a quote: where a grammar
takes both, a bias of 100 decides.
"""

import json
import pathlib
import sys

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

WIDTH, LAYERS, HEADS, HIDDEN, CONTEXT = 128, 2, 2, 256, 2048
SPECIAL = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "hello there, what is a roundhouse?",
    "a roundhouse is a building for locomotives",
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# By these words SGLang knows a model that ranks by the odds of yes and no.
JUDGE = (
    'Judge whether the document answers the query. The answer can only be "yes" or "no".\n'
    "{{ messages[0]['content'] }}\n{{ messages[1]['content'] }}\n"
)


def tokenizer(texts=TEXT, template=TEMPLATE):
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts * 20, tokenizers.trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    out = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|eos|>",
        additional_special_tokens=SPECIAL[2:],
        model_max_length=CONTEXT,
    )
    out.chat_template = template
    return out


def sampled(token):
    text = token.lstrip("Ġ")
    return not token.startswith("<|") and text.isascii() and text.isalnum()


def model(t):
    size = (len(t) + 63) // 64 * 64
    config = transformers.LlamaConfig(
        vocab_size=size,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=WIDTH // HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=t.bos_token_id,
        eos_token_id=t.eos_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    m = transformers.LlamaForCausalLM(config).float().eval()
    allowed = torch.zeros(size, dtype=torch.bool)
    for token, i in t.get_vocab().items():
        allowed[i] = sampled(token)
    # Channel 0 is a constant, because no layer writes to it: the head forbids
    # tokens with it.
    with torch.no_grad():
        m.model.embed_tokens.weight.mul_(5)
        m.model.embed_tokens.weight[:, 0] = 1.0
        m.lm_head.weight.mul_(20)
        m.lm_head.weight[:, 0] = torch.where(allowed, 0.0, -100.0)
        for layer in m.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
    return m


def adapter(folder, seed, rank):
    weights = {}
    for i in range(LAYERS):
        for projection in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{i}.self_attn.{projection}."
            g = torch.Generator().manual_seed(seed + i)
            weights[name + "lora_A.weight"] = torch.randn(rank, WIDTH, generator=g)
            weights[name + "lora_B.weight"] = torch.randn(WIDTH, rank, generator=g) * 0.5
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "tiny",
        "inference_mode": True,
        "fan_in_fan_out": False,
        "modules_to_save": None,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def main(folder):
    torch.manual_seed(7)
    root = pathlib.Path(folder)
    # Each of the two answers is one token.
    for name, t in ("model", tokenizer()), ("judge", tokenizer([*TEXT, *["yes", "no"] * 50], JUDGE)):
        model(t).save_pretrained(root / name, safe_serialization=True)
        t.save_pretrained(root / name)
    adapter(root / "sql", 100, 8)
    adapter(root / "chat", 200, 16)


if __name__ == "__main__":
    main(*sys.argv[1:])
