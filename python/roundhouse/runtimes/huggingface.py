"""Models of the Hugging Face Hub, with transformers: generation, embeddings and
ranking over OpenAI's paths, and what KServe's server answers over the others."""

import asyncio
import importlib
import logging
from typing import Any, Callable, Dict, List, Optional

from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.errors import InferenceError
from mlserver.handlers import custom_handler
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor
from mlserver.types import ResponseOutput

from ..faults import Fault
from ..http import Request
from . import bounds, openai
from .base import library
from .chat import Chat

log = logging.getLogger("roundhouse")

# Tasks in the words of pipelines, with the class that loads them.
_CLASSES = {
    "text-generation": "AutoModelForCausalLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "feature-extraction": "AutoModel",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "fill-mask": "AutoModelForMaskedLM",
}
# The longest sequence where a model allows more: keys and values take memory.
DEFAULT_LENGTH = 8192


class HuggingFace(MLModel):
    """A folder as transformers writes it. ``parameters.extra`` has the folder as
    ``pretrained_model``, its ``task``, and what KServe's arguments say."""

    async def load(self) -> bool:
        for name in ("torch", "transformers", "tokenizers", "jinja2"):
            library(name)
        parameters = self.settings.parameters
        self._extra: Dict[str, Any] = (parameters.extra if parameters else None) or {}
        self.task = str(self._extra.get("task") or "")
        if self.task not in _CLASSES:
            raise Fault(
                "unprocessable",
                f"the task {self.task or 'of this model is not known'}: state one of "
                f"{', '.join(_CLASSES)}; for others install mlserver-huggingface and name "
                "mlserver_huggingface.HuggingFaceRuntime as implementation",
            )
        self._places = bounds.Places()
        self._chat: Optional[Chat] = None
        self._encoder: Any = None
        await asyncio.to_thread(self._open)
        self.inputs = [MetadataTensor(name="input-0", datatype="BYTES", shape=[-1])]
        return True

    async def unload(self) -> bool:
        if self._chat is not None:
            self._chat.close()
        self._places.close()
        self._chat = self._encoder = None
        return True

    def _open(self) -> None:
        # Only here, since they import torch.
        encoders = importlib.import_module(".encoders", __package__)
        generation = importlib.import_module(".generation", __package__)
        folder, trust = self._extra.get("pretrained_model"), self._option("trust_remote_code")
        model = self._load_model(folder, trust)
        tokenizer = library("transformers").AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust, local_files_only=True
        )
        limit, turns = self._limit(model, tokenizer), generation.Turns()
        if self.task in ("text-generation", "text2text-generation"):
            generator = generation.Generator(model, tokenizer, turns)
            apart = self.task == "text2text-generation"
            self._chat = Chat(tokenizer, generator, limit, apart)
            return
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        special = not self._option("disable_special_tokens")
        self._encoder = encoders.Encoder(model, tokenizer, limit, turns, special)
        if self.task == "feature-extraction":
            self._encoder.pooling = encoders.pooling_of(folder)
        self._answers: Dict[str, Callable] = {
            "text-classification": encoders.classes,
            "token-classification": encoders.token_classes,
            "fill-mask": encoders.missing_words,
        }

    def _load_model(self, folder: Any, trust: bool) -> Any:
        torch, transformers = library("torch"), library("transformers")
        library("transformers.utils.logging").disable_progress_bar()
        device = self._extra.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = str(self._extra.get("dtype") or "auto")
        dtype = {"half": "float16", "float": "float32"}.get(dtype, dtype)
        if dtype == "auto":
            # Few processors compute fast in another type, and some not at all.
            chosen = torch.float32 if device == "cpu" else "auto"
        else:
            chosen = getattr(torch, dtype, None)
        if chosen not in ("auto", torch.float32, torch.float16, torch.bfloat16):
            raise Fault("unprocessable", f"dtype {dtype!r}: auto, float32, float16, bfloat16")
        try:
            model = getattr(transformers, _CLASSES[self.task]).from_pretrained(
                folder,
                **{_dtype_argument(transformers.__version__): chosen},
                trust_remote_code=trust,
                use_safetensors=self._extra.get("use_safetensors", True) is not False,
                local_files_only=True,
            )
        except OSError as error:
            pickles = "; pickles are not read" if "safetensors" in str(error) else ""
            raise Fault("unprocessable", f"{folder}: {error}{pickles}") from error
        return model.to(device).eval()

    def _option(self, name: str) -> bool:
        return self._extra.get(name) is True

    def _limit(self, model: Any, tokenizer: Any) -> int:
        """The longest sequence."""
        config = model.config.get_text_config()
        most = getattr(config, "max_position_embeddings", None)
        if not isinstance(most, int) or most <= 0:
            most = tokenizer.model_max_length
        if self.task not in ("text-generation", "text2text-generation"):
            most = min(most, tokenizer.model_max_length)
        return min(most, int(self._extra.get("max_model_len") or DEFAULT_LENGTH))

    # The Open Inference Protocol and KServe's v1.

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        texts = self._texts(payload)
        if self._chat is not None:
            raise InferenceError(
                f"{self.name} generates text: ask it by POST /v1/completions or "
                "/v1/chat/completions"
            )
        answer = await self._work(self._predict, texts)
        return InferenceResponse(
            model_name=self.name, model_version=self.version, outputs=[_output(answer)]
        )

    async def _work(self, work: Callable, *args: Any) -> Any:
        """Has a thread do work with the encoder."""
        encoder = self._encoder
        return await self._places.run(lambda left: work(encoder.until(left), *args))

    def _predict(self, encoder: Any, texts: List[str]) -> List[Any]:
        if self.task == "feature-extraction":
            return encoder.embed(encoder.tokens(texts))
        how = "index"
        if self._option("return_raw_logits"):
            how = "logits"
        elif self._option("return_probabilities"):
            how = "probabilities"
        return self._answers[self.task](encoder, texts, how)

    def _texts(self, payload: InferenceRequest) -> List[str]:
        if len(payload.inputs) != 1 or payload.inputs[0].datatype != "BYTES":
            raise InferenceError(f"{self.name} takes one input, of texts (BYTES)")
        try:
            texts = self.decode(payload.inputs[0], default_codec=StringCodec)
            texts = [t.decode("utf-8") if isinstance(t, bytes) else t for t in texts]
        except UnicodeDecodeError as error:
            raise InferenceError(f"{self.name} takes texts in UTF-8: {error}") from error
        if not all(isinstance(t, str) for t in texts):
            raise InferenceError(f"{self.name} takes texts: an element is none")
        if not 0 < len(texts) <= openai.MAX_TEXTS:
            raise InferenceError(f"1 to {openai.MAX_TEXTS} texts are answered at once")
        return texts

    # OpenAI's paths.

    async def answer(self, call: str, request: Request) -> Any:
        """Answers one of them."""
        try:
            fields = openai.Fields(await request.body())
            named = fields.text("model", self.name)
            if named not in (self.name, self._extra.get("alias")):
                raise openai.Refused(
                    f"the model {named!r} is not served here; {self.name!r} is",
                    "model", 404, "model_not_found",
                )  # fmt: skip
            if call in ("completions", "chat/completions"):
                if self._chat is None:
                    raise openai.Refused(
                        f"{self.name} does not generate text: it is for {self.task}"
                    )
                return await self._chat.answer(fields, named, call == "chat/completions")
            return openai.Answer(await self._about_texts(call, fields))
        except openai.Refused as refused:
            return openai.Answer(refused.body(), refused.status)

    async def _about_texts(self, call: str, fields: openai.Fields) -> dict:
        if call == "embeddings" and self.task == "feature-extraction":
            return await self._work(self._embeddings, fields)
        ranks = self.task == "feature-extraction" or (
            self.task == "text-classification" and self._encoder.model.config.num_labels == 1
        )
        if call == "rerank" and ranks:
            return await self._work(self._ranking, fields)
        raise openai.Refused(f"{self.name} does not answer {call}: it is for {self.task}")

    def _embeddings(self, encoder: Any, fields: openai.Fields) -> dict:
        texts = fields.texts("input", openai.MAX_TEXTS)
        tokens = texts
        if isinstance(texts[0], str):
            tokens = encoder.all_tokens(texts)
        for number, one in enumerate(tokens):
            if len(one) > encoder.limit:
                raise openai.Refused(
                    f"input {number} has {len(one)} tokens; this model reads {encoder.limit}",
                    "input", code="context_length_exceeded",
                )  # fmt: skip
            if not all(0 <= token < encoder.model.config.vocab_size for token in one):
                raise openai.Refused(f"input {number} has a token that is none", "input")
        vectors = encoder.embed({"input_ids": tokens})
        size = fields.whole("dimensions", 1, len(vectors[0]), None)
        if size is not None:
            vectors = [_shortened(vector, size) for vector in vectors]
        return openai.embeddings(self.name, vectors, fields, sum(map(len, tokens)))

    def _ranking(self, encoder: Any, fields: openai.Fields) -> dict:
        query, texts = fields.text("query"), openai.documents(fields)
        if not query:
            raise openai.Refused("query is missing", "query")
        similar = self.task == "feature-extraction"
        scores, count = (encoder.similar if similar else encoder.scores)(query, texts)
        return openai.ranking(self.name, scores, texts, fields, count)


