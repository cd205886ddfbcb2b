package image

import (
	"fmt"
	"regexp"
	"strings"
)

const maxReference = 255

var (
	referencePath = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	referenceTag  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	referenceHost = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?$`)
)

// reference is an image's name, as docker reads it.
type reference struct {
	host string // "" for none
	path string
	tag  string
}

// ParseTag checks an image's name, as in -t NAME[:TAG], and reports what is
// wrong with it.
func ParseTag(s string) error {
	_, err := parseReference(s)
	return err
}

func parseReference(s string) (reference, error) {
	r := reference{path: s, tag: "latest"}
	if slash := strings.LastIndex(s, "/"); strings.LastIndex(s, ":") > slash {
		r.path, r.tag, _ = cutLast(s, ":")
	}
	if first, rest, found := strings.Cut(r.path, "/"); found && (strings.ContainsAny(first, ".:") || first == "localhost" || strings.ToLower(first) != first) {
		r.host, r.path = first, rest
	}
	if len(s) > maxReference || !referencePath.MatchString(r.path) || !referenceTag.MatchString(r.tag) || r.host != "" && !referenceHost.MatchString(r.host) {
		return r, fmt.Errorf("%q is no image name: it is [HOST/]NAME[:TAG], in small letters, digits and . _ -", s)
	}
	return r, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// short is the name as people write it, with its tag.
func (r reference) short() string {
	if r.host == "" {
		return r.path + ":" + r.tag
	}
	return r.host + "/" + r.path + ":" + r.tag
}

// full names the registry, too: Docker's, where none is said.
func (r reference) full() string {
	switch {
	case r.host != "":
		return r.short()
	case !strings.Contains(r.path, "/"):
		return "docker.io/library/" + r.short()
	}
	return "docker.io/" + r.short()
}
