#!/usr/bin/env python3
"""Trains models with the real xgboost and lightgbm and writes them with their
predictions, as cases for package gbdttest.

usage: train.py FOLDER            all cases, for the peers test
       train.py --fixtures FOLDER a few small ones, for testdata

Writes FOLDER/xgboost/ and FOLDER/lightgbm/.
"""

import json
import math
import pathlib
import sys

import lightgbm
import numpy
import xgboost
from sklearn import datasets

SMALL = sys.argv[1] == "--fixtures"
ROOT = pathlib.Path(sys.argv[-1])
ROUNDS = 3 if SMALL else 30
DEPTH = 2 if SMALL else 5
SHOWN = 12 if SMALL else 80

# The cases kept as fixtures, with the file each is kept in.
FIXTURES = {
    "xgboost": {
        "binary": "ubj", "softprob": "json", "softmax": "ubj", "squared": "ubj", "missing": "json",
        "onehot": "ubj", "partition": "json", "dart": "ubj", "linear": "json", "linear_softprob": "ubj",
        "forest": "ubj", "poisson": "json", "early": "ubj", "vector_leaf": "ubj", "targets": "json", "pruned": "ubj",
    },
    "lightgbm": {
        "binary": "txt", "multiclass": "txt", "multiclassova": "txt", "regression": "txt", "missing": "txt",
        "zero_missing": "txt", "categorical": "txt", "dart": "txt", "rf": "txt", "linear_tree": "txt",
        "poisson": "txt", "sqrt": "txt", "constant": "txt",
    },
}


def numbers(table):
    """A table as lists of rows, NaN as None."""
    table = numpy.asarray(table, dtype=numpy.float64)
    if table.ndim == 1:
        table = table.reshape(-1, 1)
    return [[None if math.isnan(x) else x for x in row] for row in table.tolist()]


def write(library, name, save, extensions, **case):
    """Writes a case and its model in every format that is kept of it."""
    if SMALL:
        if name not in FIXTURES[library]:
            return
        extensions = [FIXTURES[library][name]]
    folder = ROOT / library
    folder.mkdir(parents=True, exist_ok=True)
    case["files"] = [f"{name}.{extension}" for extension in extensions]
    for file in case["files"]:
        save(folder / file)
    (folder / f"{name}.case.json").write_text(json.dumps(case))


def with_holes(rows, share=0.2, seed=3):
    """The rows with some values missing."""
    rows = rows.copy()
    rows[numpy.random.default_rng(seed).random(rows.shape) < share] = numpy.nan
    return rows


def with_codes(rows, column, count):
    """The rows with a column turned into category codes, scrambled."""
    rows = rows.copy()
    ranks = rows[:, column].argsort().argsort()
    codes = ranks * count // len(rows)
    rows[:, column] = numpy.random.default_rng(4).permutation(count)[codes]
    return rows


