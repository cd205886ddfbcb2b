"""Trains a model with Python's xgboost and times its predictions on demand.

Argument: a folder, which gets model.ubj, rows.f32 and predictions.f32. Prints
the package's version once that is done, then for every line "WAY ROWS THREADS"
on standard input the seconds one call took: of CPU time, and elapsed.
"""

import pathlib
import sys
import time

import numpy
import xgboost

ROWS, FEATURES = 1000, 28
SAMPLE_SECONDS = 0.1


def train(folder):
    """Trains 100 trees of depth 6 on rows whose label takes interactions to tell."""
    rng = numpy.random.default_rng(1)
    rows = rng.normal(size=(20000, FEATURES)).astype(numpy.float32)
    score = rows[:, 0] * rows[:, 1] + rows[:, 2] - rows[:, 3] ** 2 + rng.normal(size=len(rows))
    labels = (score > numpy.median(score)).astype(numpy.float32)
    booster = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 6, "seed": 1}, xgboost.DMatrix(rows, labels), 100
    )
    booster.save_model(folder / "model.ubj")
    rows = numpy.ascontiguousarray(rows[:ROWS])
    rows.tofile(folder / "rows.f32")
    booster.predict(xgboost.DMatrix(rows)).astype(numpy.float32).tofile(folder / "predictions.f32")
    return booster, rows


def sample(call):
    """Gives the seconds of one call, CPU and elapsed, over enough of them."""
    call()
    calls, cpu, begin = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - begin < SAMPLE_SECONDS:
        call()
        calls += 1
    return (time.process_time() - cpu) / calls, (time.perf_counter() - begin) / calls


def main():
    booster, rows = train(pathlib.Path(sys.argv[1]))
    ways = {
        "dmatrix": lambda some, threads: lambda: booster.predict(xgboost.DMatrix(some, nthread=threads)),
        "inplace": lambda some, threads: lambda: booster.inplace_predict(some),
    }
    print(xgboost.__version__, flush=True)
    for line in sys.stdin:
        way, count, threads = line.split()
        booster.set_param({"nthread": int(threads)})
        print(*sample(ways[way](rows[: int(count)], int(threads))), flush=True)


if __name__ == "__main__":
    main()
