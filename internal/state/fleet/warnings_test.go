package fleet_test

import (
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/load"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// A benchmark of a service that is neither applied with it nor there is named, with the
// service that may be meant.
func TestMissingSubjects(t *testing.T) {
	job := func(j load.Job) fleet.Object {
		j.Meta.Key = key("job")
		return fleet.Object{Object: dialect.Object{Benchmark: &j, Key: j.Key}}
	}
	of := func(name string) fleet.Object { return job(load.Job{Service: key(name)}) }
	with := fleet.Object{Object: dialect.Object{Service: &service.Service{}, Key: key("together")}}
	for _, c := range []struct {
		object fleet.Object
		want   []string
	}{
		{of("chat"), nil},
		{of("together"), nil},
		{job(load.Job{URL: "http://elsewhere:8000", Model: "m"}), nil},
		{of("chatt"), []string{"benchmarkjob default/job: spec.endpoint.inferenceService: there is no service default/chatt; did you mean chat?"}},
	} {
		if got := fleet.MissingSubjects([]fleet.Object{c.object, with}, []service.Key{key("chat")}); !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q", c.object.Benchmark.Service, got, c.want)
		}
	}
}
