package llmisvc_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The machines that services are put on: what the cluster is, one with vLLM and
// GPUs, one with vLLM alone, and a bare one.
var (
	cluster = selection.Host{Cluster: true}
	strong  = selection.Host{Programs: map[string]bool{"roundhouse": true, "vllm": true, "/bin/sh": true, "sh": true}, Accelerators: 8, MemoryBytes: 1 << 40}
	laptop  = selection.Host{Programs: strong.Programs, MemoryBytes: 1 << 40}
	bare    = selection.Host{Programs: map[string]bool{"roundhouse": true, "/bin/sh": true, "sh": true}, MemoryBytes: 1 << 40}
)

// TestPublished: a manifest of ours with the fields of each that KServe publishes
// is read whole, laid over its Configs, rendered for a cluster, and either has a
// command on one machine or is told in one line what is lacking.
func TestPublished(t *testing.T) {
	facts, err := os.ReadFile("testdata/published.txt")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/published.yaml")
	if err != nil {
		t.Fatal(err)
	}
	read := dialect.Read("published.yaml", text)
	for _, p := range []dialect.Platform{dialect.Process, dialect.Kubernetes} {
		for _, bad := range read.Errors(p) {
			t.Errorf("on %s: %s", p, bad)
		}
	}
	objects := map[string]dialect.Object{}
	for _, o := range read.Objects {
		objects[o.Key.Name] = o
	}
	find := func(k service.Key) (dialect.Object, bool) {
		o, ok := objects[k.Name]
		return o, ok && o.Base != nil && k.Namespace == service.DefaultNamespace
	}
	var out strings.Builder
	counts := map[string]int{}
	rows := strings.Split(strings.TrimSpace(string(facts)), "\n")[1:]
	for _, row := range rows {
		f := strings.Fields(row) // path, kind, name
		o, ok := objects[f[2]]
		if !ok || o.Origin.Kind != f[1] {
			t.Errorf("%s: published.yaml has no %s named %s", f[0], f[1], f[2])
			continue
		}
		counts[f[1]]++
		if o.Base != nil {
			continue
		}
		svc, err := dialect.Over(o, find, dialect.Kubernetes)
		if err != nil {
			t.Errorf("%s: %v", f[0], err)
			continue
		}
		if err := rendered(svc); err != nil {
			t.Errorf("%s: on a cluster: %v", f[0], err)
			continue
		}
		counts["rendered"]++
		fmt.Fprintf(&out, "%s\n", f[2])
		for _, m := range []struct {
			name string
			host selection.Host
		}{{"vLLM and 8 GPUs", strong}, {"vLLM", laptop}, {"nothing", bare}} {
			command, lacks := placed(t, svc, m.host)
			switch {
			case command != nil:
				counts["with "+m.name]++
				fmt.Fprintf(&out, "  %s: %s\n", m.name, strings.Join(command, " "))
			case lacks == "" || strings.Contains(lacks, "\n"):
				t.Errorf("%s: with %s: nothing runs, and this is said of it: %q", f[0], m.name, lacks)
			default:
				fmt.Fprintf(&out, "  %s: no: %s\n", m.name, lacks)
			}
		}
	}
	fmt.Fprintf(&out, "services %d, configs %d; rendered for a cluster %d; run with vLLM and 8 GPUs %d, with vLLM %d, with nothing %d\n",
		counts["LLMInferenceService"], counts["LLMInferenceServiceConfig"], counts["rendered"], counts["with vLLM and 8 GPUs"], counts["with vLLM"], counts["with nothing"])
	golden(t, "testdata/published.golden", out.String())
}

// chosen is a service with its runtime on a host; why where none is.
func chosen(svc *service.Service, host selection.Host) (workload.Input, string, error) {
	in := workload.Input{Service: svc, URI: svc.Model.URI, Attributes: svc.Model.Attributes, Cluster: host.Cluster, Image: "roundhouse"}
	for _, a := range svc.Model.Adapters {
		in.Adapters = append(in.Adapters, workload.Adapter{Name: a.Name, URI: a.URI})
	}
	all, err := catalog.Runtimes()
	if err != nil {
		return in, "", err
	}
	if svc.Custom {
		local := *svc
		if !host.Cluster {
			local = workload.LocalizeService(local, all, host)
			if rule := selection.HostRule(local.Components, host); !rule.Pass {
				return in, rule.Why, nil
			}
		}
		in.Service = &local
		return in, "", nil
	}
	if !host.Cluster {
		for i := range all {
			all[i] = workload.Localize(all[i], all, host)
		}
	}
	result := selection.Choose(selection.Request{Service: svc, Attributes: svc.Model.Attributes}, all, host)
	if result.Chosen == nil {
		return in, result.Message, nil
	}
	in.Runtime, in.Protocol = result.Chosen.Runtime, result.Protocol
	in.Choice = service.RuntimeChoice{Name: in.Runtime.Name, Scope: in.Runtime.Scope}
	return in, "", nil
}

// rendered renders a service for a cluster.
func rendered(svc *service.Service) error {
	in, why, err := chosen(svc, cluster)
	if err != nil || why != "" {
		return fmt.Errorf("no runtime: %s %w", why, err)
	}
	rev, err := workload.Render(in)
	if err != nil {
		return err
	}
	_, err = shape.Render(rev, shape.Options{LeaderWorkerSets: true})
	return err
}

// placed is the command of the part that answers on a host, or what lacks.
func placed(t *testing.T, svc *service.Service, host selection.Host) (command []string, lacks string) {
	t.Helper()
	in, why, err := chosen(svc, host)
	if err != nil || why != "" {
		return nil, why
	}
	rev, err := workload.Render(in)
	if err != nil {
		return nil, err.Error()
	}
	c := rev.Component(service.RoleEngine)
	if d := rev.Component(service.RoleDecoder); d != nil {
		c = d
	}
	return c.Process.Command, ""
}

// golden compares with a golden file, or writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, []byte(got)) {
		t.Errorf("%s is not what comes of the manifests: run with -update and look at the difference; got\n%s", path, got)
	}
}
