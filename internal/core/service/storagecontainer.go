package service

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// StorageContainer is a container that fetches models of stores that this program does
// not know: KServe's ClusterStorageContainer.
type StorageContainer struct {
	Meta
	Container corev1.Container
	// URIs are those that it fetches.
	URIs     []URIFormat
	Disabled bool
}

// URIFormat is a form of URIs: what they begin with or, without that, an expression
// that is found in them.
type URIFormat struct{ Prefix, Regex string }

// Fetches reports whether the container fetches a URI.
func (c *StorageContainer) Fetches(uri string) bool {
	if c.Disabled {
		return false
	}
	for _, f := range c.URIs {
		if f.Prefix != "" {
			if strings.HasPrefix(uri, f.Prefix) {
				return true
			}
			continue
		}
		if x, err := regexp.Compile(f.Regex); err == nil && f.Regex != "" && x.MatchString(uri) {
			return true
		}
	}
	return false
}

// ForeignURI reports whether nothing of this program knows what a URI leads to, so that
// a StorageContainer may fetch it.
func ForeignURI(uri string) bool {
	if _, local := LocalPath(uri); local {
		return false
	}
	scheme, _, found := strings.Cut(strings.TrimSpace(uri), "://")
	switch scheme = strings.ToLower(scheme); scheme {
	case "file", "upload", "pvc", "storage":
		return false
	}
	for _, known := range FetchedSchemes {
		if scheme == known {
			return false
		}
	}
	return found
}
