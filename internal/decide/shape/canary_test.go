package shape

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestCanaryNames are valid, and no other service's.
func TestCanaryNames(t *testing.T) {
	k := service.Key{Namespace: "default", Name: "iris"}.Canary()
	other := service.Key{Namespace: "default", Name: "iris-canary"}
	for what, pair := range map[string][2]string{
		"Deployment": {Name(k, service.RoleEngine), Name(other, service.RoleEngine)},
		"label":      {LabelValue(k.Name), LabelValue(other.Name)},
		"record":     {RecordName(k), RecordName(other)},
	} {
		if pair[0] == pair[1] {
			t.Errorf("%s: %s is another service's", what, pair[0])
		}
		if bad := validation.IsDNS1123Label(pair[0]); len(bad) > 0 {
			t.Errorf("%s: %s: %v", what, pair[0], bad)
		}
		if bad := validation.IsValidLabelValue(pair[0]); len(bad) > 0 {
			t.Errorf("%s: %s: %v", what, pair[0], bad)
		}
	}
}
