package catalog_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
)

var update = flag.Bool("update", false, "write the tables of docs/catalog.md anew")

// TestDoc keeps the tables of docs/catalog.md, each between two comments, what
// the catalog says.
func TestDoc(t *testing.T) {
	const file = "../docs/catalog.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	got := text
	for folder := range folders {
		begin, end := []byte("<!-- "+folder+": made by go test ./catalog -update -->\n"), []byte("<!-- end -->")
		before, rest, ok := bytes.Cut(got, begin)
		_, after, ok2 := bytes.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no place for %s", file, folder)
		}
		got = slices.Concat(before, begin, []byte(table(all, folder)), end, after)
	}
	switch {
	case bytes.Equal(got, text):
	case *update:
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what the catalog says: run go test ./catalog -update", file)
	}
}

func table(all []service.Runtime, folder string) string {
	var b strings.Builder
	b.WriteString("| Runtime | Models | Parameters | Protocols | Priority | Replica | On one machine |\n|---|---|---|---|---|---|---|\n")
	for i := range all {
		rt := &all[i]
		if path.Base(path.Dir(rt.Origin.File)) != folder {
			continue
		}
		protocols := make([]string, len(rt.Protocols))
		for i, p := range rt.Protocols {
			protocols[i] = string(p)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", rt.Name, models(rt), sizes(rt),
			strings.Join(protocols, ", "), priorities(rt), replica(rt), here(rt))
	}
	return b.String()
}

// models lists what a runtime takes, versions of one kind together.
func models(rt *service.Runtime) string {
	var kinds []string
	versions := map[string][]string{}
	for _, f := range rt.Formats {
		kind := strings.Join(slices.DeleteFunc([]string{f.Format.Name, f.Architecture, f.Quantization}, func(s string) bool { return s == "" }), ", ")
		if !f.AutoSelect {
			kind += " (by name only)"
		}
		version := f.Format.Version
		if f.Architecture != "" { // OME's: all are safetensors 1.0.0
			kind = strings.TrimPrefix(kind, f.Format.Name+", ")
			version = f.Framework.Version
			if f.FrameworkOperator == service.OperatorGreaterThanOrEqual {
				version = "≤ " + version
			}
			version = cmp.Or(version, "any")
		}
		if versions[kind] == nil {
			kinds = append(kinds, kind)
		}
		versions[kind] = append(versions[kind], version)
	}
	for i, k := range kinds {
		if v := strings.Join(versions[k], ", "); v != "any" {
			kinds[i] += " " + v
		}
	}
	return strings.Join(kinds, "; ")
}

func sizes(rt *service.Runtime) string {
	switch r := rt.Size; {
	case r == nil:
		return "any"
	case r.Min == 0:
		return "up to " + service.FormatParameters(r.Max)
	default:
		return service.FormatParameters(r.Min) + " to " + service.FormatParameters(r.Max)
	}
}

func priorities(rt *service.Runtime) string {
	var out []string
	for _, f := range rt.Formats {
		p := "none"
		if f.Priority != nil {
			p = strconv.Itoa(*f.Priority)
		}
		if f.AutoSelect && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return strings.Join(out, ", ")
}

// replica returns what one replica of each component holds.
func replica(rt *service.Runtime) string {
	var out []string
	for _, role := range []service.Role{service.RoleEngine, service.RoleDecoder} {
		c := rt.Components.Get(role)
		if c == nil {
			continue
		}
		nodes, pod := "", c.Pod
		if c.Leader != nil {
			n := 1
			if c.Worker != nil {
				n += max(c.Worker.Size, 1)
			}
			nodes, pod = strconv.Itoa(n)+" nodes × ", c.Leader.Pod
		}
		gpus := int64(0)
		for _, m := range pod.Containers {
			q := m.Resources.Limits["nvidia.com/gpu"]
			gpus += q.Value()
		}
		if gpus > 0 {
			out = append(out, fmt.Sprintf("%s%s%d GPU", map[service.Role]string{service.RoleDecoder: "decoder "}[role], nodes, gpus))
		}
	}
	return cmp.Or(strings.Join(out, ", "), "CPU")
}

// here returns how the runtime runs on one machine, or that it does not.
func here(rt *service.Runtime) string {
	l := rt.Components.Engine.Local
	switch {
	case rt.Components.Decoder != nil || rt.MultiNode || l == nil:
		return "no"
	case l.Install == "":
		return "`" + l.Command[0] + "`"
	}
	return fmt.Sprintf("`%s`: %s", l.Command[0], l.Install)
}
