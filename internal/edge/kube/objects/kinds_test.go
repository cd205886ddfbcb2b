package objects_test

import (
	"fmt"
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

// TestKinds holds the table to what dialect reads.
func TestKinds(t *testing.T) {
	for _, k := range objects.Kinds {
		for _, v := range k.Versions {
			res := dialect.Read("", fmt.Appendf(nil, `{"apiVersion":"%s/%s","kind":%q,"metadata":{"name":"x"}}`, k.Group, v, k.Kind))
			for _, p := range res.Problems {
				if p.Path == "apiVersion" || p.Path == "kind" {
					t.Errorf("%s/%s %s is not read: %s", k.Group, v, k.Kind, p)
				}
			}
		}
	}
	var installed []string
	ours := must(crds.Ours())(t)
	for _, p := range crds.Projects() {
		ours = append(ours, must(crds.Foreign(p))(t)...)
	}
	for _, u := range ours {
		installed = append(installed, u.GetName())
		if u.GetName() != "reserves.roundhouse.dev" && !slices.ContainsFunc(objects.Kinds, func(k *objects.Kind) bool { return k.CRD() == u.GetName() }) {
			t.Errorf("%s can be installed and is not read", u.GetName())
		}
	}
	for _, k := range objects.Kinds {
		if !slices.Contains(installed, k.CRD()) && k.Group != "gateway.networking.k8s.io" {
			t.Errorf("%s is read and cannot be installed", k.CRD())
		}
	}
	if shape.FieldManager == kube.NoticeManager {
		t.Error("the notice's manager must be another")
	}
}
