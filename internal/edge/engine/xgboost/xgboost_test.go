package xgboost

import (
	"errors"
	"math"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// TestQuickstart loads the model that the quickstart serves and compares with
// what Python's Booster.inplace_predict says of the sample row.
func TestQuickstart(t *testing.T) {
	m, err := Load("../../../../examples/quickstart/models/iris.ubj")
	if err != nil {
		t.Fatal(err)
	}
	if m.NumFeatures() != 4 || m.NumOutputs() != 3 || m.NumClasses() != 3 || m.Objective() != "multi:softprob" {
		t.Errorf("got %d features, %d outputs, %d classes, objective %q",
			m.NumFeatures(), m.NumOutputs(), m.NumClasses(), m.Objective())
	}
	if got := strings.Join(m.FeatureNames(), " "); got != "sepal_length sepal_width petal_length petal_width" {
		t.Errorf("feature names: %s", got)
	}
	got := make([]float32, 3)
	if err := gbdt.Predict(m, got, []float32{5.1, 3.5, 1.4, 0.2}, 1); err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{0.99185115, 0.00543696, 0.00271187} {
		if math.Abs(float64(got[i])-want) > 1e-6 {
			t.Errorf("class %d: got %v, want %v", i, got[i], want)
		}
	}
	err = gbdt.Predict(m, got, []float32{5.1, 3.5, 1.4}, 1)
	if !errors.Is(err, gbdt.ErrShape) || !strings.Contains(err.Error(), "expected 4 features per row, got 3") {
		t.Errorf("three features: %v", err)
	}
}
