"""The light package against MLServer itself: the same requests through both.

Needs an interpreter with MLServer and pandas: the one that runs the tests, or
the one ROUNDHOUSE_MLSERVER_PYTHON names. Every difference must be one of
differences.json, and every entry there must still be true.
"""

import json
import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
LIGHT = os.path.join(os.path.dirname(HERE), "roundhouse", "_mlserver")
COUNT = 800


def _python():
    named = os.environ.get("ROUNDHOUSE_MLSERVER_PYTHON", sys.executable)
    probe = "import mlserver, pandas; print(mlserver.__file__)"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    found = subprocess.run([named, "-c", probe], capture_output=True, env=environment)
    return named if found.returncode == 0 else None


def _outcomes(python, path):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = path
    done = subprocess.run(
        [python, os.path.join(HERE, "cases.py"), str(COUNT)],
        capture_output=True, env=environment, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _explains(entry, case, theirs, ours):
    request = json.dumps(case["request"], ensure_ascii=False)
    return (
        re.search(entry.get("request", ""), request)
        and re.search(entry["mlserver"], json.dumps(theirs, ensure_ascii=False))
        and re.search(entry["ours"], json.dumps(ours, ensure_ascii=False))
    )


def test_the_light_package_answers_as_mlserver_does():
    python = _python()
    if python is None:
        pytest.skip("no MLServer: set ROUNDHOUSE_MLSERVER_PYTHON to compare with it")
    with open(os.path.join(HERE, "differences.json"), encoding="utf-8") as file:
        entries = json.load(file)
    used = {entry["name"]: 0 for entry in entries}
    unexplained, answered = [], 0
    theirs_all, ours_all = _outcomes(python, None), _outcomes(python, LIGHT)
    assert len(theirs_all) == len(ours_all) == COUNT
    for case, other in zip(theirs_all, ours_all):
        theirs, ours = case["outcome"], other["outcome"]
        answered += "ok" in theirs
        if theirs == ours:
            continue
        reasons = [e["name"] for e in entries if _explains(e, case, theirs, ours)]
        if not reasons:
            unexplained.append((case["number"], case["operation"], case["request"], theirs, ours))
        for name in reasons[:1]:
            used[name] += 1
    assert unexplained == []
    assert answered > COUNT // 2
    unused = [name for name, count in used.items() if not count]
    assert not unused, f"no request shows these differences any more: {unused}"
    print(f"{COUNT} requests, {answered} answered; intended differences: {used}")