IRIS = datasets.load_iris(return_X_y=True)
DIGITS = datasets.load_digits(return_X_y=True)
CANCER = datasets.load_breast_cancer(return_X_y=True)
DIABETES = datasets.load_diabetes(return_X_y=True)
GROUPS = [len(DIABETES[1]) // 13] * 13
GRADES = numpy.clip(DIABETES[1] // 60, 0, 4).astype(int)


# ---- XGBoost ----------------------------------------------------------------


def xgb(name, rows, target, rounds=None, types=None, shown=None, names=None, labels=None, limit=None, valid=None, **params):
    """Trains and writes an XGBoost case."""
    def matrix(x, y=None):
        return xgboost.DMatrix(
            x.astype(numpy.float32), y, feature_types=types, feature_names=names, enable_categorical=types is not None
        )

    params = {"max_depth": DEPTH, "seed": 7, "nthread": 2} | params
    if params.get("booster") == "gblinear":
        params.pop("max_depth")
    data = matrix(rows, target)
    if labels:
        labels(data)
    extra = {}
    if valid is not None:
        extra = {"evals": [(matrix(*valid), "valid")], "early_stopping_rounds": 2, "verbose_eval": False}
    booster = xgboost.train(params, data, num_boost_round=rounds or ROUNDS, **extra)
    shown = (rows if shown is None else shown)[:: max(1, len(rows) // SHOWN)][:SHOWN]
    shown = shown.astype(numpy.float32)
    case = {"objective": params.get("objective", "reg:squarederror"), "names": names or []}
    span = (0, 0)
    if valid is not None:
        case["best"] = booster.best_iteration
        case["rounds"] = booster.best_iteration + 1
        span = (0, booster.best_iteration + 1)
    query = matrix(shown)
    write(
        "xgboost", name, booster.save_model, ["json", "ubj"], rows=numbers(shown),
        predict=numbers(booster.predict(query, iteration_range=span)),
        margin=numbers(booster.predict(query, output_margin=True, iteration_range=span)), **case,
    )


def xgb_tables():
    """One table, one objective."""
    xgb("binary", *CANCER, objective="binary:logistic", names=[f"f {i} ü\"" for i in range(30)])
    xgb("binary_base", *CANCER, objective="binary:logistic", base_score=0.3)
    xgb("logitraw", *CANCER, objective="binary:logitraw", base_score=0.3)
    xgb("hinge", *CANCER, objective="binary:hinge")
    xgb("softprob", *IRIS, objective="multi:softprob", num_class=3)
    xgb("softmax", *IRIS, objective="multi:softmax", num_class=3)
    xgb("digits", *DIGITS, objective="multi:softprob", num_class=10)
    rows, target = DIABETES
    xgb("squared", rows, target)
    xgb("logistic", rows, target / 400, objective="reg:logistic")
    for objective in ("squaredlogerror", "pseudohubererror", "absoluteerror", "gamma", "tweedie"):
        xgb(objective, rows, target, objective="reg:" + objective)
    xgb("poisson", rows, target, objective="count:poisson")
    xgb("quantile", rows, target, objective="reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9])
    if tuple(map(int, xgboost.__version__.split(".")[:2])) >= (3, 3):
        xgb("expectile", rows, target, objective="reg:expectileerror", expectile_alpha=[0.2, 0.5, 0.8])
    for objective in ("pairwise", "ndcg", "map"):
        grades = (GRADES > 1).astype(int) if objective == "map" else GRADES
        xgb(objective, rows, grades, objective="rank:" + objective, labels=lambda d: d.set_group(GROUPS))
    xgb("cox", rows, numpy.where(rows[:, 1] > 0, target, -target), objective="survival:cox")

    def bounds(data):
        data.set_float_info("label_lower_bound", target)
        data.set_float_info("label_upper_bound", numpy.where(rows[:, 1] > 0, target, numpy.inf))
    xgb("aft", rows, target, objective="survival:aft", labels=bounds)


def xgb_shapes():
    """Boosters, splits and files of every shape."""
    rows, target = CANCER
    holes = with_holes(rows)
    xgb("missing", holes, target, objective="binary:logistic")
    xgb("unseen_missing", rows, target, objective="binary:logistic", shown=holes)
    xgb("dart", rows, target, booster="dart", rate_drop=0.3, objective="binary:logistic")
    xgb("dart_softprob", *IRIS, booster="dart", rate_drop=0.3, objective="multi:softprob", num_class=3)
    forest = {"num_parallel_tree": 10 if SMALL else 30, "subsample": 0.7, "colsample_bynode": 0.6, "learning_rate": 1}
    xgb("forest", rows, target, rounds=1, objective="binary:logistic", **forest)
    xgb("forest_softprob", *IRIS, rounds=4, objective="multi:softprob", num_class=3, **forest)
    xgb("pruned", *DIABETES, tree_method="exact", gamma=30000.0, max_depth=4)
    xgb("early", *IRIS, rounds=60, objective="multi:softprob", num_class=3, learning_rate=0.9,
        valid=(IRIS[0][1::2] + 0.3, IRIS[1][1::2]))
    xgb("linear", with_holes(DIABETES[0]), DIABETES[1], booster="gblinear")
    xgb("linear_binary", rows / 100, target, booster="gblinear", objective="binary:logistic", base_score=0.4)
    xgb("linear_softprob", *IRIS, booster="gblinear", objective="multi:softprob", num_class=3)
    rows, target = DIABETES
    two = numpy.c_[target, -target / 3]
    xgb("targets", rows, two)
    xgb("vector_leaf", rows, two, multi_strategy="multi_output_tree", tree_method="hist")
    codes = with_codes(with_codes(rows, 2, 6), 8, 50)
    odd = with_holes(codes, 0.1)
    odd[3, 8], odd[7, 8], odd[11, 2] = 77, 400, 6
    types = ["c" if i in (2, 8) else "q" for i in range(10)]
    xgb("onehot", codes, target, types=types, shown=odd, max_cat_to_onehot=100)
    xgb("partition", with_holes(codes, 0.1, 5), target, types=types, shown=odd, max_cat_to_onehot=2)


# ---- LightGBM ---------------------------------------------------------------


def lgb(name, rows, target, objective="regression", shown=None, rounds=None, group=None, categorical="auto", **params):
    """Trains and writes a LightGBM case."""
    params = {
        "num_leaves": 4 if SMALL else 15, "seed": 7, "num_threads": 2, "verbose": -1, "min_data_in_leaf": 10,
        "objective": objective,
    } | params
    data = lightgbm.Dataset(rows, target, group=group, categorical_feature=categorical, free_raw_data=False,
                            params={k: v for k, v in params.items() if k != "objective"})
    booster = lightgbm.train(params, data, num_boost_round=rounds or ROUNDS)
    shown = (rows if shown is None else shown)[:: max(1, len(rows) // SHOWN)][:SHOWN]
    write(
        "lightgbm", name, booster.save_model, ["txt"], rows=numbers(shown), names=booster.feature_name(),
        objective="custom" if callable(objective) else objective,
        predict=numbers(booster.predict(shown)), margin=numbers(booster.predict(shown, raw_score=True)),
    )


def lgb_tables():
    """One table, one objective."""
    lgb("binary", *CANCER, objective="binary")
    lgb("binary_slope", *CANCER, objective="binary", sigmoid=2.5)
    lgb("multiclass", *IRIS, objective="multiclass", num_class=3)
    lgb("digits", *DIGITS, objective="multiclass", num_class=10)
    lgb("multiclassova", *IRIS, objective="multiclassova", num_class=3, sigmoid=0.7)
    rows, target = DIABETES
    for objective in ("regression", "regression_l1", "huber", "fair", "quantile", "mape", "poisson", "gamma", "tweedie"):
        lgb(objective, rows, target, objective=objective)
    lgb("sqrt", rows, target, reg_sqrt=True)
    lgb("cross_entropy", rows, target / 400, objective="cross_entropy")
    lgb("cross_entropy_lambda", rows, target / 400, objective="cross_entropy_lambda")
    lgb("lambdarank", rows, GRADES, objective="lambdarank", group=GROUPS)
    lgb("rank_xendcg", rows, GRADES, objective="rank_xendcg", group=GROUPS)
    lgb("custom", rows, target, objective=lambda predicted, data: (predicted - data.get_label(), numpy.ones(len(predicted))))


def lgb_shapes():
    """Boosters, splits and files of every shape."""
    rows, target = CANCER
    holes = with_holes(rows)
    zeros = numpy.where(numpy.isnan(with_holes(rows, 0.3, 9)), 0, holes)
    lgb("missing", holes, target, objective="binary")
    lgb("unseen_missing", rows, target, objective="binary", shown=holes)
    lgb("no_missing", holes, target, objective="binary", use_missing=False)
    lgb("zero_missing", zeros, target, objective="binary", zero_as_missing=True)
    lgb("dart", rows, target, objective="binary", boosting="dart", drop_rate=0.4)
    lgb("goss", rows, target, objective="binary", data_sample_strategy="goss")
    bagged = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6, "feature_fraction": 0.7}
    lgb("rf", rows, target, objective="binary", **bagged)
    lgb("rf_multiclass", *IRIS, objective="multiclass", num_class=3, **bagged)
    rows, target = DIABETES
    lgb("linear_tree", rows, target, linear_tree=True, shown=with_holes(rows, 0.05))
    lgb("linear_missing", with_holes(rows, 0.1), target, linear_tree=True)
    lgb("constant", rows, numpy.full(len(rows), 3.25))
    codes = with_codes(with_codes(rows, 2, 6), 8, 90)
    odd = with_holes(codes, 0.1)
    odd[3, 8], odd[7, 8], odd[11, 2], odd[15, 8], odd[20, 8] = 99, 4000, 6, -1, -0.5
    few = {"min_data_per_group": 3, "cat_smooth": 1, "categorical": [2, 8]}
    lgb("categorical", with_holes(codes, 0.1, 5), target, shown=odd, **few)
    lgb("categorical_full", codes, target, shown=odd, max_cat_to_onehot=20, **few)


if __name__ == "__main__":
    xgb_tables()
    xgb_shapes()
    lgb_tables()
    lgb_shapes()
