// Package gbdt is the shared core of the gradient-boosted tree engines: a
// forest in flat arrays, the linear booster, the link functions and a predict
// loop without allocation per row. The readers of the file formats (packages
// xgboost and lightgbm) check a file and build a Model here; whatever they
// accept predicts without panicking on any row of the right length.
//
// The package does no I/O, so that Sniff can serve code without any.
package gbdt

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// MaxOutputs bounds the outputs (classes or targets) of a model.
const MaxOutputs = 1 << 16

// ErrShape is in the chain of every error about the length of rows or of the
// destination: the caller's fault, not the model's.
var ErrShape = errors.New("wrong shape")

// Spec is what a model file contains besides its trees or weights.
type Spec struct {
	Features int // features of a row, >= 1
	Margins  int // raw scores of a row: classes, targets or 1

	// FeatureNames and FeatureTypes are empty or have one entry per feature.
	FeatureNames []string
	FeatureTypes []string

	Objective string
	Link      Link
	Slope     float64 // of LinkSigmoid; 0 means 1

	// Base is added to the margins before the first tree: empty, one value for
	// all, or one per margin. It is in margin space.
	Base []float64

	// Average makes predictions divide the sum of the trees by the number of
	// iterations before the link (random forests of LightGBM).
	Average bool
	// Single makes the model compute in float32, as XGBoost does.
	Single bool

	// Iterations[i] is the number of trees after i boosting rounds, starting
	// with 0 and ending with the number of trees. Empty for a linear model.
	Iterations []int
	// BestIteration is the round early stopping chose, counted from 0, or -1.
	BestIteration int
	// Estimator is the kind of scikit-learn estimator that saved the model,
	// "classifier" or "regressor"; empty for a booster of no estimator.
	Estimator string
}

// Model is a loaded model. It is immutable and safe for concurrent use.
type Model struct {
	spec    Spec
	base    []float64 // one per margin
	forest  *Forest   // nil for a linear model
	weights []float64 // linear: feature-major, then one bias per margin
	trees   int       // how many of the forest's trees are used
	rounds  int       // how many boosting rounds those are
}

// New makes a model of a forest. It takes ownership of both.
func New(spec Spec, forest *Forest) (*Model, error) {
	if forest == nil {
		return nil, errors.New("no forest")
	}
	if forest.features != spec.Features || forest.outputs != spec.Margins {
		return nil, fmt.Errorf("the forest has %d features and %d outputs, the model %d and %d",
			forest.features, forest.outputs, spec.Features, spec.Margins)
	}
	if err := checkIterations(spec.Iterations, len(forest.trees)); err != nil {
		return nil, err
	}
	m := &Model{spec: spec, forest: forest, trees: len(forest.trees), rounds: len(spec.Iterations) - 1}
	return m, m.init()
}

// NewLinear makes a model of a linear booster: weights are feature-major
// (Features*Margins of them), followed by one bias per margin. It takes
// ownership of both.
func NewLinear(spec Spec, weights []float64) (*Model, error) {
	if want := (spec.Features + 1) * spec.Margins; len(weights) != want {
		return nil, fmt.Errorf("%d linear weights for %d features and %d outputs: expected %d",
			len(weights), spec.Features, spec.Margins, want)
	}
	m := &Model{spec: spec, weights: weights}
	return m, m.init()
}

// checkIterations checks that the rounds partition the trees in order.
func checkIterations(iterations []int, trees int) error {
	if len(iterations) == 0 || iterations[0] != 0 || iterations[len(iterations)-1] != trees {
		return fmt.Errorf("the boosting rounds do not cover the %d trees", trees)
	}
	if !slices.IsSorted(iterations) {
		return errors.New("the boosting rounds are out of order")
	}
	return nil
}

// init checks the rest of the spec and fills what follows from it.
func (m *Model) init() error {
	if err := m.spec.check(); err != nil {
		return err
	}
	if m.spec.Slope == 0 {
		m.spec.Slope = 1
	}
	base := m.spec.Base
	switch len(base) {
	case 0:
		base = []float64{0}
	case 1, m.spec.Margins:
	default:
		return fmt.Errorf("%d base scores for %d outputs", len(base), m.spec.Margins)
	}
	m.base = make([]float64, m.spec.Margins)
	for i := range m.base {
		m.base[i] = base[i%len(base)]
	}
	return nil
}

