package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/cmd/internal/configfile"
)

// TestSchemasAreGenerated: deploy/schemas has what `schema` prints.
func TestSchemasAreGenerated(t *testing.T) {
	all, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join("../../deploy/schemas", strings.ToLower(name)+".json"))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("deploy/schemas has another schema of %s (%v): go generate ./internal/edge/kube/crds", name, err)
		}
	}
	if files, err := os.ReadDir("../../deploy/schemas"); err != nil || len(files) != len(all) {
		t.Errorf("deploy/schemas has %d files for %d schemas (%v)", len(files), len(all), err)
	}
}

// TestPackagedConfiguration: the file of the systemd unit has flags of up.
func TestPackagedConfiguration(t *testing.T) {
	up := newUpCommand()
	if err := configfile.Read(up.Flags(), "../../deploy/packaging/up.yaml"); err != nil {
		t.Fatal(err)
	}
	if got := up.Flags().Lookup("data-dir").Value.String(); got != "/var/lib/roundhouse" {
		t.Errorf("its data directory is %s", got)
	}
	unit, err := os.ReadFile("../../deploy/packaging/roundhouse.service")
	if err != nil || !strings.Contains(string(unit), "up --config /etc/roundhouse/up.yaml") {
		t.Errorf("the unit does not name it (%v)", err)
	}
}
