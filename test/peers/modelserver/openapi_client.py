#!/usr/bin/env python3
"""Generates clients from the server's OpenAPI documents and asks it with them.

usage: openapi_client.py HOST:PORT REPOSITORY [ROOT_PATH]

The documents are validated first. Their servers are relative to where they
were read, so the clients' base is what a browser would make of them.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

import numpy
from openapi_spec_validator import validate

from expected import IRIS, XGBOOST, Expected, same

TIMEOUT = 60  # seconds
BIN = pathlib.Path(sys.executable).parent


def document(url):
    """A document that is valid, and the base of its paths."""
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        found = json.load(answer)
    validate(found)
    (server,) = found["servers"]
    return found, urllib.parse.urljoin(url, server["url"]).rstrip("/")


def generate(folder, name, found):
    """A package made of a document; nothing of the document may be left out."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(found))
    (folder / "config.yaml").write_text("post_hooks: []\n")
    said = subprocess.run(
        [BIN / "openapi-python-client", "generate", "--path", file, "--output-path", folder / name,
         "--config", folder / "config.yaml", "--meta", "none", "--fail-on-warning"],
        capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stdout + said.stderr


def dataplane(base, want):
    """Asks for everything but the repository."""
    from dataplane import Client
    from dataplane.api.health import model_ready, server_live, server_ready
    from dataplane.api.inference import model_inference, model_version_generate
    from dataplane.api.metadata import model_metadata, server_metadata
    from dataplane.models import Datatype, Error, InferenceRequest, InferenceResponse, RequestInput, RequestOutput, ValidationError

    client = Client(base_url=base, timeout=TIMEOUT)
    assert server_live.sync(client=client).live is True
    assert server_ready.sync(client=client).ready is True
    assert model_ready.sync(XGBOOST, client=client).ready is True
    assert "model_repository" in server_metadata.sync(client=client).extensions
    described = model_metadata.sync(XGBOOST, client=client)
    assert described.name == XGBOOST and described.inputs[0].datatype == Datatype.FP32, described
    assert isinstance(model_metadata.sync("nope", client=client), Error)

    def request(rows, **more):
        one = RequestInput(name="x", shape=list(rows.shape), datatype=Datatype.FP64, data=rows.tolist())
        return InferenceRequest(inputs=[one], **more)

    got = model_inference.sync(XGBOOST, client=client, body=request(IRIS, id="one"))
    assert isinstance(got, InferenceResponse) and got.id == "one", got
    same(numpy.array(got.outputs[0].data).reshape(got.outputs[0].shape), want.classes)
    asked = request(IRIS, outputs=[RequestOutput(name="predict_proba")])
    got = model_version_generate.sync(XGBOOST, "v1", client=client, body=asked)
    same(numpy.array(got.outputs[0].data).reshape(got.outputs[0].shape), want.probabilities)
    refused = model_inference.sync_detailed(XGBOOST, client=client, body=request(IRIS[:, :3]))
    assert refused.status_code == 400 and "got 3" in refused.parsed.error, refused
    bad = request(IRIS)
    bad.inputs[0].shape = ["x"]
    refused = model_inference.sync_detailed(XGBOOST, client=client, body=bad)
    assert refused.status_code == 422 and isinstance(refused.parsed, ValidationError), refused
    assert refused.parsed.detail[0].loc[0] == "body", refused.parsed


def repository(base):
    """Lists, unloads and loads."""
    from model_repository import Client
    from model_repository.api.model_repository import load_model, model_unload, repository_index
    from model_repository.models import Error, RepositoryIndexRequest

    client = Client(base_url=base, timeout=TIMEOUT)

    def state(**body):
        return {m.name: m.state.value for m in repository_index.sync(client=client, body=RepositoryIndexRequest(**body))}

    assert state()[XGBOOST] == "READY"
    assert model_unload.sync_detailed(XGBOOST, client=client).status_code == 200
    assert state()[XGBOOST] == "UNAVAILABLE" and XGBOOST not in state(ready=True)
    assert load_model.sync_detailed(XGBOOST, client=client).status_code == 200
    assert state(ready=True)[XGBOOST] == "READY"
    assert isinstance(load_model.sync("nope", client=client), Error)


def main():
    root = "http://" + sys.argv[1] + (sys.argv[3] if len(sys.argv) > 3 else "")
    want = Expected(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        bases = {}
        for name in ("dataplane", "model_repository"):
            found, bases[name] = document(f"{root}/v2/docs/{name}.json")
            assert bases[name] == root, (bases[name], root)
            generate(folder, name, found)
        for path in (f"/v2/models/{XGBOOST}/docs", f"/v2/models/{XGBOOST}/versions/v1/docs"):
            found, base = document(f"{root}{path}/dataplane.json")
            assert base == root and all(XGBOOST in p for p in found["paths"]), (base, found["paths"])
        sys.path.insert(0, str(folder))
        dataplane(bases["dataplane"], want)
        repository(bases["model_repository"])


if __name__ == "__main__":
    main()
