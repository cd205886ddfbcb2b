package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"roundhouse.dev/roundhouse/internal/decide/loadjob"
	"roundhouse.dev/roundhouse/internal/edge/kube/benchmarks"
	"roundhouse.dev/roundhouse/internal/edge/kube/modelcaches"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// keepRetry is the wait before what is kept is watched again after a watch has failed.
const keepRetry = 30 * time.Second

// keep runs what keeps objects of a kind until ctx ends; failed is logged of each error.
func (op *operator) keep(ctx context.Context, run func(context.Context) error, failed string) {
	for {
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		op.log.Error(failed, "error", err)
		select {
		case <-time.After(keepRetry):
		case <-ctx.Done():
			return
		}
	}
}

// applied has those that keep other kinds look again at what has changed.
func (op *operator) applied(changes []fleet.Change) {
	for _, c := range changes {
		switch c.ID.Kind {
		case fleet.CacheKind, fleet.NodeGroupKind:
			op.caches.Changed()
		case fleet.BenchmarkKind:
			op.benchmarks.Changed()
		}
	}
}

// newCaches makes the keeper of models that nodes have ahead of their use.
func (op *operator) newCaches(cfg *rest.Config) (err error) {
	m, o := op.manager, op.opts
	op.caches, err = modelcaches.New(modelcaches.Config{REST: cfg, Mapper: m.GetRESTMapper(), Client: m.GetClient(), Reader: m.GetAPIReader(), Fleet: op.fleet,
		Manifests: func(ctx context.Context) ([]*unstructured.Unstructured, error) {
			return op.source.Manifests(ctx, fleet.CacheKind)
		},
		Events: m.GetEventRecorder("roundhouse-controller"), Namespaces: o.namespaces, System: o.system, Image: o.image, StoreSize: o.delivery.StoreSize,
		PublicModels: !o.internalModels, HubEndpoint: o.hubCache, Log: op.log})
	return err
}

// noBenchmarks is the status of a BenchmarkJob that is not run.
const noBenchmarks = "this installation runs no BenchmarkJob: set benchmarks.enabled of the Helm chart, which lets the controller make Jobs"

// newBenchmarks makes the keeper of BenchmarkJobs.
func (op *operator) newBenchmarks(cfg *rest.Config) (err error) {
	m, o := op.manager, op.opts
	disabled := ""
	if !o.benchmarks {
		disabled = noBenchmarks
	}
	op.benchmarks, err = benchmarks.New(benchmarks.Config{REST: cfg, Mapper: m.GetRESTMapper(), Client: m.GetClient(), Reader: m.GetAPIReader(), Namespaces: o.namespaces,
		Env: loadjob.Env{Image: o.image, Gateway: o.gatewayInside()}, List: op.listBenchmarks, Report: op.reportBenchmark, Disabled: disabled, Log: op.log})
	return err
}

// gatewayInside is where pods reach the gateway.
func (o *controllerOptions) gatewayInside() string {
	address := fmt.Sprintf("http://%s.%s.svc", o.gatewayService, o.system)
	if o.gatewayPort != defaultGatewayPort {
		address += fmt.Sprintf(":%d", o.gatewayPort)
	}
	return address
}

// defaultGatewayPort is that of HTTP of the gateway's Service.
const defaultGatewayPort = 80

// listBenchmarks are the benchmarks that there are.
func (op *operator) listBenchmarks() (out []loadjob.Benchmark) {
	for _, o := range op.fleet.Objects(fleet.BenchmarkKind) {
		if ref, warnings, ok := op.source.Claimed(o.ID()); ok {
			out = append(out, loadjob.Benchmark{Job: *o.Benchmark, UID: ref.UID, Mark: loadjob.Mark(o.Original), Warnings: warnings})
		}
	}
	return out
}

// reportBenchmark writes the status of a benchmark.
func (op *operator) reportBenchmark(ctx context.Context, b *loadjob.Benchmark, st loadjob.Status) error {
	ref, _, ok := op.source.Claimed(fleet.ID{Kind: fleet.BenchmarkKind, Key: b.Key})
	if !ok || ref.UID != b.UID {
		return nil
	}
	return op.writer.Benchmark(ctx, ref, st)
}