// check checks what does not depend on trees or weights.
func (s *Spec) check() error {
	switch {
	case s.Features < 1 || s.Features > MaxFeatures:
		return fmt.Errorf("%d features: must be 1 to %d", s.Features, MaxFeatures)
	case s.Margins < 1 || s.Margins > MaxOutputs:
		return fmt.Errorf("%d outputs: must be 1 to %d", s.Margins, MaxOutputs)
	case len(s.FeatureNames) != 0 && len(s.FeatureNames) != s.Features:
		return fmt.Errorf("%d feature names for %d features", len(s.FeatureNames), s.Features)
	case len(s.FeatureTypes) != 0 && len(s.FeatureTypes) != s.Features:
		return fmt.Errorf("%d feature types for %d features", len(s.FeatureTypes), s.Features)
	case s.Link > linkLast:
		return fmt.Errorf("unknown link function %d", s.Link)
	case math.IsNaN(s.Slope) || math.IsInf(s.Slope, 0):
		return fmt.Errorf("slope %v of the sigmoid is not finite", s.Slope)
	}
	return nil
}

// NumFeatures is the number of features of a row.
func (m *Model) NumFeatures() int { return m.spec.Features }

// NumMargins is the number of raw scores Margin gives for a row.
func (m *Model) NumMargins() int { return m.spec.Margins }

// NumOutputs is the number of values Predict gives for a row: as many as
// margins, except that a class label is one value.
func (m *Model) NumOutputs() int {
	if m.spec.Link == LinkArgmax {
		return 1
	}
	return m.spec.Margins
}

// NumClasses is the number of classes the model tells apart, 0 if it is no
// classifier. A binary classifier has 2 classes and one output.
func (m *Model) NumClasses() int {
	switch m.spec.Link {
	case LinkSoftmax, LinkArgmax, LinkSigmoidEach:
		return m.spec.Margins
	}
	switch m.spec.Objective {
	case "binary:logistic", "binary:logitraw", "binary:hinge", "binary":
		return 2
	}
	return 0
}

// Estimator is the kind of scikit-learn estimator that saved the model,
// "classifier" or "regressor"; empty for a booster that was saved by itself.
func (m *Model) Estimator() string { return m.spec.Estimator }

// FeatureNames lists the features' names, empty if the file has none. The
// caller must not change it.
func (m *Model) FeatureNames() []string { return m.spec.FeatureNames }

// FeatureTypes lists the features' types in the words of the format ("float",
// "int", "i", "q", "c"), empty if the file has none. The caller must not
// change it.
func (m *Model) FeatureTypes() []string { return m.spec.FeatureTypes }

// Objective is the name of the training objective, in the format's words.
func (m *Model) Objective() string { return m.spec.Objective }

// Single reports whether the model computes in float32 (XGBoost) rather than
// float64 (LightGBM): the element type its own package answers with.
func (m *Model) Single() bool { return m.spec.Single }

// NumTrees is the number of trees Predict uses, 0 for a linear model.
func (m *Model) NumTrees() int { return m.trees }

// NumIterations is the number of boosting rounds Predict uses, 0 for a linear
// model.
func (m *Model) NumIterations() int { return max(m.rounds, 0) }

// BestIteration is the round, counted from 0, that early stopping recorded in
// the file. XGBoost's Booster.predict ignores it (as Load does); its
// scikit-learn classes use Limit(BestIteration+1).
func (m *Model) BestIteration() (round int, ok bool) {
	return m.spec.BestIteration, m.spec.BestIteration >= 0
}

// Limit gives a model that uses only the first n boosting rounds, sharing this
// one's memory. A linear model has no rounds and is returned as it is, as is
// any model with no more than n.
func (m *Model) Limit(n int) *Model {
	if m.forest == nil || n < 0 || n >= m.rounds {
		return m
	}
	limited := *m
	limited.rounds, limited.trees = n, m.spec.Iterations[n]
	return &limited
}
