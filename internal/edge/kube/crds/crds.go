// Package crds installs CRDs: ours, and for the kinds of other projects that a
// cluster lacks permissive ones, which take any fields. Nothing is ever
// deleted, and of other projects nothing that is there is changed.
package crds

import (
	"fmt"
	"io/fs"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/deploy"
)

//go:generate go run ./generate
//go:generate go run ../../../../cmd/roundhouse schema --dir ../../../../deploy/schemas

const (
	// AnnotationRevision orders the definitions of different releases.
	AnnotationRevision = "roundhouse.dev/schema-revision"
	// LabelPermissive marks a stand-in for another project's definition. It may
	// outlive the stand-in: what counts is [Permissive].
	LabelPermissive = "roundhouse.dev/permissive"
)

var gvk = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// Ours are the definitions of roundhouse.dev, by name. They are the caller's.
// An error is a fault of this binary.
func Ours() ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	err := fs.WalkDir(deploy.CRDs, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := deploy.CRDs.ReadFile(path)
		if err != nil {
			return err
		}
		var u unstructured.Unstructured
		if err := yaml.UnmarshalStrict(text, &u.Object); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, &u)
		return nil
	})
	return out, err
}

// revision is a definition's; 0 for none.
func revision(u *unstructured.Unstructured) int {
	n, err := strconv.Atoi(u.GetAnnotations()[AnnotationRevision])
	if err != nil {
		return 0
	}
	return n
}
