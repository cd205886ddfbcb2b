// Package lightgbm reads LightGBM's text model files (Booster.save_model),
// versions 2 to 4: gbdt, dart, goss and random forests, numerical and
// categorical splits, linear trees.
//
// Predictions are those of Python's Booster(model_file=…).predict(rows) over
// all iterations in the file (save_model writes only the best ones after early
// stopping), in float64: gbdt.Predict for the default, gbdt.Margin for
// raw_score=True (which, in a random forest, is a sum and no average).
//
// Categorical features are given as their codes, NaN is missing.
package lightgbm

import (
	"errors"
	"fmt"
	"math"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// Load reads the model file at path, whatever its extension. Errors name the
// path.
func Load(path string) (*gbdt.Model, error) { return gbdt.Load(path, "lightgbm", Parse) }

// Parse reads a model from the bytes of its file. It keeps no reference to
// data. Malformed input of any kind is an error that names the line.
func Parse(data []byte) (*gbdt.Model, error) {
	switch format := gbdt.Sniff(data[:min(len(data), gbdt.SniffLen)]); format {
	case gbdt.FormatLightGBMText:
	case gbdt.FormatUnknown:
		return nil, errors.New("this is no LightGBM text model: write one with Booster.save_model('model.txt')")
	default:
		return nil, fmt.Errorf("this is an %v model, not a LightGBM one: use the format xgboost", format)
	}
	l := &lines{rest: data}
	header, err := l.section()
	if err != nil {
		return nil, err
	}
	spec, err := readSpec(header)
	if err != nil {
		return nil, err
	}
	forest, err := gbdt.NewForest(spec.Features, spec.Margins)
	if err != nil {
		return nil, err
	}
	for i := 0; l.tree; i++ {
		if err := addTree(l, forest, i); err != nil {
			return nil, fmt.Errorf("tree %d: %w", i, err)
		}
	}
	if err := checkComplete(header, forest.Trees(), spec.Margins); err != nil {
		return nil, err
	}
	for n := 0; n <= forest.Trees(); n += spec.Margins {
		spec.Iterations = append(spec.Iterations, n)
	}
	return gbdt.New(spec, forest)
}

// addTree reads the next tree into the forest, where it belongs to the outputs
// in turn.
func addTree(l *lines, forest *gbdt.Forest, i int) error {
	s, err := l.section()
	if err != nil {
		return err
	}
	t, err := readTree(s)
	if err != nil {
		return err
	}
	t.Output = i % forest.Outputs()
	if err := forest.Add(&t); err != nil {
		return fmt.Errorf("line %d: %w", s.line, err)
	}
	return nil
}

// checkComplete finds a file cut short: the header announces the trees, and
// every iteration has one for each output.
func checkComplete(header section, trees, outputs int) error {
	if sizes, ok := header.fields["tree_sizes"]; ok {
		if n := count(sizes); n != trees {
			return fmt.Errorf("the header announces %d trees, the file has %d: it may be cut short", n, trees)
		}
	}
	if trees%outputs != 0 {
		return fmt.Errorf("%d trees do not make whole iterations of %d", trees, outputs)
	}
	return nil
}

// readSpec reads the header.
func readSpec(header section) (gbdt.Spec, error) {
	spec := gbdt.Spec{BestIteration: -1}
	if version := string(header.fields["version"]); version != "v2" && version != "v3" && version != "v4" {
		return spec, fmt.Errorf("version %q is not supported: one of v2, v3, v4", version)
	}
	last, err := header.integer("max_feature_idx", 0, gbdt.MaxFeatures-1)
	if err != nil {
		return spec, err
	}
	spec.Features = last + 1
	classes, err := header.integer("num_class", 1, gbdt.MaxOutputs)
	if err != nil {
		return spec, err
	}
	spec.Margins = classes
	if header.has("num_tree_per_iteration") {
		if spec.Margins, err = header.integer("num_tree_per_iteration", 1, gbdt.MaxOutputs); err != nil {
			return spec, err
		}
	}
	spec.FeatureNames = words(header.fields["feature_names"])
	if len(spec.FeatureNames) != spec.Features {
		return spec, fmt.Errorf("feature_names: %d names for %d features", len(spec.FeatureNames), spec.Features)
	}
	spec.Average = header.has("average_output")
	if err := readObjective(header, classes, &spec); err != nil {
		return spec, fmt.Errorf("objective: %w", err)
	}
	return spec, nil
}

// links are the objectives' link functions.
var links = map[string]gbdt.Link{
	"regression":           gbdt.LinkIdentity,
	"regression_l1":        gbdt.LinkIdentity,
	"huber":                gbdt.LinkIdentity,
	"fair":                 gbdt.LinkIdentity,
	"quantile":             gbdt.LinkIdentity,
	"mape":                 gbdt.LinkIdentity,
	"poisson":              gbdt.LinkExp,
	"gamma":                gbdt.LinkExp,
	"tweedie":              gbdt.LinkExp,
	"binary":               gbdt.LinkSigmoid,
	"multiclass":           gbdt.LinkSoftmax,
	"multiclassova":        gbdt.LinkSigmoidEach,
	"cross_entropy":        gbdt.LinkSigmoid,
	"cross_entropy_lambda": gbdt.LinkSoftplus,
	"lambdarank":           gbdt.LinkIdentity,
	"rank_xendcg":          gbdt.LinkIdentity,
	"custom":               gbdt.LinkIdentity,
}

// readObjective reads the objective and its parameters: "binary sigmoid:1".
// A model without one was trained with the caller's own, and predicts margins.
func readObjective(header section, classes int, spec *gbdt.Spec) error {
	parts := words(header.fields["objective"])
	if len(parts) == 0 {
		parts = []string{"custom"}
	}
	spec.Objective = parts[0]
	link, ok := links[parts[0]]
	if !ok {
		return fmt.Errorf("%q is not supported", parts[0])
	}
	spec.Link = link
	for _, part := range parts[1:] {
		name, text := cut(part)
		switch name {
		case "sqrt":
			if link == gbdt.LinkIdentity && parts[0] != "huber" {
				spec.Link = gbdt.LinkSquare
			}
		case "sigmoid":
			slope, err := number(text)
			if err != nil || slope <= 0 || math.IsInf(slope, 0) {
				return fmt.Errorf("sigmoid %q is not a positive number", text)
			}
			spec.Slope = slope
		}
	}
	perClass := link == gbdt.LinkSoftmax || link == gbdt.LinkSigmoidEach
	if perClass && spec.Margins != classes {
		return fmt.Errorf("%s of %d classes has %d trees per iteration", parts[0], classes, spec.Margins)
	}
	return nil
}
