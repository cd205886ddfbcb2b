package apikey

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 500, time.UTC)

func TestMint(t *testing.T) {
	var random [Entropy]byte
	for i := range random {
		random[i] = byte(i * 7)
	}
	k, secret := Mint(random, "ci", Limits{Models: []string{"chat"}, RequestsPerMinute: 3}, noon, noon.Add(time.Hour))
	if err := k.Validate(); err != nil {
		t.Fatal(err)
	}
	id, ok := ID(secret)
	if !ok || id != k.ID || !k.Matches(secret) || !strings.HasPrefix(secret, "rh-"+k.ID+"-") || len(secret) != 44 {
		t.Errorf("%q gives %q %v for %+v", secret, id, ok, k)
	}
	last := secret[:len(secret)-1] + "b"
	if secret == last || k.Matches(last) || k.Matches("") || (Key{}).Matches("") {
		t.Error("another secret matches")
	}
	if raw, err := json.Marshal(k); err != nil || strings.Contains(string(raw), k.Hash) || strings.Contains(string(raw), secret[12:]) {
		t.Errorf("JSON tells a secret or its hash: %s %v", raw, err)
	}
	for _, wrong := range []string{"", "rh-", "sk-" + secret[3:], secret + "x", secret[1:], strings.Replace(secret, "-"+secret[12:], "_"+secret[12:], 1)} {
		if id, ok := ID(wrong); ok {
			t.Errorf("%q has the id %q", wrong, id)
		}
	}
}

// TestCarried: a key is known in whatever form a client sends it.
func TestCarried(t *testing.T) {
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for value, want := range map[string]bool{
		"rh-abc": true, "RH-abc": true, " rh-abc ": true, "Bearer rh-abc": true, "bearer\trh-abc": true, "Token rh-abc": true, "Basic rh-abc": true,
		`Key key="rh-abc"`: true, "sk-1, rh-abc": true,
		basic("user:rh-abc"): true, basic("rh-abc:"): true, basic("rh-abc"): true, strings.TrimRight(basic("u:rh-abc"), "="): true, "basic  " + basic("u:rh-abc")[6:]: true,
		"": false, "Bearer sk-rh-abc": false, basic("user:password"): false, "Basic !": false, "Bearer " + basic("u:rh-abc")[6:]: false, "rh": false,
	} {
		if Carried(value) != want {
			t.Errorf("%q: %v", value, !want)
		}
	}
}

func TestLive(t *testing.T) {
	k := Key{Expires: noon}
	if !k.Live(noon.Add(-1)) || k.Live(noon) || (Key{Revoked: noon}).Live(noon.Add(-time.Hour)) || !(Key{}).Live(noon) {
		t.Error("a key lives until it expires or is revoked")
	}
}

func TestValidate(t *testing.T) {
	k, _ := Mint([Entropy]byte{}, "x", Limits{}, noon, time.Time{})
	for what, change := range map[string]func(*Key){
		"id":                  func(k *Key) { k.ID = "short" },
		"hash":                func(k *Key) { k.Hash = "12" },
		"name":                func(k *Key) { k.Name = "a\nb" },
		"requests per minute": func(k *Key) { k.Limits.RequestsPerMinute = -1 },
		"tokens per minute":   func(k *Key) { k.Limits.TokensPerMinute = -1 },
		"concurrent":          func(k *Key) { k.Limits.Concurrent = -1 },
		"no name":             func(k *Key) { k.Limits.Models = []string{""} },
		"no namespace":        func(k *Key) { k.Limits.Namespaces = []string{"a/b"} },
		"namespaces are more": func(k *Key) { k.Limits.Namespaces = make([]string, MaxNamespaces+1) },
		"more than":           func(k *Key) { k.Limits.Models = make([]string, MaxModels+1) },
	} {
		bad := k
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !k.Expires.IsZero() {
		t.Errorf("expires %v", k.Expires)
	}
}
