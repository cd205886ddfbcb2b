package workload

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestHashOfStorage: by which secret a model is fetched counts on a cluster, and
// is nothing on one machine.
func TestHashOfStorage(t *testing.T) {
	input := func(cluster bool, st *service.Storage) Input {
		return Input{Service: &service.Service{Model: &service.ModelSource{URI: "s3://b/m", Storage: st}}, URI: "s3://b/m", Cluster: cluster}
	}
	one, other := &service.Storage{Key: "one"}, &service.Storage{Key: "other"}
	if input(false, one).Hash() != input(false, nil).Hash() {
		t.Error("it counts on one machine")
	}
	if input(true, one).Hash() == input(true, other).Hash() || input(true, one).Hash() == input(true, nil).Hash() {
		t.Error("it does not count on a cluster")
	}
	in := input(false, one)
	in.Hash()
	if in.Service.Model.Storage != one {
		t.Error("the service changed")
	}
}
