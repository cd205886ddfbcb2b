package controller

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	"roundhouse.dev/roundhouse/internal/decide/loadjob"
	"roundhouse.dev/roundhouse/internal/edge/kube/benchmarks"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// noBenchmarks is the status of a BenchmarkJob that is not run.
const noBenchmarks = "this installation runs no BenchmarkJob: set benchmarks.enabled of the Helm chart, which lets the controller make Jobs"

// newBenchmarks makes the keeper of BenchmarkJobs.
func (op *operator) newBenchmarks(cfg *rest.Config) (err error) {
	m, o := op.manager, op.opts
	disabled := ""
	if !o.benchmarks {
		disabled = noBenchmarks
	}
	op.benchmarks, err = benchmarks.New(benchmarks.Config{REST: cfg, Mapper: m.GetRESTMapper(), Client: m.GetClient(), Namespaces: o.namespaces,
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
