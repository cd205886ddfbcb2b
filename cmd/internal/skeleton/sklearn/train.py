"""Trains the model and writes it beside this file."""

import sys
from pathlib import Path

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def train(path: Path) -> None:
    """Fits a classifier of irises and writes it to a file."""
    data = load_iris()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(data.data, data.target_names[data.target])
    joblib.dump(model, path)


if __name__ == "__main__":
    here = Path(__file__).with_name("model.joblib")
    train(Path(sys.argv[1]) if len(sys.argv) > 1 else here)
