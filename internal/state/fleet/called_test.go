package fleet

import (
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// TestCalled: which roles others of their service call, and so need an address.
func TestCalled(t *testing.T) {
	const engine, decoder, router, transformer, explainer = service.RoleEngine, service.RoleDecoder, service.RoleRouter, service.RoleTransformer, service.RoleExplainer
	for _, tt := range []struct{ roles, needs, called []service.Role }{
		{[]service.Role{engine}, nil, nil},
		{[]service.Role{engine, decoder}, nil, nil},
		{[]service.Role{engine, explainer}, nil, []service.Role{engine}},
		{[]service.Role{engine, transformer}, []service.Role{engine}, []service.Role{engine}},
		{[]service.Role{engine, transformer, explainer}, []service.Role{engine}, []service.Role{engine}},
		{[]service.Role{engine, decoder, router}, []service.Role{engine, decoder}, []service.Role{engine, decoder}},
		{[]service.Role{engine, router, explainer}, []service.Role{engine}, []service.Role{engine, router}},
	} {
		var r workload.Revision
		for _, role := range tt.roles {
			r.Components = append(r.Components, workload.Component{Role: role})
		}
		if needs, called := Needs(&r), Called(&r); !slices.Equal(needs, tt.needs) || !slices.Equal(called, tt.called) {
			t.Errorf("%v: needs %v, called %v", tt.roles, needs, called)
		}
	}
}
