// Package xgboost reads XGBoost models from JSON and UBJSON files, written by
// XGBoost 1.0 up to current releases: the boosters gbtree, dart and gblinear,
// numerical and categorical splits, random forests, several targets with one
// tree each or with vector leaves.
//
// Predictions are those of Python's Booster.predict(DMatrix(rows)) over all
// boosting rounds, in float32: gbdt.Predict for the default,
// gbdt.Margin for output_margin=True. The scikit-learn classes differ in two
// ways a caller can follow: they stop at the best iteration where early
// stopping recorded one (Model.BestIteration, Model.Limit), and a classifier's
// predict gives labels of the probabilities.
//
// Categorical features are given as their codes. The legacy binary format is
// refused with the line that converts it.
package xgboost

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// ErrLegacy is the error of a file in XGBoost's old binary format.
var ErrLegacy = errors.New("this is XGBoost's legacy binary format, which is not read; convert it once, with " +
	"XGBoost before 3.1: xgb.Booster(model_file='model.bst').save_model('model.ubj')")

// Load reads the model file at path, whatever its extension. Errors name the
// path.
func Load(path string) (*gbdt.Model, error) { return gbdt.Load(path, "xgboost", Parse) }

// Parse reads a model from the bytes of its file, telling JSON from UBJSON by
// content. It keeps no reference to data. Malformed input of any kind is an
// error with its position.
func Parse(data []byte) (*gbdt.Model, error) {
	var document value
	var err error
	format := gbdt.Sniff(data[:min(len(data), gbdt.SniffLen)])
	switch format {
	case gbdt.FormatXGBoostJSON:
		document, err = parseJSON(data)
	case gbdt.FormatXGBoostUBJ:
		document, err = parseUBJ(data)
	case gbdt.FormatXGBoostLegacy:
		return nil, ErrLegacy
	case gbdt.FormatLightGBMText:
		return nil, errors.New("this is a LightGBM text model, not an XGBoost one: use the format lightgbm")
	default:
		return nil, errors.New("this is no XGBoost model: neither its JSON nor its UBJSON format; " +
			"a model in the legacy binary format is converted, with XGBoost before 3.1, by " +
			"xgb.Booster(model_file='model.bst').save_model('model.ubj')")
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", format, err)
	}
	m, err := newModel(&document)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", format, err)
	}
	return m, nil
}

// newModel makes a model of a document.
func newModel(document *value) (*gbdt.Model, error) {
	root := newCursor(document)
	learner := root.field("learner")
	spec := readSpec(root, learner)
	booster := learner.field("gradient_booster")
	name := booster.field("name").text()
	if *root.err != nil {
		return nil, *root.err
	}
	switch name {
	case "gbtree":
		return newTrees(spec, booster.field("model"))
	case "dart":
		return newTrees(spec, readDart(booster))
	case "gblinear":
		weights := booster.field("model").field("weights").numbers((spec.Features + 1) * spec.Margins)
		if *root.err != nil {
			return nil, *root.err
		}
		// The linear booster has one intercept for all outputs, the first.
		spec.Base = spec.Base[:1]
		return gbdt.NewLinear(spec, weights)
	}
	booster.field("name").fail("booster %q is not supported: one of gbtree, dart, gblinear", name)
	return nil, *root.err
}

// readDart gives the tree model of a dart booster with its tree weights inside,
// where XGBoost 3.4 and later keep them.
func readDart(booster cursor) cursor {
	if !booster.has("gbtree") {
		return booster.field("model")
	}
	model := booster.field("gbtree").field("model")
	if booster.has("weight_drop") && model.want(kindObject) {
		model.v.fields["weight_drop"] = *booster.field("weight_drop").v
	}
	return model
}

// readSpec reads what is common to all boosters.
func readSpec(root, learner cursor) gbdt.Spec {
	spec := gbdt.Spec{Single: true, BestIteration: -1}
	params := learner.field("learner_model_param")
	spec.Features = params.field("num_feature").parameter(1, gbdt.MaxFeatures)
	spec.Margins = max(1, params.field("num_class").parameter(0, gbdt.MaxOutputs))
	if params.has("num_target") {
		spec.Margins = max(spec.Margins, params.field("num_target").parameter(0, gbdt.MaxOutputs))
	}
	if learner.has("feature_names") {
		spec.FeatureNames = learner.field("feature_names").texts()
	}
	if learner.has("feature_types") {
		spec.FeatureTypes = learner.field("feature_types").texts()
	}
	if learner.has("attributes") {
		attributes := learner.field("attributes")
		if attributes.has("best_iteration") {
			spec.BestIteration = attributes.field("best_iteration").parameter(0, math.MaxInt32)
		}
		if attributes.has("scikit_learn") {
			spec.Estimator = estimator(attributes.field("scikit_learn").text())
		}
	}
	objective := learner.field("objective").field("name")
	spec.Objective = objective.text()
	o, ok := meaning(spec.Objective, root)
	if !ok {
		objective.fail("%q is not supported", spec.Objective)
	}
	spec.Link = o.link
	base := params.field("base_score")
	spec.Base = readBaseScore(base)
	if o.toMargin != nil {
		o.toMargin(spec.Base)
	}
	for _, score := range spec.Base {
		if math.IsNaN(score) || math.IsInf(score, 0) {
			base.fail("%s has no finite margin under %s", base.v.text, spec.Objective)
		}
	}
	return spec
}

