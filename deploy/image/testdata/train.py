"""Writes a model of y = 2a + 3b + 1 for each runtime of examples/python-runtimes
whose packages its requirements name."""

import sys

import catboost
import joblib
import mlflow
import numpy as np
from sklearn.linear_model import LinearRegression

out = sys.argv[1]
x = np.array([[a, b] for a in range(4) for b in range(4)], dtype=float)
y = 2 * x[:, 0] + 3 * x[:, 1] + 1
linear = LinearRegression().fit(x, y)

joblib.dump(linear, f"{out}/sklearn/model.joblib")
mlflow.sklearn.save_model(linear, f"{out}/mlflow/model", input_example=x)
# Trees deep and many enough to know these points by heart.
trees = catboost.CatBoostRegressor(iterations=300, learning_rate=0.3, l2_leaf_reg=0, verbose=False, allow_writing_files=False)
trees.fit(x, y).save_model(f"{out}/catboost/model.cbm")
