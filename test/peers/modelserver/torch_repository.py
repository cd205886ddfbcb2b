#!/usr/bin/env python3
"""Lays out a repository of tiny random models of PyTorch and Hugging Face.

usage: torch_repository.py FOLDER
"""

import json
import pathlib
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

ROOT = pathlib.Path(sys.argv[1])
WORDS = ["[UNK]", "[PAD]", "[EOS]"] + [chr(c) for c in range(ord("a"), ord("z") + 1)]
SIZES = {"vocab_size": len(WORDS), "pad_token_id": 1}

# What the server adds for MLServer's runtime itself, and not for other classes.
AS_SAVED = {"torch_dtype": "auto"}

# A class of one's own over the published runtime: it says what was loaded.
SAYS_DTYPE = '''
from mlserver.codecs import StringCodec
from mlserver.types import InferenceResponse
from mlserver_huggingface import HuggingFaceRuntime


class Dtype(HuggingFaceRuntime):
    async def predict(self, payload):
        said = [str(self._model.model.dtype), type(self).__mro__[1].__module__]
        return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("said", said)])
'''


def settings(name, **given):
    (ROOT / name).mkdir(parents=True, exist_ok=True)
    (ROOT / name / "model-settings.json").write_text(json.dumps({"name": name} | given, indent=2))


def tokenizer(folder):
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", model_max_length=64)
    fast.save_pretrained(folder)


def save(name, model, dtype=torch.float32):
    folder = ROOT.parent / "checkpoints" / name
    model.to(dtype).save_pretrained(folder, safe_serialization=True)
    tokenizer(folder)
    return str(folder)


def generator():
    config = GPT2Config(**SIZES, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=2, eos_token_id=2)
    return GPT2LMHeadModel(config)


def main():
    torch.manual_seed(1)
    runtime = "mlserver_huggingface.HuggingFaceRuntime"
    config = BertConfig(**SIZES, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=64)
    classifier = save("classifier", BertForSequenceClassification(config))
    settings("classify", implementation=runtime, parameters={"extra": {"task": "text-classification", "pretrained_model": classifier}})
    settings("batched", implementation=runtime, max_batch_size=4, max_batch_time=0.1,
             parameters={"extra": {"task": "text-classification", "pretrained_model": classifier}})
    settings("generate", implementation=runtime, parameters={"extra": {"task": "text-generation", "pretrained_model": save("gpt2", generator())}})
    settings("format", parameters={"format": "huggingface", "uri": classifier})
    for name, dtype in (("half", torch.float16), ("bfloat", torch.bfloat16), ("single", torch.float32)):
        settings(name, implementation=f"{name}_models.Dtype",
                 parameters={"extra": {"task": "text-generation", "pretrained_model": save(name, generator(), dtype),
                                       "model_kwargs": AS_SAVED}})
        (ROOT / name / f"{name}_models.py").write_text(SAYS_DTYPE)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    rows = torch.arange(8, dtype=torch.float32).reshape(2, 4)
    for name, dtype in (("script", torch.float32), ("script-double", torch.float64)):
        settings(name, parameters={"format": "pytorch", "uri": "./model.pt"})
        torch.jit.script(network.to(dtype)).save(str(ROOT / name / "model.pt"))
    with torch.inference_mode():
        print(json.dumps(network.to(torch.float32)(rows).reshape(-1).tolist()))


if __name__ == "__main__":
    main()
