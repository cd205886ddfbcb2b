"""mlserver_huggingface in a worker: its codecs, settings and runtime class.

The package imports torch, tensorflow, optimum and a class that transformers
dropped in 4.42, gigabytes that these tests do without: stand-ins for what it
imports from them are put on the workers' path, with pipelines that answer
with what they were given. What is under test, the package's use of mlserver,
is the package's own, unmodified.
"""

import importlib.util
import json

import pytest

from peer import elements
from test_published import both  # noqa: F401

STAND_INS = {
    "torch.py": "",
    "tensorflow.py": "",
    "optimum/__init__.py": "",
    "optimum/pipelines.py": "ORT_SUPPORTED_TASKS = {}\npipeline = None\n",
    "transformers/__init__.py": "",
    "transformers/pipelines/base.py": "class Pipeline:\n    pass\n",
    "transformers/pipelines/__init__.py": """
SUPPORTED_TASKS = {"text-classification": {}, "question-answering": {}}

class Conversation:
    pass

class _Echo:
    framework = "tf"

    def __init__(self, task, options):
        self.task, self.options = task, options

    def __call__(self, *args, **kwargs):
        return [{"task": self.task, "args": repr(args), "kwargs": repr(sorted(kwargs.items()))}]

def pipeline(task, **options):
    return _Echo(task, options)
""",
}


@pytest.fixture
def path(tmp_path):
    for needed in ("mlserver_huggingface", "orjson", "pydantic_settings", "PIL"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    for name, text in STAND_INS.items():
        file = tmp_path / "stand-ins" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(tmp_path / "stand-ins")


def ask(peers, request):
    """Each worker's answer: the objects in its one output."""
    found = []
    for peer in peers:
        answer, payload = peer.ask(raw=True, kind="infer", model="m", request=request)
        assert answer["kind"] == "result", answer
        (output,) = answer["response"]["outputs"]
        raw = payload[output["offset"] :][: output["length"]]
        assert output["name"] == "output"
        assert output["parameters"]["content_type"] == "hg_jsonlist"
        found.append([json.loads(e) for e in elements(raw)])
    return found


def words(name, *data, content_type="str"):
    return {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": list(data),
            "parameters": {"content_type": content_type}}


REQUESTS = [
    [words("args", "one", "two")],
    [words("question", "who?"), words("context", "me")],
    [words("one", '{"a": [1, 2]}', content_type="hg_json")],
    [words("many", '{"a": 1}', '{"b": 2}', content_type="hg_jsonlist")],
    [{"name": "array_inputs", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4],
      "parameters": {"content_type": "nplist"}}],
    [{"name": "x", "shape": [1], "datatype": "INT32", "data": [7],
      "parameters": {"content_type": "raw"}}],
    [{"name": "x", "shape": [2], "datatype": "BYTES", "data": ["no type"]}],
]


def test_requests_reach_the_pipeline_as_they_do_in_mlserver(both):
    loaded = both.load(
        "mlserver_huggingface.HuggingFaceRuntime",
        parameters={"extra": {"task": "question-answering", "pretrained_model": "none"}})
    assert loaded["metadata"]["inputs"]
    for inputs in REQUESTS:
        answers = ask(both.peers, {"inputs": inputs})
        assert answers[0][0]["task"] == "question-answering"
        assert all(answer == answers[0] for answer in answers)


def test_a_wrong_task_is_refused(both):
    settings = {"name": "m", "implementation": "mlserver_huggingface.HuggingFaceRuntime",
                "parameters": {"uri": "./", "extra": {"task": "juggling"}}}
    for peer in both.peers:
        answer = peer.ask(kind="load", model="m", settings=settings, folder=str(both.folder))
        assert answer["error"]["status"] == 400
        assert "juggling" in answer["error"]["message"]
