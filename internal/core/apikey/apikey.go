// Package apikey holds the words of API keys: how a key is written, how it is
// kept, and what it allows.
//
// A key is "rh-ID-SECRET": ID names it in lists and logs, SECRET is 160 random
// bits. What is kept is the key's SHA-256. A slow hash, as passwords need, would
// add nothing: nobody can try 2^160 secrets, and every request pays for the
// hash.
package apikey

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Prefix begins every key, so that people and scanners for leaked secrets know
// one.
const Prefix = "rh-"

const (
	idBytes     = 5
	secretBytes = 20
	idChars     = idBytes * 8 / 5
	secretChars = secretBytes * 8 / 5
)

// Entropy is how many random bytes Mint needs.
const Entropy = idBytes + secretBytes

var text = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Bearer is the token of an Authorization header's value, whose scheme may be
// written in any case (RFC 9110, section 11.1); "" for another scheme.
func Bearer(authorization string) string {
	scheme, token, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// Carried reports whether the value of a header by which clients name
// themselves holds a key, or what looks like one: alone, after a scheme of any
// name, or as user or password of Basic credentials (RFC 7617).
func Carried(value string) bool {
	words := strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(" \t,;=:\"'", r) })
	for i, w := range words {
		if begins(w) {
			return true
		}
		if i == 0 || !strings.EqualFold(words[i-1], "Basic") {
			continue
		}
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			b, _ := alphabet.DecodeString(w) // what was decoded before an error counts as well
			if user, password, _ := strings.Cut(string(b), ":"); begins(user) || begins(password) {
				return true
			}
		}
	}
	return false
}

func begins(word string) bool {
	return len(word) >= len(Prefix) && strings.EqualFold(word[:len(Prefix)], Prefix)
}

// Key is what is kept of one key. Times are in UTC and to the second.
type Key struct {
	ID      string    `json:"id" yaml:"id"`
	Name    string    `json:"name" yaml:"name"` // whose it is or what for
	Hash    string    `json:"-" yaml:"hash"`    // SHA-256 of the whole key, in hex
	Created time.Time `json:"created" yaml:"created"`
	Expires time.Time `json:"expires,omitzero" yaml:"expires,omitempty"` // zero: never
	Revoked time.Time `json:"revoked,omitzero" yaml:"revoked,omitempty"` // zero: it is not
	Limits  Limits    `json:"limits,omitzero" yaml:"limits,omitempty"`
}

// Limits are what a key allows. The zero Limits allow everything.
type Limits struct {
	// Models are the names of the models it may use, as requests name them;
	// none: all.
	Models []string `json:"models,omitempty" yaml:"models,omitempty"`
	// Namespaces are those whose models it may use and know of; none: all.
	// Within one namespace a bare name is that namespace's.
	Namespaces []string `json:"namespaces,omitempty" yaml:"namespaces,omitempty"`
	// Requests and tokens per minute, and requests at one time; 0: no limit.
	RequestsPerMinute int64 `json:"requestsPerMinute,omitempty" yaml:"requestsPerMinute,omitempty"`
	TokensPerMinute   int64 `json:"tokensPerMinute,omitempty" yaml:"tokensPerMinute,omitempty"`
	Concurrent        int64 `json:"concurrent,omitempty" yaml:"concurrent,omitempty"`
}

// Bounds of a key's fields.
const (
	MaxName   = 128 // bytes
	MaxModels = 1000
	// MaxNamespaces is how many a key may name.
	MaxNamespaces = 1000
)

// Validate reports every field that is out of range.
func (k Key) Validate() error {
	var errs []error
	if len(k.ID) != idChars {
		errs = append(errs, fmt.Errorf("id %q is not one: it has %d characters", k.ID, idChars))
	}
	if b, err := hex.DecodeString(k.Hash); err != nil || len(b) != sha256.Size {
		errs = append(errs, fmt.Errorf("hash of key %s is no SHA-256 in hex", k.ID))
	}
	if len(k.Name) > MaxName || strings.ContainsFunc(k.Name, func(r rune) bool { return r < ' ' }) {
		errs = append(errs, fmt.Errorf("name %.20q is over %d bytes or holds control characters", k.Name, MaxName))
	}
	return errors.Join(append(errs, k.Limits.Validate())...)
}

// Validate reports every limit that is out of range.
func (l Limits) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int64
	}{{"requests per minute", l.RequestsPerMinute}, {"tokens per minute", l.TokensPerMinute}, {"concurrent requests", l.Concurrent}} {
		if f.n < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative, is %d", f.name, f.n))
		}
	}
	if len(l.Models) > MaxModels {
		errs = append(errs, fmt.Errorf("%d models are more than %d", len(l.Models), MaxModels))
	}
	if len(l.Namespaces) > MaxNamespaces {
		errs = append(errs, fmt.Errorf("%d namespaces are more than %d", len(l.Namespaces), MaxNamespaces))
	}
	for _, n := range l.Namespaces {
		if n == "" || strings.Contains(n, "/") {
			errs = append(errs, fmt.Errorf("%q is no namespace", n))
		}
	}
	for _, m := range l.Models {
		if m == "" {
			errs = append(errs, errors.New("a model has no name"))
		}
	}
	return errors.Join(errs...)
}

// Mint writes a new key from random bytes: what is kept of it, and the key
// itself, which is told once and then forgotten.
func Mint(random [Entropy]byte, name string, limits Limits, created, expires time.Time) (k Key, secret string) {
	id := text.EncodeToString(random[:idBytes])
	secret = Prefix + id + "-" + text.EncodeToString(random[idBytes:])
	sum := sha256.Sum256([]byte(secret))
	return Key{ID: id, Name: name, Hash: hex.EncodeToString(sum[:]), Limits: limits,
		Created: created.UTC().Truncate(time.Second), Expires: expires.UTC().Truncate(time.Second)}, secret
}

// ID is the name of the key that secret is, if it has a key's form.
func ID(secret string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(secret, Prefix)
	if !ok || len(rest) != idChars+1+secretChars || rest[idChars] != '-' {
		return "", false
	}
	return rest[:idChars], true
}

// Matches reports whether secret is this key. It takes as long whatever secret is.
func (k Key) Matches(secret string) bool {
	got := sha256.Sum256([]byte(secret))
	want, err := hex.DecodeString(k.Hash)
	return err == nil && subtle.ConstantTimeCompare(got[:], want) == 1
}

// Live reports whether the key may be used: it is neither revoked nor expired.
func (k Key) Live(now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}
