package artifact

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Request names an artifact.
type Request struct {
	// URI is a plain path, or a URI of a scheme in [Schemes]. A fragment
	// "#sha256=<64 hex digits>" pins the content of a single file.
	URI string
	// Base is the folder that relative local paths start from: the folder of
	// the manifest that names the URI. Empty means the working directory.
	Base string
	// Credentials take the place of this process's environment; nil for none. Files
	// of this machine need none.
	Credentials *Credentials
}

// Key names the copies of a remote artifact in the store; "" for files of this
// machine.
func (r Request) Key() string {
	loc, err := parse(r)
	if err != nil || loc.url == nil || loc.scheme == "upload" {
		return ""
	}
	return loc.key()
}

// location is a parsed Request. Exactly one of path and url is set.
type location struct {
	scheme string   // "file" for plain paths
	path   string   // local path, for scheme "file"
	url    *url.URL // without fragment, for every other scheme
	sha256 string   // lower-case hex of the pinned content, or empty

	credentials *Credentials // nil: the environment
}

// Local reports whether [Store.Fetch] reads a URI as files of this machine:
// however its scheme is spelt, and also if it only seems to have a scheme. A
// URI that cannot be read is not local.
func Local(uri string) bool {
	loc, err := parse(Request{URI: uri})
	return err == nil && (loc.scheme == "file" || loc.scheme == "upload")
}

const sha256Fragment = "#sha256="

// parse splits a request into a location. Its errors never quote secrets.
func parse(req Request) (location, error) {
	uri := strings.TrimSpace(req.URI)
	if uri == "" {
		return location{}, errors.New("the URI is empty")
	}
	rest, sum, err := splitChecksum(uri)
	if err != nil {
		return location{}, err
	}
	if p, ok := service.LocalPath(rest); ok {
		return localLocation(p, req.Base, sum)
	}
	scheme, after, _ := strings.Cut(rest, "://")
	scheme = strings.ToLower(scheme)
	u, err := remoteURL(scheme, after)
	if err != nil {
		shown := uri
		if c := req.Credentials; c != nil && c.Shown != "" {
			shown = c.Shown
		}
		return location{}, fmt.Errorf("%s: %w", Redact(shown), err)
	}
	return location{scheme: scheme, url: u, sha256: sum, credentials: req.Credentials}, nil
}

// remoteURL reads what follows "scheme://". Outside of http and https a path is
// an object's key, taken letter by letter: no escapes, query or fragment.
func remoteURL(scheme, after string) (*url.URL, error) {
	host, key, _ := strings.Cut(after, "/")
	u := &url.URL{Scheme: scheme, Host: host, Path: "/" + key}
	if scheme == "http" || scheme == "https" {
		parsed, err := url.Parse(scheme + "://" + after)
		if err != nil {
			return nil, errors.New("not a URL")
		}
		u = parsed
		u.Fragment, u.RawFragment = "", ""
	} else if !service.AtIsRevision(scheme, after) && strings.Contains(host, "@") {
		return nil, errors.New("credentials belong in the environment, not in the URI")
	}
	if u.Host == "" {
		return nil, fmt.Errorf("the URI names no host or bucket after %s://", scheme)
	}
	return u, nil
}

func splitChecksum(uri string) (rest, sum string, err error) {
	rest, sum, found := strings.Cut(uri, sha256Fragment)
	if !found {
		return uri, "", nil
	}
	sum = strings.ToLower(sum)
	if !isSHA256(sum) {
		return "", "", fmt.Errorf("%s: #sha256= must be followed by 64 hex digits", Redact(uri))
	}
	return rest, sum, nil
}

func isSHA256(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == 32 && s == strings.ToLower(s)
}

func localLocation(p, base, sum string) (location, error) {
	if p == "" || strings.ContainsRune(p, 0) {
		return location{}, errors.New("file://: the path is empty or holds a zero byte")
	}
	if !filepath.IsAbs(p) {
		p = filepath.Join(base, p)
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return location{}, fmt.Errorf("%s: %w", p, err)
	}
	return location{scheme: "file", path: abs, sha256: sum}, nil
}

// String is the location without anything secret.
func (l location) String() string {
	if l.scheme == "file" {
		return l.path
	}
	if l.credentials != nil && l.credentials.Shown != "" {
		return Redact(l.credentials.Shown)
	}
	return Redact(l.url.String())
}

// key names the location's folder in the store. It covers the whole URI, and the
// scope of its credentials: two users' may see different content at one address.
func (l location) key() string {
	if l.credentials != nil && l.credentials.Scope != "" {
		return digest(l.credentials.Scope + "\n" + l.url.String())[:32]
	}
	return digest(l.url.String())[:32]
}

// fileName is the last element of the URI's path, or empty.
func (l location) fileName() string {
	if strings.HasSuffix(l.url.Path, "/") {
		return ""
	}
	name := path.Base(l.url.Path) // of the decoded path
	if name == "." || name == "/" || name == ".." {
		return ""
	}
	return name
}

// Redact is [service.RedactURI].
func Redact(uri string) string { return service.RedactURI(uri) }

// pattern compiles an expression when it is first used: a replica, which links
// this package and uses none, does not pay for them.
func pattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
