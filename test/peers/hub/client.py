"""Downloads with huggingface_hub or transformers and prints what came, as JSON.

client.py snapshot REPO [TYPE [REVISION]]   names and SHA-256 of every file
client.py file REPO FILE                    SHA-256 of one
client.py error REPO FILE                   the name of the exception
client.py info REPO                         commit and files, over the API
client.py transformers REPO                 what AutoConfig and AutoTokenizer read
client.py tokenizer FOLDER                  writes a model's small files there
"""

import hashlib
import json
import os
import sys


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def snapshot(repo, kind="model", revision=None):
    from huggingface_hub import snapshot_download

    root = snapshot_download(repo, repo_type=kind, revision=revision)
    out = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            out[os.path.relpath(path, root)] = sha256(path)
    return out


def file(repo, name):
    from huggingface_hub import hf_hub_download

    return {name: sha256(hf_hub_download(repo, name))}


def error(repo, name):
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(repo, name)
    except Exception as e:
        return {"error": type(e).__name__}
    return {"error": ""}


def info(repo):
    from huggingface_hub import HfApi

    api = HfApi()
    paths = api.get_paths_info(repo, ["model.safetensors"])
    return {
        "sha": api.repo_info(repo).sha,
        "files": sorted(api.list_repo_files(repo)),
        "tree": sorted(f.path for f in api.list_repo_tree(repo, recursive=True)),
        "size": paths[0].size,
        "lfs": paths[0].lfs.sha256,
        "branches": [b.name for b in api.list_repo_refs(repo).branches],
    }


def transformers(repo):
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(repo)
    tokenizer = AutoTokenizer.from_pretrained(repo)
    return {"type": config.model_type, "hidden": config.hidden_size, "ids": tokenizer("hello world hello")["input_ids"]}


def tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, PreTrainedTokenizerFast

    t = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2}, unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=t, unk_token="[UNK]").save_pretrained(folder)
    BertConfig(hidden_size=12, num_hidden_layers=1, num_attention_heads=2, vocab_size=3).save_pretrained(folder)
    return {}


print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