// estimator reads the attribute in which XGBoost's scikit-learn classes note what
// they are; Booster.save_model leaves it out.
func estimator(attribute string) string {
	var meta struct {
		Type string `json:"_estimator_type"`
	}
	if json.Unmarshal([]byte(attribute), &meta) != nil {
		return "" // written by nobody that the scikit-learn classes know
	}
	return meta.Type
}

// version is the XGBoost release that wrote the file, as major*1000 + minor, 0
// if it does not say.
func version(root cursor) int {
	if !root.has("version") {
		return 0
	}
	parts := root.field("version").numbers(-1)
	if len(parts) < 2 {
		return 0
	}
	part := func(i int) int { return int(min(max(parts[i], 0), 999)) }
	return part(0)*1000 + part(1)
}

// readBaseScore reads the intercept: a number ("5E-1"), or from XGBoost 3.1 a
// bracketed list with one number for each output.
func readBaseScore(c cursor) []float64 {
	text := strings.TrimSpace(c.text())
	if inner, ok := strings.CutPrefix(text, "["); ok {
		text = strings.TrimSuffix(inner, "]")
	}
	var scores []float64
	for part := range strings.SplitSeq(text, ",") {
		score, err := strconv.ParseFloat(strings.TrimSpace(part), 32)
		if err != nil {
			c.fail("%q is not a number", part)
			return []float64{0}
		}
		scores = append(scores, score)
	}
	return scores
}

// objective is what a training objective means for predictions.
type objective struct {
	link gbdt.Link
	// toMargin takes base_score, which files keep in the space of the
	// prediction, to margins in place; nil if they are the same.
	toMargin func([]float64)
}

// objectives are the objectives whose predictions are known.
var objectives = map[string]objective{
	"reg:squarederror":     {},
	"reg:linear":           {},
	"reg:squaredlogerror":  {},
	"reg:pseudohubererror": {},
	"reg:absoluteerror":    {},
	"reg:quantileerror":    {},
	"reg:expectileerror":   {gbdt.LinkIncrease, decrease},
	"reg:logistic":         {gbdt.LinkSigmoid, logits},
	"reg:gamma":            {gbdt.LinkExp, logs},
	"reg:tweedie":          {gbdt.LinkExp, logs},
	"count:poisson":        {gbdt.LinkExp, logs},
	"binary:logistic":      {gbdt.LinkSigmoid, logits},
	"binary:logitraw":      {},
	"binary:hinge":         {gbdt.LinkStep, nil},
	"multi:softmax":        {gbdt.LinkArgmax, nil},
	"multi:softprob":       {gbdt.LinkSoftmax, nil},
	"rank:pairwise":        {},
	"rank:ndcg":            {},
	"rank:map":             {},
	"survival:cox":         {gbdt.LinkExp, logs},
	"survival:aft":         {gbdt.LinkExp, logs},
}

// meaning finds an objective. Where releases differ, a file means what the
// release that wrote it says.
func meaning(name string, root cursor) (objective, bool) {
	o, ok := objectives[name]
	release := version(root)
	switch {
	case name == "binary:logitraw" && release < 2000:
		o.toMargin = logits
	case name == "reg:quantileerror" && release >= 3004:
		o.link = gbdt.LinkSort
	}
	return o, ok
}

// epsilon is the distance XGBoost keeps from the edges of a domain.
const epsilon = 1e-6

// logits takes probabilities, kept away from 0 and 1, through the inverse of
// the sigmoid.
func logits(scores []float64) {
	for i, p := range scores {
		p = min(max(p, epsilon), 1-epsilon)
		scores[i] = single(-math.Log(1/p - 1))
	}
}

// logs takes the natural logarithm.
func logs(scores []float64) {
	for i, x := range scores {
		scores[i] = single(math.Log(x))
	}
}

// decrease is the inverse of gbdt.LinkIncrease: the first score stays, each
// other becomes the inverse softplus of its step from the one before.
func decrease(scores []float64) {
	for i := len(scores) - 1; i > 0; i-- {
		step := max(scores[i]-scores[i-1]-epsilon, epsilon)
		scores[i] = single(step + math.Log(-math.Expm1(-step)))
	}
}

// single rounds to float32, in which XGBoost computes.
func single(x float64) float64 { return float64(float32(x)) }