def _shortened(vector: List[float], size: int) -> List[float]:
    length = sum(v * v for v in vector[:size]) ** 0.5 or 1.0
    return [v / length for v in vector[:size]]


def _output(answer: List[Any]) -> ResponseOutput:
    """What a model said of each text, as a tensor; objects are JSON."""
    shape, flat = [], answer
    while isinstance(flat[0], list):
        shape.append(len(flat[0]))
        flat = [value for part in flat for value in part]
    if isinstance(flat[0], dict):
        shape, flat = [], answer
    datatype = {int: "INT64", float: "FP32"}.get(type(flat[0]), "BYTES")
    return ResponseOutput(
        name="output-0", datatype=datatype, shape=[len(answer), *shape], data=flat
    )


def _dtype_argument(version: str) -> str:
    return "dtype" if int(version.partition(".")[0]) >= 5 else "torch_dtype"


def _at(call: str, path: str) -> Callable:
    @custom_handler(rest_path=path)
    async def handler(self: HuggingFace, request: Request) -> Any:
        return await self.answer(call, request)

    return handler


# KServe's server has these paths below /openai, too.
for _call in ("completions", "chat/completions", "embeddings", "rerank"):
    for _name, _prefix in (("serve", "/v1/"), ("serve_openai", "/openai/v1/")):
        setattr(HuggingFace, f"{_name}_{_call.replace('/', '_')}", _at(_call, _prefix + _call))
