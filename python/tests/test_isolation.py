"""Models in one worker: their modules, their reloads, what they unpickle."""

import os

SOURCE = """
from mlserver import MLModel
from mlserver.types import InferenceResponse, Parameters
{imports}

class Model(MLModel):
    async def predict(self, request):
        {lazy}
        return InferenceResponse(
            model_name=self.name, outputs=[], parameters=Parameters(said={said}))
"""


def said(worker, key):
    answer = worker.infer(key, [])
    assert answer["kind"] == "result", answer
    return answer["response"]["parameters"]["said"]


def source(said, imports="", lazy="pass"):
    return SOURCE.format(said=said, imports=imports, lazy=lazy)


def test_two_models_whose_modules_share_names(worker, model, tmp_path):
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "helper.py").write_text(f"who = {name!r}")
        (folder / "package").mkdir()
        (folder / "package" / "__init__.py").write_text("from .deep import who")
        (folder / "package" / "deep.py").write_text(f"who = 'deep ' + {name!r}")
        (folder / "space").mkdir()
        (folder / "space" / "inner.py").write_text(f"who = 'space ' + {name!r}")
        text = source(
            "[helper.who, package.who, inner.who, late.who]",
            "import helper\nimport package\nfrom space import inner",
            "import late",
        )
        (folder / "late.py").write_text(f"who = 'late ' + {name!r}")
        assert model(text, key=name, folder=folder)["ready"] is True
    for name in ("a", "b", "a", "b"):
        assert said(worker, name) == [
            name, f"deep {name}", f"space {name}", f"late {name}"]


def test_importlib_and_pickle_find_the_models_own_modules(worker, model, tmp_path):
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "shapes.py").write_text(f"class Shape:\n    who = {name!r}\n")
        (folder / "shape.pickle").write_bytes(b"\x80\x04\x8c\x06shapes\x8c\x05Shape\x93)\x81.")
        text = source(
            "[pickle.load(open(os.path.join(here, 'shape.pickle'), 'rb')).who,"
            " importlib.import_module('shapes').Shape.who]",
            "import importlib, os, pickle\nhere = os.path.dirname(__file__)",
        )
        assert model(text, key=name, folder=folder)["ready"] is True
    assert [said(worker, n) for n in "abab"] == [["a", "a"], ["b", "b"]] * 2


def test_a_reload_takes_the_new_code_even_within_a_second(worker, model, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    times = None
    for turn in range(3):
        (folder / "helper.py").write_text(f"value = {turn}")
        if times:
            os.utime(folder / "helper.py", times)
        stat = os.stat(folder / "helper.py")
        times = (stat.st_atime, stat.st_mtime)
        model(source("helper.value", "import helper"), key=f"m@{turn}", folder=folder)
        assert said(worker, f"m@{turn}") == turn
        if turn:
            # The former instance still answers, with its own code.
            assert said(worker, f"m@{turn - 1}") == turn - 1
            worker.ask(kind="unload", model=f"m@{turn - 1}")
    assert not (folder / "__pycache__").exists()


def test_a_module_of_the_folder_wins_over_an_installed_one(worker, model, tmp_path):
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "a":
            (folder / "pytest.py").write_text("who = 'mine'")
        text = source("getattr(pytest, 'who', 'installed')", lazy="import pytest")
        model(text, key=name, folder=folder)
    assert [said(worker, n) for n in "baba"] == ["installed", "mine"] * 2


def test_a_file_named_like_the_standard_library_harms_nobody(worker, model, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "json.py").write_text("raise RuntimeError('not this one')")
    model(source("json.dumps(1)", "import json"), key="m", folder=folder)
    assert said(worker, "m") == "1"


def test_tasks_of_two_models_interleave_without_mixing(worker, model, tmp_path):
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        for turn in range(5):
            (folder / f"part{turn}.py").write_text(f"who = {name!r}")
        lazy = """import asyncio, importlib
        found = []
        for turn in range(5):
            await asyncio.sleep(0)
            found.append(importlib.import_module(f"part{turn}").who)"""
        model(source("''.join(found)", lazy=lazy), key=name, folder=folder)
    wanted = {}
    for number in range(200, 220):
        name = "ab"[number % 2]
        wanted[number] = name * 5
        worker.send({"kind": "infer", "id": number, "model": name,
                     "request": {"inputs": []}})
    for _ in wanted:
        header, _ = worker.receive()
        text = header["response"]["parameters"]["said"]
        assert text == wanted[header["id"]]


def test_an_environment_inside_the_folder_is_not_the_models_own(worker, model, tmp_path):
    folder = tmp_path / "m"
    installed = folder / "env" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "shared.py").write_text("loads = []")
    (installed / "package").mkdir()
    (installed / "package" / "__init__.py").write_text("")
    (installed / "package" / "part.py").write_text("")
    imports = f"""import sys
sys.path.append({str(installed)!r}) if {str(installed)!r} not in sys.path else None
import shared, package.part
shared.loads.append(1)"""
    for turn in (1, 2):
        model(source("len(shared.loads)", imports), key=f"m@{turn}", folder=folder)
        assert said(worker, f"m@{turn}") == turn
    assert not (folder / "__pycache__").exists()
