"""Text generation with transformers: sequences take turns with one model."""

import asyncio
import copy
import logging
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Deque, List

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers import StoppingCriteria, StoppingCriteriaList

from .sequences import Busy, End, Sequence, Text, Token

log = logging.getLogger("roundhouse")

# Sequences whose keys and values are in memory, and those that wait for that.
MAX_ACTIVE = 8
MAX_WAITING = 256


class Turns:
    """Who computes: one at a time, in the order in which they asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Deque[threading.Event] = deque()
        self._taken = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        turn.wait()

    def __exit__(self, *_raised: Any) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False

    def give_way(self) -> None:
        """Lets those go first that wait."""
        if self._waiting:
            self.__exit__()
            self.__enter__()


class _Choose(LogitsProcessor):
    """Chooses the next token, the last processor of all: the others see the scores
    as transformers' own choice would, which has only this token left."""

    def __init__(self, sequence: Sequence, text: Text, ends: List[int], turns: Turns):
        self._sequence, self._text, self._turns = sequence, text, turns
        self._ends = set() if sequence.sampling.ignore_eos else set(ends)
        bias = sequence.sampling.bias
        self._biased = torch.tensor(list(bias), dtype=torch.long)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)
        self._counts: Any = None  # of each token; none without a penalty
        self._random = torch.Generator()
        if sequence.sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sequence.sampling.seed)
        self.reason = "length"

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        row = scores[0].detach().float().cpu()
        chosen = self._choose(self._adjusted(row))
        self._tell(chosen, row)
        if not self._sequence.ended:
            self._turns.give_way()
        only = torch.full_like(scores, -torch.inf)
        only[0, chosen] = 0
        return only

    def _adjusted(self, row: Any) -> Any:
        s = self._sequence.sampling
        row = row.clone()
        if s.presence_penalty or s.frequency_penalty:
            if self._counts is None:
                self._counts = torch.zeros_like(row)
            row -= self._counts * s.frequency_penalty
            row -= (self._counts > 0) * s.presence_penalty
        return row.index_add_(0, self._biased, self._bias)

    def _choose(self, row: Any) -> int:
        s = self._sequence.sampling
        if s.temperature == 0:
            return int(row.argmax())
        ordered, places = (row / s.temperature).sort(descending=True)
        if s.top_k > 0:
            ordered, places = ordered[: s.top_k], places[: s.top_k]
        chances = ordered.softmax(dim=-1)
        if s.top_p < 1:  # the most likely tokens that make up top_p, one at least
            enough = chances.cumsum(dim=-1) - chances >= s.top_p
            chances[1:][enough[1:]] = 0
        return int(places[torch.multinomial(chances, 1, generator=self._random)])

    def _tell(self, chosen: int, row: Any) -> None:
        sequence = self._sequence
        if sequence.ended:
            return
        if self._counts is not None:
            self._counts[chosen] += 1
        if chosen in self._ends:
            sequence.ended, self.reason = True, "stop"
            sequence.put(Token(chosen, ""))
            return
        logprob, top = None, ()
        if sequence.sampling.logprobs is not None:
            likely = row.log_softmax(dim=-1)
            logprob = float(likely[chosen])
            values, ids = likely.topk(min(sequence.sampling.logprobs, len(likely)))
            top = tuple(zip(ids.tolist(), values.tolist()))
        sequence.put(Token(chosen, self._text.add(chosen), logprob, top))
        if self._text.stopped:
            sequence.ended, self.reason = True, "stop"


class _Ended(StoppingCriteria):
    """Ends transformers' loop with the sequence."""

    def __init__(self, sequence: Sequence):
        self._sequence = sequence

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.full((input_ids.shape[0],), self._sequence.ended, device=input_ids.device)


class Generator:
    """Generates with a model in threads of its own. Each token is one turn, so that
    a long sequence holds up no other."""

    def __init__(self, model: Any, tokenizer: Any, turns: Turns):
        self._model, self._tokenizer, self._turns = model, tokenizer, turns
        self._threads = ThreadPoolExecutor(MAX_ACTIVE, "generate")
        self._count = 0
        self.defaults = copy.deepcopy(model.generation_config)
        self.vocabulary: int = model.config.get_text_config().vocab_size
        self._ends = _ids(self.defaults.eos_token_id) or _ids(tokenizer.eos_token_id)
        # generate() takes from the model's configuration what a call leaves open, and
        # None is that. A cache of another kind than the default would be the model's,
        # and shared by all sequences.
        model.generation_config.update(
            do_sample=False, temperature=None, top_p=None, top_k=None, num_beams=1,
            num_return_sequences=1, max_length=None, max_time=None, stop_strings=None,
            use_cache=True, cache_implementation=None, return_dict_in_generate=False,
            prompt_lookup_num_tokens=None, eos_token_id=None,
            pad_token_id=(_ids(self.defaults.pad_token_id) or self._ends or [0])[0],
        )  # fmt: skip

    def start(self, sequences: List[Sequence]) -> None:
        """Begins sequences, all or none."""
        if self._count and self._count + len(sequences) > MAX_ACTIVE + MAX_WAITING:
            raise Busy(f"{self._count} sequences are generated or wait; try again later")
        self._count += len(sequences)
        loop = asyncio.get_running_loop()
        for sequence in sequences:
            done = loop.run_in_executor(self._threads, self._run, sequence)
            done.add_done_callback(self._done)

    def close(self) -> None:
        """Takes no more sequences; those under way have to be cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def decode(self, ids: List[int]) -> str:
        """Tokens as text, without those that only mark its parts."""
        return self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _done(self, done: "asyncio.Future[None]") -> None:
        self._count -= 1
        if not done.cancelled() and done.exception():
            log.error("generation failed", exc_info=done.exception())

    def _run(self, sequence: Sequence) -> None:
        if sequence.ended:
            return
        text = Text(self.decode, sequence.prompt, sequence.sampling.stop)
        choose = _Choose(sequence, text, self._ends, self._turns)
        try:
            with self._turns:
                if not sequence.ended:
                    self._generate(sequence, choose)
        except Exception as error:
            sequence.put(error)
            raise
        sequence.put(End(text.end(), "stop" if text.stopped else choose.reason))

    def _generate(self, sequence: Sequence, choose: _Choose) -> None:
        config = copy.deepcopy(self._model.generation_config)
        config.max_new_tokens = sequence.sampling.max_tokens
        prompt = torch.tensor([sequence.prompt], device=self._model.device)
        self._model.generate(
            inputs=prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=config,
            logits_processor=LogitsProcessorList([choose]),
            stopping_criteria=StoppingCriteriaList([_Ended(sequence)]),
        )


def _ids(value: Any) -> List[int]:
    """A configuration's token, or its list of tokens."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [int(value)]
