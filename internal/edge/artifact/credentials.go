package artifact

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// Credentials are what a request is made with in place of this process's own
// environment.
type Credentials struct {
	// Variables are what the environment would have: all that a source reads of it,
	// but for the address of the Hub; nil leaves the environment.
	Variables map[string]string
	// Scope tells copies apart: requests of one scope share those that any of them
	// fetched, and no others.
	Scope string
	// Shown stands in messages in place of the URI, which may itself have been
	// kept secret.
	Shown string
	// From says, where a source refuses them, whose they are.
	From string
	// Region is that of a bucket of S3, until the store says another; "" for the
	// variables'.
	Region string
	// Endpoint is the address of a store that speaks S3, in place of the variables'. It
	// counts for [Put].
	Endpoint string
	// Authorities are certificates in PEM that vouch for the store, beside those that
	// this machine trusts.
	Authorities string
	// Unverified: whoever wrote the credentials wants no certificates to be checked,
	// which they are all the same. A failure says so.
	Unverified bool
}

// environment answers for variables: those of this process, or, where it is not
// nil, of Credentials alone.
type environment map[string]string

// Getenv is os.Getenv of the environment.
func (e environment) Getenv(name string) string {
	if e == nil {
		return os.Getenv(name)
	}
	return e[name]
}

// firstEnv is the value of the first variable that has one.
func (e environment) firstEnv(names ...string) string {
	for _, n := range names {
		if v := e.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

// maxSourceSets bounds how many sets of credentials keep what they have learnt:
// tokens, and the regions of buckets.
const maxSourceSets = 64

// sourceSets are the sources of each set of credentials.
type sourceSets struct {
	make func(environment) map[string]source

	mu   sync.Mutex
	sets map[string]map[string]source // by digest of the credentials
}

// of returns the sources that read an environment.
func (s *sourceSets) of(env environment) map[string]source {
	id := ""
	if env != nil {
		raw, _ := json.Marshal(env) // strings always encode; keys are sorted
		id = digest(string(raw))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.sets[id]; have != nil {
		return have
	}
	if len(s.sets) >= maxSourceSets {
		own := s.sets[""]
		clear(s.sets)
		if own != nil {
			s.sets[""] = own
		}
	}
	s.sets[id] = s.make(env)
	return s.sets[id]
}

// whose adds to an error whose credentials it came of, or who says where the store is.
func (l location) whose(err error) error {
	c := l.credentials
	switch {
	case c == nil:
		return err
	case distrusted(err):
		return fmt.Errorf("%w%s", err, l.distrust())
	case c.From == "":
		return err
	case Denied(err):
		return fmt.Errorf("%w; the credentials are those of %s", err, c.From)
	case c.Shown != "":
		return fmt.Errorf("%w; bucket and endpoint are those of %s", err, c.From)
	}
	return err
}

// distrust says of a certificate for which nobody vouches who might.
func (l location) distrust() string {
	switch c := l.credentials; {
	case c.Authorities != "":
		return "; the authorities that are given for this store do not vouch for it"
	case c.Unverified:
		return ", or in the storage's ca_bundle or cabundle_configmap; verify_ssl has no effect: certificates are always checked"
	}
	return ", or in the storage's ca_bundle or cabundle_configmap"
}
