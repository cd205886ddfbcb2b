package main

import (
	"context"
	"os"
	"path/filepath"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/process"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// explainHere explains manifests against this machine and the catalog, with no
// server running.
func explainHere(ctx context.Context, files []admin.File) ([]admin.Explanation, error) {
	objects, _, err := admin.Objects(files, "")
	if err != nil {
		return nil, err
	}
	runtimes, err := catalogRuntimes()
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "roundhouse-explain-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	platform, err := process.New(process.Config{Dir: filepath.Join(tmp, "processes")})
	if err != nil {
		return nil, err
	}
	defer func() { _ = platform.Close(ctx, false) }()
	store, err := artifact.New(artifact.Config{Dir: filepath.Join(tmp, "models")}, nil, nil)
	if err != nil {
		return nil, err
	}
	f, err := fleet.New(fleet.Config{Platform: platform, Store: unstored{}, Models: inspector{store}, Traffic: untraveled{}, Catalog: runtimes})
	if err != nil {
		return nil, err
	}
	return admin.ExplainAll(ctx, f, objects)
}

// unstored and untraveled stand in for what an explanation does not use.
type unstored struct{ fleet.Store }

type untraveled struct{}

func (untraveled) Publish(fleet.View)                  {}
func (untraveled) Withdraw(service.Key)                {}
func (untraveled) Demand(service.Key) autoscale.Demand { return autoscale.Demand{} }
func (untraveled) InFlight(string) int                 { return 0 }
