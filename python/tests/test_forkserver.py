"""The fork server: what it imports, what it forks, and when it does not."""

import os
import signal
import sys

import pytest
from peer import WAIT, ForkPeer
from roundhouse import preload, scope
from test_worker import ECHO

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="workers are forked on Linux alone"
)


@pytest.fixture
def server(tmp_path):
    """Starts fork servers; ends them with the test."""
    peers = []

    def starter(**options):
        peer = ForkPeer(tmp_path / f"server{len(peers)}", **options)
        peers.append(peer)
        return peer

    yield starter
    for peer in peers:
        peer.close()


def write(folder, source):
    folder.mkdir(parents=True)
    (folder / "models.py").write_text(source)
    return str(folder)


def test_a_forked_worker_is_a_worker(server, tmp_path):
    folder = write(tmp_path / "m", ECHO)
    fork = server()
    worker = fork.fork([{"implementation": "models.Model", "folder": folder}])
    assert worker.hello["token"] == "of a worker"
    assert worker.hello["pid"] == fork.forked != fork.process.pid
    worker.welcome()
    settings = {"name": "m", "implementation": "models.Model"}
    answer = worker.ask(kind="load", model="m@1", settings=settings, folder=folder)
    assert answer["kind"] == "result", answer
    worker.send({"kind": "stop", "grace": 1})
    while worker.receive()[0]["kind"] != "goodbye":
        pass


def test_output_goes_where_the_worker_is_told(server, tmp_path):
    folder = write(tmp_path / "m", "print('mine', flush=True)\n" + ECHO)
    fork = server()
    worker = fork.fork([])
    worker.welcome()
    settings = {"name": "m", "implementation": "models.Model"}
    worker.ask(kind="load", model="m@1", settings=settings, folder=folder)
    assert os.read(fork.output, 100) == b"mine\n"


def test_the_worker_lives_on_without_its_fork_server(server):
    fork = server()
    worker = fork.fork([])
    worker.welcome()
    fork.process.send_signal(signal.SIGKILL)
    fork.process.wait(WAIT)
    assert worker.ask(kind="ping")["kind"] == "pong"


def test_the_fork_server_ends_with_its_server(server):
    fork = server()
    fork.socket.close()
    assert fork.process.wait(WAIT) == 0


def test_a_thread_of_somebody_forbids_forks(server, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    answer = server(path=str(tmp_path)).ask_fork([])
    assert answer["error"]["kind"] == "unsupported"
    assert "1 threads" in answer["error"]["message"]


def test_a_fork_that_fails_is_said(server):
    answer = server().ask_fork([], output="/nowhere/at/all")
    assert answer["error"]["kind"] == "failed"
    assert "/nowhere/at/all" in answer["error"]["message"]


def test_models_are_imported_as_far_as_they_are_known(tmp_path):
    folder = write(tmp_path / "own", """
import os, torch, pandas
from sklearn.svm import SVC
from .beside import thing

def later():
    import scipy.stats as stats
""")
    write(tmp_path / "broken", "def")
    write(tmp_path / "early", "import os\nos.environ['X'] = '1'\nimport pandas")
    assert preload.wanted([
        {"implementation": "mlserver_xgboost.XGBoostModel"},
        {"implementation": "models:Model", "folder": folder},
        {"implementation": "models.Model", "folder": str(tmp_path / "broken")},
        {"implementation": "models.Model", "folder": str(tmp_path / "early")},
        {"implementation": "nowhere.Model", "folder": folder},
        {"implementation": "torch.Model"},
        {},
    ]) == {"mlserver_xgboost", "pandas", "sklearn.svm", "scipy.stats"}
    assert "sklearn.linear_model" in preload.wanted(
        [{"implementation": "roundhouse.runtimes.sklearn.SKLearn"}]
    )


def test_only_installed_modules_are_imported(tmp_path, monkeypatch):
    for name in ("joblib", "lightgbm", "antigravity_of_mine"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('never')")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("joblib", "lightgbm", "antigravity_of_mine"):
        assert not preload.load([name])
        assert name not in sys.modules


def test_settled_modules_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(scope, "_settled", scope._settled)
    scope.settle()
    monkeypatch.setitem(sys.modules, "a_new_one", sys)
    assert scope._recent() == [("a_new_one", sys)]
    # One that goes and comes again changes the order: all are looked at.
    first = next(iter(sys.modules))
    again = sys.modules.pop(first)
    try:
        assert len(scope._recent()) == len(sys.modules)
    finally:
        sys.modules[first] = again
    assert len(scope._recent()) == len(sys.modules)
