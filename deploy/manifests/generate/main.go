// Command generate renders the Helm chart into what package manifests embeds:
// the CRDs, the chart for all namespaces, and the chart for one.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/deploy/manifests"
)

func main() {
	log.SetFlags(0)
	if err := run("../../bin/helm", "../helm/roundhouse", "../crds", "manifests.yaml.gz"); err != nil {
		log.Fatal(err)
	}
}

func run(helm, chart, crds, out string) error {
	if _, err := os.Stat(helm); err != nil {
		return errors.New("no bin/helm: make bin/helm")
	}
	var text bytes.Buffer
	files, err := filepath.Glob(filepath.Join(crds, "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return errors.New("no CRDs in " + crds)
	}
	for _, f := range files {
		doc, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "---\n%s", doc)
	}
	const full = "installCRDs={kserve}" // what is not asked for is left out
	for _, set := range []string{full, full + ",watchNamespaces={" + manifests.Watched + "}"} {
		text.WriteString("---\n" + manifests.Separator + "\n")
		if err := render(&text, helm, chart, set); err != nil {
			return err
		}
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text.Bytes()); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, packed.Bytes(), 0o644)
}

// render writes the chart's objects but for the CRDs, without what is Helm's.
func render(w io.Writer, helm, chart, set string) error {
	cmd := exec.Command(helm, "template", manifests.Release, chart, "--namespace", manifests.Namespace, "--set", "crds.install=false", "--set", set)
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("helm template: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		switch err := dec.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		root := doc.Content[0]
		if root.Kind != yaml.MappingNode {
			continue
		}
		plain(root)
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
		enc := yaml.NewEncoder(w)
		enc.SetIndent(2)
		if err := enc.Encode(root); err != nil {
			return err
		}
		if err := enc.Close(); err != nil {
			return err
		}
	}
}

// plain takes away the labels that say Helm manages an object, and comments
// that name its templates.
func plain(n *yaml.Node) {
	n.HeadComment, n.FootComment = "", ""
	if n.Kind != yaml.MappingNode {
		for _, c := range n.Content {
			plain(c)
		}
		return
	}
	var kept []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Value == "helm.sh/chart" || k.Value == "app.kubernetes.io/version" || k.Value == "app.kubernetes.io/managed-by" {
			continue
		}
		plain(k)
		plain(v)
		kept = append(kept, k, v)
	}
	n.Content = kept
}
