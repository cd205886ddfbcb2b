package artifact

import (
	"context"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// flavorVersion is the key under which a flavor of MLflow states its library's
// version, where that is not <flavor>_version.
var flavorVersion = map[string]string{"xgboost": "xgb_version", "lightgbm": "lgb_version"}

// mlflow reads MLflow's MLmodel file: which library's model it wraps.
func (in *inspector) mlflow(ctx context.Context) error {
	f, ok := in.find("MLmodel")
	if !ok {
		return nil
	}
	raw, err := in.read(ctx, f, maxYAML)
	if err != nil {
		return err
	}
	var model struct {
		Version string                    `yaml:"mlflow_version"`
		Flavors map[string]map[string]any `yaml:"flavors"`
	}
	if err := yaml.Unmarshal(raw, &model); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	in.facts.setFormat("mlflow", f.name)
	in.facts.detail("mlflow_version", model.Version)
	var names []string
	for name := range model.Flavors {
		if name != "python_function" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	name := slices.Min(names)
	in.facts.setFramework(name, f.name)
	key := flavorVersion[name]
	if key == "" {
		key = name + "_version"
	}
	if v, ok := model.Flavors[name][key].(string); ok {
		in.facts.set(&in.facts.FrameworkVersion, "frameworkversion", v, f.name)
	}
	return nil
}
