"""Completions of a generative model, of chats or not: whole and as a stream."""

import asyncio
import inspect
from typing import Any, AsyncIterator, Dict, List, Optional, Tuple

from .. import http
from . import bounds, openai
from .sequences import Busy, End, Sampling, Sequence


class Choice:
    """What has been generated of one choice."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: List[Tuple[str, Any]] = []
        self.count = 0
        self.reason: Optional[str] = None


class Chat:
    """Answers requests with a generator. ``apart``: what is generated is a sequence
    of its own, not the end of the prompt's."""

    def __init__(self, tokenizer: Any, generator: Any, limit: int, apart: bool):
        self.generator = generator
        self._tokenizer, self._limit, self._apart = tokenizer, limit, apart
        self._places = bounds.Places()

    def close(self) -> None:
        """Takes no more requests."""
        self._places.close()
        self.generator.close()

    async def answer(self, fields: openai.Fields, name: str, chat: bool) -> Any:
        """The answer to a request, or a stream of its pieces. ``name`` is the model's
        in the request."""
        fields.refuse("tools", "functions", "echo", "suffix", "best_of", "use_beam_search")
        if fields.object("response_format").get("type", "text") != "text":
            raise openai.Refused("response_format may be text here", "response_format")
        options = fields.object("stream_options")
        read = self._chat_prompts if chat else self._prompts
        prompts = await self._places.run(lambda _: read(fields))
        number = fields.whole("n", 1, openai.MAX_CHOICES, 1)
        if len(prompts) * number > openai.MAX_CHOICES:
            raise openai.Refused(f"{openai.MAX_CHOICES} choices are made at once", "n")
        events: asyncio.Queue = asyncio.Queue()  # bounded by max_tokens of each choice
        sequences = self._sequences(fields, chat, prompts, number, events)
        count = sum(map(len, prompts))
        form = openai.Completion(name, chat)
        streams = fields.flag("stream")
        try:
            self.generator.start(sequences)
        except Busy as busy:
            raise openai.Refused(str(busy), status=429, code="overloaded") from busy
        if streams:
            pieces = self._pieces(form, sequences, events, count, options)
            return http.Stream(
                pieces,
                "text/event-stream; charset=utf-8",
                lambda: [sequence.cancel() for sequence in sequences],
            )
        return await self._whole(form, sequences, events, count)

    def _sequences(
        self, fields: openai.Fields, chat: bool, prompts: List[List[int]], number: int, events: Any
    ) -> List[Any]:
        seed = fields.whole("seed", -(1 << 63), (1 << 63) - 1, None)
        found = []
        for prompt in prompts:
            for _ in range(number):
                sampling = self._sampling(fields, chat, prompt)
                if seed is not None:
                    sampling.seed = (seed + len(found)) % (1 << 63)
                found.append(Sequence(len(found), prompt, sampling, events))
        return found

    def _sampling(self, fields: openai.Fields, chat: bool, prompt: List[int]) -> Any:
        defaults = self.generator.defaults
        sampled = getattr(defaults, "do_sample", False)

        def default(name: str, otherwise: Any) -> Any:
            value = getattr(defaults, name, None) if sampled else None
            return otherwise if value is None else value

        if chat:
            top = fields.whole("top_logprobs", 0, openai.MAX_LOGPROBS, 0)
            logprobs = top if fields.flag("logprobs") else None
        else:
            logprobs = fields.whole("logprobs", 0, openai.MAX_LOGPROBS, None)
        return Sampling(
            max_tokens=self._max_tokens(fields, chat, prompt),
            temperature=fields.number("temperature", 0, 2, default("temperature", 1.0)),
            top_p=fields.number("top_p", 0, 1, default("top_p", 1.0)),
            top_k=max(0, fields.whole("top_k", -1, 1 << 20, default("top_k", 0))),
            presence_penalty=fields.number("presence_penalty", -2, 2, 0.0),
            frequency_penalty=fields.number("frequency_penalty", -2, 2, 0.0),
            bias=fields.bias(self.generator.vocabulary),
            stop=fields.stop(),
            ignore_eos=fields.flag("ignore_eos"),
            logprobs=logprobs,
        )

    def _max_tokens(self, fields: openai.Fields, chat: bool, prompt: List[int]) -> int:
        left = self._limit - (0 if self._apart else len(prompt))
        name = "max_tokens"
        if chat and fields.get("max_completion_tokens") is not None:
            name = "max_completion_tokens"
        wanted = fields.whole(name, 1, 1 << 31, left if chat else 16)
        if left < 1 or len(prompt) > self._limit or fields.get(name) and wanted > left:
            raise openai.Refused(
                f"the prompt has {len(prompt)} tokens, and {wanted} are asked for; "
                f"{self._limit} fit", name, code="context_length_exceeded",
            )  # fmt: skip
        return min(wanted, left)

    def _prompts(self, fields: openai.Fields) -> List[List[int]]:
        texts = fields.texts("prompt", openai.MAX_CHOICES)
        if isinstance(texts[0], str):
            bounds.characters("prompt", texts, self._limit)
            texts = self._tokenizer(texts)["input_ids"]
        for prompt in texts:
            if not prompt or not all(0 <= t < self.generator.vocabulary for t in prompt):
                raise openai.Refused("prompt is empty, or has a token that is none", "prompt")
        return texts

    def _chat_prompts(self, fields: openai.Fields) -> List[List[int]]:
        said, options = openai.messages(fields), fields.object("chat_template_kwargs")
        if not self._tokenizer.chat_template:
            raise openai.Refused("the model has no chat template: use /v1/completions")
        # The names of its own arguments, such as chat_template, are not the client's.
        taken = set(options) & set(inspect.signature(self._apply()).parameters)
        if taken:
            name = "chat_template_kwargs"
            raise openai.Refused(f"{name} may not have {', '.join(sorted(taken))}", name)
        # The template writes something for a message without text, too.
        contents = "\n".join(message["content"] for message in said)
        bounds.characters("messages", [contents], self._limit)
        added = fields.flag("add_generation_prompt", True)
        given: Dict[str, Any] = {"tokenize": False, "add_generation_prompt": added}
        try:
            text = self._apply()(said, **{**options, **given})
        except Exception as error:  # the template's own code
            raise openai.Refused(f"the chat template refuses the messages: {error}") from error
        bounds.characters("messages", [text], self._limit)
        tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if not tokens:
            raise openai.Refused("the chat template makes no text of the messages", "messages")
        return [tokens]

    def _apply(self) -> Any:
        return self._tokenizer.apply_chat_template

    async def _events(self, sequences: List[Any], events: Any) -> AsyncIterator[Any]:
        """The events until all sequences have ended; cancels what is left."""
        left = len(sequences)
        try:
            while left:
                number, event = await events.get()
                if isinstance(event, Exception):
                    raise event
                left -= isinstance(event, End)
                yield number, event
        finally:
            for sequence in sequences:
                sequence.cancel()

    async def _whole(self, form: Any, sequences: List[Any], events: Any, count: int) -> Any:
        choices = [Choice() for _ in sequences]
        async for number, event in self._events(sequences, events):
            self._take(choices[number], event)
        written = sum(c.count for c in choices)
        said = [
            form.choice(i, c.text, c.reason, form.logprobs(c.tokens))
            for i, c in enumerate(choices)
        ]
        return openai.Answer(form.whole(said, openai.usage(count, written)))

    async def _pieces(
        self, form: Any, sequences: List[Any], events: Any, count: int, options: dict
    ) -> AsyncIterator[bytes]:
        choices = [Choice() for _ in sequences]
        shown = [0] * len(choices)  # of the text
        logged = [0] * len(choices)  # of the tokens
        every = options.get("continuous_usage_stats") is True
        if form.chat:
            first = [form.delta(i, "", None, None, True) for i in range(len(choices))]
            for delta in first:
                yield openai.event(form.chunk([delta]))
        try:
            async for number, event in self._events(sequences, events):
                choice = choices[number]
                self._take(choice, event)
                text = choice.text[shown[number] :]
                logprobs = form.logprobs(choice.tokens[logged[number] :], shown[number])
                if not text and not logprobs and choice.reason is None:
                    continue
                shown[number], logged[number] = len(choice.text), len(choice.tokens)
                delta = form.delta(number, text, choice.reason, logprobs, False)
                used = openai.usage(count, sum(c.count for c in choices)) if every else None
                yield openai.event(form.chunk([delta], used))
        except Exception as error:  # the status is sent already
            yield openai.event(openai.Refused(f"generation failed: {error}", status=500).body())
            return
        if options.get("include_usage") is True:
            used = openai.usage(count, sum(c.count for c in choices))
            yield openai.event(form.chunk([], used))
        yield openai.DONE

    def _take(self, choice: Choice, event: Any) -> None:
        choice.text += event.text
        if isinstance(event, End):
            choice.reason = event.reason
            return
        choice.count += 1
        if event.logprob is not None:
            top = tuple((self.generator.decode([t]), p) for t, p in event.top)
            choice.tokens.append((self.generator.decode([event.id]), event._replace(top=top)))
