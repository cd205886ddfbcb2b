package service

import "strings"

// FetchedSchemes are the URI schemes that models are fetched from, wherever
// replicas run.
var FetchedSchemes = []string{"az", "gs", "hf", "http", "https", "oci", "s3"}

// RedactURI is a model's URI without user information, query values or anything
// else that may be secret, fit for logs, errors and status.
func RedactURI(uri string) string {
	rest, _, _ := strings.Cut(uri, "#")
	rest, _, hasQuery := strings.Cut(rest, "?")
	if scheme, after, found := strings.Cut(rest, "://"); found {
		authority, tail, slash := strings.Cut(after, "/")
		if i := strings.LastIndexByte(authority, '@'); i >= 0 && !AtIsRevision(scheme, after) {
			authority = authority[i+1:]
		}
		rest = scheme + "://" + authority
		if slash {
			rest += "/" + tail
		}
	}
	if hasQuery {
		rest += "?…"
	}
	return rest
}

// AtIsRevision reports whether an @ in what follows scheme:// begins a revision
// or a digest, and ends no user's name.
func AtIsRevision(scheme, after string) bool {
	authority, _, _ := strings.Cut(after, "/")
	return scheme == "hf" || scheme == "oci" && strings.HasPrefix(authority[strings.IndexByte(authority, '@')+1:], "sha256:")
}
