package controller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// unneeded are the flags that no value of the chart sets, and why.
var unneeded = map[string]string{
	"kubeconfig":       "a pod has its account",
	"system-namespace": "the pod's own",
	"pod":              "POD_NAME",
	"leader-elect":     "also one replica is two during a rollout",
	"models-dir":       "/tmp is there to write to",
	"help":             "for people",
}

// TestChart reads the flags that the Helm chart gives, in what its own test
// renders of it, as these commands do.
func TestChart(t *testing.T) {
	files, err := filepath.Glob("../../../deploy/helm/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens of the chart: %v", err)
	}
	seen, given := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range strings.Split(string(text), "\n---") {
			var d appsv1.Deployment
			if !strings.Contains(doc, "kind: Deployment") || yaml.Unmarshal([]byte(doc), &d) != nil || d.Kind != "Deployment" {
				continue
			}
			c := d.Spec.Template.Spec.Containers[0]
			args := append(c.Command[1:len(c.Command):len(c.Command)], c.Args...)
			cmd, rest, err := root().Find(args)
			if err != nil || !cmd.HasParent() {
				t.Errorf("%s: %s: no such command: %v", file, c.Command, err)
				continue
			}
			seen[cmd.Name()] = true
			if err := cmd.ParseFlags(rest); err != nil {
				t.Errorf("%s: %s %s: %v", file, cmd.Name(), rest, err)
			}
			cmd.Flags().Visit(func(f *pflag.Flag) { given[cmd.Name()+" "+f.Name] = true })
			// A probe of a port asks where the program listens.
			for flag, port := range map[string]string{"metrics-listen": "metrics", "health-listen": "health", "listen": "http", "grpc-listen": "grpc", "report-listen": "reports"} {
				f := cmd.Flags().Lookup(flag)
				for _, p := range c.Ports {
					if p.Name == port && f == nil {
						t.Errorf("%s: %s has the port %s and no flag --%s", file, cmd.Name(), port, flag)
					}
				}
			}
		}
	}
	controller := NewCommand("test")
	for _, c := range append(controller.Commands(), controller) {
		if c.Name() != "controller" && c.Name() != "gateway" {
			continue
		}
		if !seen[c.Name()] {
			t.Errorf("the chart does not run %s", c.Name())
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if name := c.Name() + " " + f.Name; !given[name] && unneeded[f.Name] == "" {
				t.Errorf("the chart has no value for --%s of %s", f.Name, c.Name())
			}
		})
	}
}
