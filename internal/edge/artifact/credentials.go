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

// whose adds to a refusal whose credentials it was of.
func (l location) whose(err error) error {
	if c := l.credentials; c != nil && distrusted(err) {
		switch {
		case c.Authorities != "":
			err = fmt.Errorf("%w; the authorities that are given for this store do not vouch for it", err)
		case c.Unverified:
			err = fmt.Errorf("%w, or in the storage's ca_bundle or cabundle_configmap; verify_ssl has no effect: certificates are always checked", err)
		default:
			err = fmt.Errorf("%w, or in the storage's ca_bundle or cabundle_configmap", err)
		}
		return err
	}
	if l.credentials == nil || l.credentials.From == "" || !Denied(err) {
		return err
	}
	return fmt.Errorf("%w; the credentials are those of %s", err, l.credentials.From)
}
