package kserve

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// readSource is where a predictor's model is, or an explainer's files. KServe's storage
// names a secret that holds the rest of the address unless its parameters do.
func readSource(r *manifest.Reader, path, uri string, st *storage) *service.ModelSource {
	if st == nil || uri != "" {
		if st != nil {
			r.Errorf(path+".storage", "and storageUri both say where the model is: remove one")
		}
		return &service.ModelSource{URI: fetched(uri)}
	}
	kind, bucket, at := st.Parameters["type"], st.Parameters["bucket"], strings.TrimPrefix(st.Path, "/")
	src := &service.ModelSource{URI: kind + "://" + bucket + "/" + at, Storage: &service.Storage{Key: st.Key, Parameters: st.Parameters}}
	switch {
	case kind != "" && kind != "s3":
		src.Storage = nil
		manifest.CheckURI(r.Report, path+".storage.parameters.type", src.URI, false)
	case kind == "" || bucket == "":
		src.URI = credentials.StorageScheme + at
	}
	return src
}

// fetched is a URI without what it says of how KServe fetches an image: all are
// fetched in one way here.
func fetched(uri string) string {
	for _, scheme := range []string{"oci+native://", "oci+fetch://"} {
		if rest, ok := strings.CutPrefix(uri, scheme); ok {
			return "oci://" + rest
		}
	}
	return uri
}

// readURIs reads a predictor's list of URIs. The first is the model that a runtime is
// chosen for; the files of each lie at its mountPath.
func readURIs(r *manifest.Reader, path string, in []storageURI, s *service.Service) {
	if len(in) > 0 && s.Model.URI != "" {
		r.Errorf(path, "and the model's storageUri or storage both say where the model is: remove one")
		return
	}
	parts := readParts(r, path, in, s.Runtime != nil)
	if len(parts) == 0 {
		return
	}
	s.Model.URI = parts[0].URI
	if len(parts) > 1 || parts[0].Path != service.MountPath {
		s.Model.Parts = parts
	}
}

// readParts reads a list of URIs, each with the place of its files in a container. pinned
// says that a runtime is named, which may read a store that nothing is fetched from.
func readParts(r *manifest.Reader, path string, in []storageURI, pinned bool) (parts service.Parts) {
	if len(in) > service.MaxParts {
		r.Errorf(path, "%d URIs are more than one model may have (%d)", len(in), service.MaxParts)
		return nil
	}
	for i, u := range in {
		at := strict.Index(path, i)
		part := service.Part{URI: fetched(u.URI), Path: service.MountPath}
		if u.URI == "" {
			r.Errorf(at+".uri", "is missing: write where the files are")
		} else {
			manifest.CheckURI(r.Report, at+".uri", part.URI, pinned)
		}
		if u.MountPath != "" {
			part.Path = readMountPath(r, at+".mountPath", u.MountPath)
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return nil
	}
	if parts.Root() == "/" {
		r.Errorf(path, "the mountPaths have no folder in common but /: write them below one, as %s/NAME", service.MountPath)
		return nil
	}
	if i, j, ok := parts.Overlap(); ok {
		p := r.Problem(strict.Index(path, i), fmt.Sprintf("a claim is mounted, and the files of %s cannot lie in one folder with it: give each a mountPath of its own, as %s/NAME", strict.Index(path, j), service.MountPath))
		p.Readable, p.Platform = true, manifest.Kubernetes
	}
	return parts
}

// readMountPath reads where files are to lie in a container.
func readMountPath(r *manifest.Reader, at, stated string) string {
	clean := path.Clean(stated)
	switch {
	case !path.IsAbs(stated) || clean == "/" || slices.Contains(strings.Split(stated, "/"), ".."), strings.ContainsAny(stated, ":\x00"):
		r.Errorf(at, "%q is no folder of a container: write an absolute path without .. and colons, as %s/NAME", manifest.Clip(stated), service.MountPath)
	case len(stated) > maxMountPath:
		r.Errorf(at, "is longer than %d characters", maxMountPath)
	case service.Within(service.MountPath, clean):
		return clean
	default:
		r.OneMachine(at, true, "is a path of containers: a process has the files below {{.ModelPath}}, which also stands for this path in its arguments and variables")
		return clean
	}
	return service.MountPath
}

// maxMountPath bounds a mountPath.
const maxMountPath = 512
