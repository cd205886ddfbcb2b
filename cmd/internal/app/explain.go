package app

import (
	"context"
	"os"
	"path/filepath"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/process"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Explain explains manifests for this machine and the catalog, without a server.
func Explain(ctx context.Context, files []admin.File) ([]admin.Explanation, error) {
	objects, _, err := admin.Objects(files, "")
	if err != nil {
		return nil, err
	}
	runtimes, err := Catalog()
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
	var f *fleet.Fleet
	open := func(files service.Files) (credentials.Opened, error) { return f.Open(files) }
	f, err = fleet.New(fleet.Config{Platform: platform, Store: NoStore{}, Models: Inspector{store, open}, Traffic: NoTraffic{}, Catalog: runtimes})
	if err != nil {
		return nil, err
	}
	return admin.ExplainAll(ctx, f, objects)
}

// NoStore and NoTraffic stand in for what an explanation does not use.
type NoStore struct{ fleet.Store }

// NoTraffic has no requests.
type NoTraffic struct{}

// Publish implements fleet.Traffic.
func (NoTraffic) Publish(fleet.View) {}

// Withdraw implements fleet.Traffic.
func (NoTraffic) Withdraw(service.Key) {}

// Demand implements fleet.Traffic.
func (NoTraffic) Demand(service.Key) autoscale.Demand { return autoscale.Demand{} }

// InFlight implements fleet.Traffic.
func (NoTraffic) InFlight(string) int { return 0 }
