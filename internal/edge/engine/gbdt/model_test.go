package gbdt_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// linear makes a linear model of two features whose margins are 1*x0 + 2*x1
// and 3*x0 + 4*x1 + 1.
func linear(t *testing.T, spec gbdt.Spec) *gbdt.Model {
	t.Helper()
	spec.Features, spec.Margins, spec.Single, spec.BestIteration = 2, 2, true, -1
	m, err := gbdt.NewLinear(spec, []float64{1, 3, 2, 4, 0, 1})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestLinks checks every link on the margins 1 and 4.
func TestLinks(t *testing.T) {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for name, c := range map[string]struct {
		link gbdt.Link
		want []float64
	}{
		"identity": {gbdt.LinkIdentity, []float64{1, 4}},
		"sigmoid":  {gbdt.LinkSigmoid, []float64{sigmoid(1), sigmoid(4)}},
		"each":     {gbdt.LinkSigmoidEach, []float64{sigmoid(1), sigmoid(4)}},
		"softmax":  {gbdt.LinkSoftmax, []float64{sigmoid(-3), sigmoid(3)}},
		"argmax":   {gbdt.LinkArgmax, []float64{1}},
		"exp":      {gbdt.LinkExp, []float64{math.E, math.Exp(4)}},
		"step":     {gbdt.LinkStep, []float64{1, 1}},
		"softplus": {gbdt.LinkSoftplus, []float64{math.Log(1 + math.E), math.Log(1 + math.Exp(4))}},
		"square":   {gbdt.LinkSquare, []float64{1, 16}},
		"sort":     {gbdt.LinkSort, []float64{1, 4}},
		"increase": {gbdt.LinkIncrease, []float64{1, 1 + 1e-6 + math.Log(1+math.Exp(4))}},
	} {
		t.Run(name, func(t *testing.T) {
			m := linear(t, gbdt.Spec{Link: c.link})
			got := make([]float64, m.NumOutputs())
			if err := gbdt.Predict(m, got, []float32{1, 0, math.MaxFloat32, 0}[:2], 1); err != nil {
				t.Fatal(err)
			}
			if len(got) != len(c.want) {
				t.Fatalf("%d outputs, want %d", len(got), len(c.want))
			}
			for i, w := range c.want {
				if math.Abs(got[i]-w) > 1e-6*w {
					t.Errorf("output %d: %v, want %v", i, got[i], w)
				}
			}
		})
	}
}

// TestShape checks what is said of calls with wrong lengths.
func TestShape(t *testing.T) {
	m := linear(t, gbdt.Spec{})
	for name, c := range map[string]struct {
		dst, rows, n int
		want         string
	}{
		"features":  {4, 6, 2, "expected 2 features per row, got 3"},
		"no values": {4, 0, 2, "expected 2 features per row, got 0"},
		"ragged":    {4, 5, 2, "expected 2 rows of 2 features, got 5 values"},
		"room":      {3, 4, 2, "expected room for 2 rows of 2 outputs, got 3"},
		"negative":  {0, 0, -1, "-1 rows"},
		"no rows":   {0, 4, 0, "expected 0 rows"},
		"huge":      {0, 0, math.MaxInt, "expected"},
	} {
		t.Run(name, func(t *testing.T) {
			err := gbdt.Predict(m, make([]float32, c.dst), make([]float32, c.rows), c.n)
			if !errors.Is(err, gbdt.ErrShape) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if err := gbdt.Predict(m, []float32{}, []float32{}, 0); err != nil {
		t.Errorf("no rows at all: %v", err)
	}
}

// TestSpecRefuses gives specs no model may have.
func TestSpecRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*gbdt.Spec)
		want   string
	}{
		"names":   {func(s *gbdt.Spec) { s.FeatureNames = []string{"a"} }, "1 feature names for 2"},
		"types":   {func(s *gbdt.Spec) { s.FeatureTypes = []string{"a"} }, "1 feature types for 2"},
		"base":    {func(s *gbdt.Spec) { s.Base = make([]float64, 3) }, "3 base scores for 1"},
		"link":    {func(s *gbdt.Spec) { s.Link = 200 }, "link function 200"},
		"slope":   {func(s *gbdt.Spec) { s.Slope = math.NaN() }, "not finite"},
		"rounds":  {func(s *gbdt.Spec) { s.Iterations = []int{0, 2} }, "do not cover the 0 trees"},
		"order":   {func(s *gbdt.Spec) { s.Iterations = []int{0, -1, 0} }, "out of order"},
		"outputs": {func(s *gbdt.Spec) { s.Margins = 2 }, "the model 2 and 2"},
	} {
		t.Run(name, func(t *testing.T) {
			forest, err := gbdt.NewForest(2, 1)
			if err != nil {
				t.Fatal(err)
			}
			spec := gbdt.Spec{Features: 2, Margins: 1, Iterations: []int{0}}
			c.change(&spec)
			if _, err := gbdt.New(spec, forest); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := gbdt.NewLinear(gbdt.Spec{Features: 2, Margins: 1}, make([]float64, 2)); err == nil {
		t.Error("two linear weights for two features and a bias were taken")
	}
}

// TestLimit uses part of a forest.
func TestLimit(t *testing.T) {
	m := fullForest(t, 10, 2, 3)
	row, all, some := []float32{.1, .5, .9}, make([]float64, 1), make([]float64, 1)
	limited := m.Limit(4)
	if limited.NumTrees() != 4 || limited.NumIterations() != 4 || m.NumTrees() != 10 || m.Limit(11) != m {
		t.Errorf("limited to %d trees, %d rounds; the whole has %d", limited.NumTrees(), limited.NumIterations(), m.NumTrees())
	}
	if err := errors.Join(gbdt.Margin(m, all, row, 1), gbdt.Margin(limited, some, row, 1)); err != nil {
		t.Fatal(err)
	}
	if all[0] == some[0] {
		t.Errorf("4 and 10 trees both say %v", all[0])
	}
}

// TestAllocations holds Predict to its few allocations per call, whatever the
// number of rows.
func TestAllocations(t *testing.T) {
	const features, n = 30, 2000
	m := fullForest(t, 20, 4, features)
	rows, dst := make([]float64, n*features), make([]float64, n)
	got := testing.AllocsPerRun(5, func() {
		if err := gbdt.Predict(m, dst, rows, n); err != nil {
			t.Fatal(err)
		}
	})
	if got > 4 {
		t.Errorf("%v allocations for %d rows", got, n)
	}
}

// TestSniff tells formats apart.
func TestSniff(t *testing.T) {
	legacy := strings.Repeat("\x00", 136) + "\x0f\x00\x00\x00\x00\x00\x00\x00binary:logistic"
	for header, want := range map[string]gbdt.Format{
		`{"learner":{`:        gbdt.FormatXGBoostJSON,
		"\n { \"version\": [": gbdt.FormatXGBoostJSON,
		"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{": gbdt.FormatXGBoostUBJ,
		"{i\x07version[":             gbdt.FormatXGBoostUBJ,
		"binf\x06\x1e":               gbdt.FormatXGBoostLegacy,
		"bs64\tAAAA":                 gbdt.FormatXGBoostLegacy,
		legacy:                       gbdt.FormatXGBoostLegacy,
		"tree\nversion=v4\n":         gbdt.FormatLightGBMText,
		"tree\r\nversion=v3\r\n":     gbdt.FormatLightGBMText,
		"":                           gbdt.FormatUnknown,
		"{":                          gbdt.FormatUnknown,
		"{L":                         gbdt.FormatUnknown,
		`{"model_type": "llama"}`:    gbdt.FormatUnknown,
		"tree of life":               gbdt.FormatUnknown,
		strings.Repeat("\x00", 512):  gbdt.FormatUnknown,
		"{L\x00\x00\x00\x00\x00\x00": gbdt.FormatUnknown,
	} {
		if got := gbdt.Sniff([]byte(header)); got != want {
			t.Errorf("%.20q: %v, want %v", header, got, want)
		}
	}
}
