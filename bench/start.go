package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// startServices is how many services `up` starts with.
const startServices = 100

// The manifests it starts with, in turns.
const (
	ownManifest = `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata:
  name: model-%03d
spec:
  model:
    uri: file://%s
    format: {name: xgboost}
  scaling: {minReplicas: 0, maxReplicas: 3}
`
	kserveManifest = `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: model-%03d
spec:
  predictor:
    minReplicas: 0
    model:
      modelFormat: {name: xgboost}
      protocolVersion: v2
      storageUri: file://%s
`
)

// start measures how long `up` takes with a hundred services: until its health
// check answers 200 and every service has its runtime and revision.
func start(ctx context.Context, b *bench) error {
	folder := filepath.Join(b.scratch, "manifests")
	if err := writeManifests(folder, filepath.Join(b.examples, "models", "iris.ubj")); err != nil {
		return err
	}
	var healthy, fresh, again []float64
	for i := range b.rounds {
		dataDir := filepath.Join(b.scratch, fmt.Sprintf("start-%d", i))
		health, first, err := startOnce(ctx, b, dataDir, folder)
		if err != nil {
			return err
		}
		_, second, err := startOnce(ctx, b, dataDir, folder)
		if err != nil {
			return err
		}
		healthy, fresh, again = append(healthy, health), append(fresh, first), append(again, second)
	}
	table{
		title: fmt.Sprintf("Starting up with %d services in as many files (%d rounds)", startServices, len(fresh)),
		rows: []row{
			{what: "/healthz answers, fresh data directory", samples: healthy, unit: "ms"},
			{what: "and all resolved, fresh data directory", samples: fresh, unit: "ms", goal: 1000},
			{what: "and all resolved, existing data directory", samples: again, unit: "ms", goal: 1000},
		},
	}.print(b.out)
	return nil
}

// writeManifests fills a folder with manifests of one model.
func writeManifests(folder, model string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for i := range startServices {
		manifest := ownManifest
		if i%2 == 1 {
			manifest = kserveManifest
		}
		path := filepath.Join(folder, fmt.Sprintf("model-%03d.yaml", i))
		if err := os.WriteFile(path, fmt.Appendf(nil, manifest, i, model), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// startOnce gives the milliseconds from the start to the first healthy answer,
// and to all services resolved.
func startOnce(ctx context.Context, b *bench, dataDir, folder string) (healthy, resolved float64, err error) {
	n, err := b.up(ctx, dataDir, folder)
	if err != nil {
		return 0, 0, err
	}
	healthy = milliseconds(time.Since(n.started))
	err = n.settled(ctx, startServices)
	resolved = milliseconds(time.Since(n.started))
	return healthy, resolved, errors.Join(err, n.stop())
}
