//go:build kubernetes && linux

package node

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Root is the folder of the repository.
func Root() string { return filepath.Dir(filepath.Dir(Binaries())) }

// Chart renders Roundhouse's Helm chart for a release in a namespace.
func Chart(ctx context.Context, namespace, values string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(Root(), "bin", "helm"), "template", "roundhouse", filepath.Join(Root(), "deploy/helm/roundhouse"),
		"--namespace", namespace, "--kube-version", "1.36.3", "--values", "-")
	cmd.Stdin = strings.NewReader(values)
	var says strings.Builder
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("helm: %w: %s", err, says.String())
	}
	return string(out), err
}
