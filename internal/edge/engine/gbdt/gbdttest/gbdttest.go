// Package gbdttest compares models with what the real packages said of them. A
// directory holds cases: <name>.case.json with rows and answers, and beside it
// the model files it names.
package gbdttest

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// Tolerance is the largest difference allowed, relative to max(1, |wanted|).
const Tolerance = 1e-6

// Case is a model, rows, and the answers of the package that trained it.
type Case struct {
	Files     []string     `json:"files"`
	Objective string       `json:"objective"`
	Names     []string     `json:"names"`
	Rounds    *int         `json:"rounds"` // use only so many boosting rounds
	Best      *int         `json:"best"`   // the best iteration recorded
	Rows      [][]*float64 `json:"rows"`   // null is NaN
	Predict   [][]float64  `json:"predict"`
	Margin    [][]float64  `json:"margin"`
}

// Loader loads a model file: xgboost.Load or lightgbm.Load.
type Loader func(path string) (*gbdt.Model, error)

// Run runs every case of a directory, which must have some.
func Run(t *testing.T, dir string, load Loader) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.case.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases in %s (%v)", dir, err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var c Case
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, file := range c.Files {
			name := strings.TrimSuffix(filepath.Base(path), ".case.json") + "/" + strings.TrimPrefix(filepath.Ext(file), ".")
			t.Run(name, func(t *testing.T) { c.check(t, filepath.Join(dir, file), load) })
		}
	}
}

// check compares one model file with the answers.
func (c *Case) check(t *testing.T, path string, load Loader) {
	t.Helper()
	m, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.Objective != "" && m.Objective() != c.Objective {
		t.Errorf("objective %q, want %q", m.Objective(), c.Objective)
	}
	if len(c.Names) != 0 && strings.Join(m.FeatureNames(), "|") != strings.Join(c.Names, "|") {
		t.Errorf("feature names %q, want %q", m.FeatureNames(), c.Names)
	}
	if best, ok := m.BestIteration(); c.Best != nil && (!ok || best != *c.Best) {
		t.Errorf("best iteration %d (%v), want %d", best, ok, *c.Best)
	}
	if c.Rounds != nil {
		m = m.Limit(*c.Rounds)
	}
	if m.NumFeatures() != len(c.Rows[0]) {
		t.Fatalf("%d features, want %d", m.NumFeatures(), len(c.Rows[0]))
	}
	rows := c.flat()
	compare(t, "margin", m, rows, c.Margin, gbdt.Margin[float64, float64])
	compare(t, "prediction", m, rows, c.Predict, gbdt.Predict[float64, float64])
	if m.Single() {
		narrow := make([]float32, len(rows))
		for i, x := range rows {
			narrow[i] = float32(x)
		}
		compare(t, "prediction of float32", m, narrow, c.Predict, gbdt.Predict[float64, float32])
	}
}

// flat lays the rows out row-major.
func (c *Case) flat() []float64 {
	var rows []float64
	for _, row := range c.Rows {
		for _, x := range row {
			if x == nil {
				rows = append(rows, math.NaN())
			} else {
				rows = append(rows, *x)
			}
		}
	}
	return rows
}

// compare predicts all rows at once, and each alone, and compares both.
func compare[In gbdt.Number](t *testing.T, what string, m *gbdt.Model, rows []In, want [][]float64,
	predict func(*gbdt.Model, []float64, []In, int) error) {
	t.Helper()
	width, features := len(want[0]), m.NumFeatures()
	together := make([]float64, len(want)*width)
	if err := predict(m, together, rows, len(want)); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	alone := make([]float64, width)
	bad := 0
	for i, answers := range want {
		if err := predict(m, alone, rows[i*features:(i+1)*features], 1); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for j, w := range answers {
			got := together[i*width+j]
			if alone[j] != got {
				t.Errorf("%s of row %d, output %d: %v in a batch, %v alone", what, i, j, got, alone[j])
			}
			if !(math.Abs(got-w) <= Tolerance*max(1, math.Abs(w))) {
				if bad++; bad <= 3 {
					t.Errorf("%s of row %d, output %d: %v, want %v", what, i, j, got, w)
				}
			}
		}
	}
	if bad > 3 {
		t.Errorf("%s: %d values differ", what, bad)
	}
}
