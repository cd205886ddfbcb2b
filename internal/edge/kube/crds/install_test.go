package crds_test

import (
	"testing"
)

func TestInstall(t *testing.T) {
	c := connect(t, "kserve", "ome", "gie", "seldon")
	_ = c
}
