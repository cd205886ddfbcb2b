"""OpenAI's API: requests read within bounds, answers written."""

import base64
import json
import struct
import time
import uuid
from typing import Any, Dict, List, Optional, Tuple

# Of one request: choices of all its prompts together; texts to embed, rank or classify.
MAX_CHOICES = 64
MAX_TEXTS = 2048
MAX_STOP = 16
MAX_LOGPROBS = 20
MAX_BIAS = 1024


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(
        self,
        message: str,
        param: Optional[str] = None,
        status: int = 400,
        code: Optional[str] = None,
    ):
        super().__init__(message)
        self.param, self.status, self.code = param, status, code
        self.status_code = status  # where the error is answered over another protocol

    def body(self) -> dict:
        """The answer."""
        kind = {404: "not_found_error", 429: "rate_limit_error", 500: "server_error"}
        return {
            "error": {
                "message": str(self),
                "type": kind.get(self.status, "invalid_request_error"),
                "param": self.param,
                "code": self.code,
            }
        }


class Answer:
    """A whole answer, as a custom handler returns it."""

    def __init__(self, content: Any, status_code: int = 200):
        self.status_code = status_code
        self.headers = {"content-type": "application/json"}
        self.body = dump(content)


def dump(content: Any) -> bytes:
    """JSON."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def event(content: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + dump(content) + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Fields:
    """The fields of a request, read one by one. Null is as good as absent."""

    def __init__(self, body: bytes):
        try:
            said = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refused(f"the body is not JSON: {error}") from error
        if not isinstance(said, dict):
            raise Refused("the body is not a JSON object")
        self._said: Dict[str, Any] = {k: v for k, v in said.items() if v is not None}

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it is."""
        return self._said.get(name, default)

    def text(self, name: str, default: Optional[str] = None) -> Any:
        """A string."""
        return self._of(name, str, "a string", default)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        return self._of(name, bool, "true or false", default)

    def object(self, name: str) -> dict:
        """An object; an empty one by default."""
        return self._of(name, dict, "an object", {})

    def _of(self, name: str, kind: type, word: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is not default and not isinstance(value, kind):
            raise Refused(f"{name} is not {word}", name)
        return value

    def number(self, name: str, low: float, high: float, default: Any) -> Any:
        """A number between bounds."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Refused(f"{name} is not a number", name)
        if not low <= value <= high:
            raise Refused(f"{name} is {value}; it may be {low:g} to {high:g}", name)
        return value

    def whole(self, name: str, low: int, high: int, default: Any) -> Any:
        """A whole number between bounds."""
        value = self.number(name, low, high, default)
        if value is not default and value != int(value):
            raise Refused(f"{name} is {value}, not a whole number", name)
        return value if value is None else int(value)

    def refuse(self, *names: str) -> None:
        """Refuses what would change the answer and has no effect here."""
        for name in names:
            if self.get(name):
                raise Refused(f"{name} has no effect here", name, code="unsupported")

    def texts(self, name: str, most: int) -> List[Any]:
        """Strings, or lists of tokens: one of either, or a list of them."""
        value = self.get(name)
        if isinstance(value, str) or _tokens(value):
            value = [value]
        if not isinstance(value, list) or not value:
            raise Refused(f"{name} has to be a string, tokens, or a list of either", name)
        if len(value) > most:
            raise Refused(f"{name} has {len(value)} elements; {most} are allowed", name)
        if not all(isinstance(v, str) for v in value) and not all(map(_tokens, value)):
            raise Refused(f"{name} has elements that are neither text nor tokens", name)
        return value

    def stop(self) -> List[str]:
        """The strings before which an answer ends."""
        value = self.get("stop", [])
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or len(value) > MAX_STOP:
            raise Refused(f"stop has to be a string, or a list of up to {MAX_STOP}", "stop")
        if not all(isinstance(v, str) and 0 < len(v) <= 1024 for v in value):
            raise Refused("stop has an element that is no string of 1 to 1024", "stop")
        return value

    def bias(self, vocabulary: int) -> Dict[int, float]:
        """What is added to the scores of tokens."""
        found, said = {}, self.object("logit_bias")
        if len(said) > MAX_BIAS:
            raise Refused(f"logit_bias has {len(said)} tokens; {MAX_BIAS} are allowed", "logit_bias")
        for token, bias in said.items():
            good = token.isdecimal() and len(token) < 10 and int(token) < vocabulary
            if not good or isinstance(bias, bool) or not isinstance(bias, (int, float)):
                raise Refused(f"logit_bias has {token!r}: {bias!r}", "logit_bias")
            found[int(token)] = max(-100.0, min(100.0, bias))
        return found


def _tokens(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    )


def messages(fields: Fields) -> List[dict]:
    """The messages of a chat, their contents as text."""
    said = fields.get("messages")
    if not isinstance(said, list) or not said:
        raise Refused("messages has to be a list of messages", "messages")
    found = []
    for message in said:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refused("messages has an element without a role", "messages")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(map(_part, content))
        if content is not None and not isinstance(content, str):
            raise Refused("messages has a content that is not text", "messages")
        found.append({**message, "content": content or ""})
    return found


def _part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return part["text"]
    raise Refused("messages has a part that is not text: this model reads text", "messages")


class Completion:
    """How completions, of chats or not, are written."""

    def __init__(self, model: str, chat: bool):
        self.chat = chat
        self._kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex,
            "object": self._kind,
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: List[dict], usage: dict) -> dict:
        """An answer in one piece."""
        return {**self._head, "choices": choices, "usage": usage}

    def chunk(self, choices: List[dict], usage: Optional[dict] = None) -> dict:
        """A piece of an answer."""
        kind = "chat.completion.chunk" if self.chat else self._kind
        said = {**self._head, "object": kind, "choices": choices}
        return said if usage is None else {**said, "usage": usage}

    def choice(
        self, index: int, text: str, reason: Optional[str], logprobs: Any
    ) -> dict:
        """A choice as a whole."""
        said: dict = {"index": index}
        if self.chat:
            said["message"] = {"role": "assistant", "content": text}
        else:
            said["text"] = text
        return {**said, "logprobs": logprobs, "finish_reason": reason}

    def delta(
        self, index: int, text: str, reason: Optional[str], logprobs: Any, first: bool
    ) -> dict:
        """What comes next of a choice."""
        if not self.chat:
            return self.choice(index, text, reason, logprobs)
        delta: dict = {"role": "assistant"} if first else {}
        if text or first:
            delta["content"] = text
        return {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }

    def logprobs(self, tokens: List[Tuple[str, Any]], offset: int = 0) -> Any:
        """The logprobs of tokens, each with its text; None if there are none."""
        if not tokens or tokens[0][1].logprob is None:
            return None
        if self.chat:
            return {
                "content": [
                    {
                        **_alternative(text, token.logprob),
                        "top_logprobs": [_alternative(*t) for t in token.top],
                    }
                    for text, token in tokens
                ]
            }
        offsets = []
        for text, _ in tokens:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": [text for text, _ in tokens],
            "token_logprobs": [token.logprob for _, token in tokens],
            "top_logprobs": [dict(token.top) for _, token in tokens],
            "text_offset": offsets,
        }


def _alternative(text: str, logprob: float) -> dict:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8"))}


def usage(prompt: int, completion: Optional[int] = None) -> dict:
    """How many tokens were read and written."""
    said = {"prompt_tokens": prompt, "total_tokens": prompt + (completion or 0)}
    return said if completion is None else {**said, "completion_tokens": completion}


def embeddings(model: str, vectors: List[List[float]], fields: Fields, count: int) -> dict:
    """Vectors as the request wants them."""
    encoding = fields.text("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise Refused("encoding_format may be float or base64", "encoding_format")
    data: List[Any] = vectors
    if encoding == "base64":
        data = [
            base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode("ascii") for v in vectors
        ]
    return {
        "id": "embd-" + uuid.uuid4().hex,
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [
            {"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(data)
        ],
        "usage": usage(count),
    }


def documents(fields: Fields) -> List[str]:
    """The documents to rank."""
    said = fields.get("documents")
    if not isinstance(said, list) or not 0 < len(said) <= MAX_TEXTS:
        raise Refused(f"documents has to be a list of 1 to {MAX_TEXTS}", "documents")
    found = [d.get("text") if isinstance(d, dict) else d for d in said]
    if not all(isinstance(d, str) for d in found):
        raise Refused("documents has an element that is not text", "documents")
    return found


def ranking(model: str, scores: List[float], texts: List[str], fields: Fields, count: int) -> dict:
    """Documents, the best first."""
    most = fields.whole("top_n", 1, MAX_TEXTS, len(texts))
    show = fields.flag("return_documents", True)
    best = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[:most]
    results = [
        {"index": i, "relevance_score": scores[i], "document": {"text": texts[i]}}
        for i in best
    ]
    if not show:
        for result in results:
            del result["document"]
    return {
        "id": "rerank-" + uuid.uuid4().hex,
        "model": model,
        "results": results,
        "usage": usage(count),
    }
