package kserve

import (
	"fmt"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// mountPath is where KServe puts a model's files.
const mountPath = "/mnt/models"

// readSource is where a predictor's model is. KServe's storage names a secret
// that holds the rest of the address unless its parameters do.
func readSource(r *manifest.Reader, path string, m *model) *service.ModelSource {
	st := m.Storage
	if st == nil || m.StorageURI != "" {
		if st != nil {
			r.Errorf(path+".storage", "and storageUri both say where the model is: remove one")
		}
		return &service.ModelSource{URI: fetched(m.StorageURI)}
	}
	kind, bucket, at := st.Parameters["type"], st.Parameters["bucket"], strings.TrimPrefix(st.Path, "/")
	src := &service.ModelSource{URI: kind + "://" + bucket + "/" + at, Storage: &service.Storage{Key: st.Key, Parameters: st.Parameters}}
	switch {
	case kind != "" && kind != "s3":
		src.Storage = nil
		manifest.CheckURI(r.Report, path+".storage.parameters.type", src.URI, false)
	case kind == "" || bucket == "":
		src.URI = "storage://" + at
		r.OneMachine(path+".storage", false, fmt.Sprintf("leaves the address to the secret %q, which is not read on one machine: write storageUri, or parameters type and bucket", manifest.Clip(st.Key)))
		return src
	}
	if st.Key != "" {
		r.OneMachine(path+".storage.key", true, "has no effect on one machine: give credentials to this program's own environment")
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

// readURIs reads a predictor's list of URIs. The first is its model; a replica has
// the files of one.
func readURIs(r *manifest.Reader, path string, in []storageURI, s *service.Service) {
	for i, u := range in {
		at := strict.Index(path, i)
		switch {
		case u.URI == "":
			r.Errorf(at+".uri", "is missing: write where the files are")
		case s.Model.URI != "" && i == 0:
			r.Errorf(at+".uri", "and storageUri both say where the model is: remove one")
		case i > 0:
			r.Refuse(at+".uri", "is not fetched: a replica has the files of the first URI; put them into one place")
		default:
			s.Model.URI = fetched(u.URI)
			manifest.CheckURI(r.Report, at+".uri", s.Model.URI, s.Runtime != nil)
		}
		if u.MountPath != "" && u.MountPath != mountPath {
			r.Warnf(at+".mountPath", "has no effect: the files are at %s", mountPath)
		}
	}
}
