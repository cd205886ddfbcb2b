"""Models that answer about whole texts: embeddings, classes, missing words."""

import copy
import json
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from mlserver.errors import InferenceError

from . import bounds


def pooling_of(folder: str) -> str:
    """How the vectors of tokens become one, as sentence-transformers says it."""
    path = os.path.join(folder, "1_Pooling", "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
    except (OSError, ValueError):
        return "mean"
    modes = {"cls_token": "cls", "lasttoken": "last", "mean_tokens": "mean"}
    chosen = [way for mode, way in modes.items() if said.get(f"pooling_mode_{mode}")]
    known = {f"pooling_mode_{mode}" for mode in modes}
    others = [k for k, v in said.items() if k.startswith("pooling_mode_") and v is True]
    if len(chosen) != 1 or set(others) - known:
        raise InferenceError(f"{path}: one of {', '.join(sorted(known))} is read")
    return chosen[0]


# Tokens of texts, and what the tokenizer gives with them, by name: a list a text.
Batch = Dict[str, List[List[int]]]


class Encoder:
    """Runs texts through a model. Its methods block."""

    def __init__(self, model: Any, tokenizer: Any, limit: int, turns: Any, special: bool):
        self.model, self.tokenizer, self.limit = model, tokenizer, limit
        self._turns, self._special = turns, special
        self.pooling = "mean"
        self._abandoned = threading.Event()
        # A call changes how the tokenizer cuts.
        self._tokenizing = threading.Lock()

    def until(self, abandoned: threading.Event) -> "Encoder":
        """The same for one request: it stops once that is abandoned."""
        mine = copy.copy(self)
        mine._abandoned = abandoned
        return mine

    def tokens(self, texts: List[str], pairs: Optional[List[str]] = None) -> Batch:
        """Texts as tokens. What is too long is cut."""
        longest = max(map(len, texts)) if pairs else 0
        bounds.characters("text", pairs or texts, self.limit, longest)
        with self._tokenizing:
            return dict(self.tokenizer(
                texts, pairs, truncation=True, max_length=self.limit,
                add_special_tokens=self._special,
            ))  # fmt: skip

    def all_tokens(self, texts: List[str]) -> List[List[int]]:
        """Texts as tokens, with special ones. Nothing is cut."""
        bounds.characters("input", texts, self.limit)
        with self._tokenizing:
            return self.tokenizer(texts, add_special_tokens=True)["input_ids"]

    def run(self, batch: Batch, take: Callable, width: Optional[int] = None) -> List[Any]:
        """What ``take`` makes of the model's output for each text, padded to
        ``width`` or to the longest that goes through the model with it."""
        lengths = [len(tokens) for tokens in batch["input_ids"]]
        found: List[Any] = [None] * len(lengths)
        for numbers in bounds.parts(lengths, width):
            part = self.tokenizer.pad(
                {key: [rows[i] for i in numbers] for key, rows in batch.items()},
                padding="max_length", return_tensors="pt",
                max_length=width or max(1, max(lengths[i] for i in numbers)),
            ).to(self.model.device)  # fmt: skip
            with self._turns, torch.inference_mode():
                if self._abandoned.is_set():
                    raise bounds.Abandoned()
                output = self.model(**part, return_dict=True)
                for number, taken in zip(numbers, take(output, part)):
                    found[number] = taken
        return found

    def embed(self, batch: Batch) -> List[List[float]]:
        """Vectors of length 1."""

        def take(output: Any, part: Dict[str, Any]) -> Any:
            vectors = self._pool(output.last_hidden_state, part["attention_mask"])
            return torch.nn.functional.normalize(vectors.float(), dim=-1).cpu().tolist()

        return self.run(batch, take)

    def _pool(self, states: Any, mask: Any) -> Any:
        if self.pooling == "mean":
            weights = mask.unsqueeze(-1).to(states.dtype)
            return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        places = torch.arange(mask.shape[1], device=mask.device)
        if self.pooling == "cls":
            at = torch.where(mask.bool(), places, mask.shape[1]).min(dim=1).values
        else:
            at = torch.where(mask.bool(), places, -1).max(dim=1).values
        return states[torch.arange(len(at), device=at.device), at]

    def scores(self, query: str, documents: List[str]) -> Tuple[List[float], int]:
        """How well each document answers a query, from 0 to 1, and how many tokens
        were read for that."""
        batch = self.tokens([query] * len(documents), documents)

        def take(output: Any, _part: Any) -> Any:
            return torch.sigmoid(output.logits.float().flatten()).cpu().tolist()

        return self.run(batch, take), _count(batch)

    def similar(self, query: str, documents: List[str]) -> Tuple[List[float], int]:
        """The same by the cosine of vectors, from -1 to 1."""
        batch = self.tokens([query, *documents])
        vectors = torch.tensor(self.embed(batch))
        return (vectors[1:] @ vectors[0]).tolist(), _count(batch)


def _count(batch: Batch) -> int:
    return sum(map(len, batch["input_ids"]))


def described(row: Any, how: str) -> Any:
    """A row of logits as KServe's server shows it: its largest, its probabilities
    or itself."""
    if how == "index":
        return int(row.argmax())
    if how == "probabilities":
        return {str(i): round(v, 4) for i, v in enumerate(row.softmax(-1).tolist())}
    return {str(i): v for i, v in enumerate(row.tolist())}


def classes(encoder: Encoder, texts: List[str], how: str) -> List[Any]:
    """The class of each text."""
    if how != "index":
        bounds.values(len(texts) * encoder.model.config.num_labels)

    def take(output: Any, _part: Any) -> Any:
        return [described(row, how) for row in output.logits.float().cpu()]

    return encoder.run(encoder.tokens(texts), take)


def token_classes(encoder: Encoder, texts: List[str], how: str) -> List[Any]:
    """The class of each token of each text, padded to the longest."""
    batch = encoder.tokens(texts)
    longest = max(1, max(map(len, batch["input_ids"])))
    if how != "index":
        bounds.values(len(texts) * longest * encoder.model.config.num_labels)

    def take(output: Any, _part: Any) -> Any:
        if how == "index":
            return [[rows] for rows in output.logits.argmax(-1).cpu().tolist()]
        return [[described(row, how) for row in rows] for rows in output.logits.float().cpu()]

    return encoder.run(batch, take, longest)


def missing_words(encoder: Encoder, texts: List[str], how: str) -> List[Any]:
    """What belongs in the masks of each text."""
    tokenizer, batch = encoder.tokenizer, encoder.tokens(texts)
    masks = [tokens.count(tokenizer.mask_token_id) for tokens in batch["input_ids"]]
    if 0 in masks:
        raise InferenceError(f"text {masks.index(0)} has no {tokenizer.mask_token}")
    if how != "index":
        bounds.values(sum(masks) * encoder.model.config.vocab_size)

    def take(output: Any, part: Any) -> Any:
        for rows, tokens in zip(output.logits, part["input_ids"]):
            rows = rows[tokens == tokenizer.mask_token_id].float().cpu()
            if how == "index":
                yield tokenizer.decode(rows.argmax(-1))
            else:
                yield [[{k: v} for k, v in described(row, how).items()] for row in rows]

    return encoder.run(batch, take)
