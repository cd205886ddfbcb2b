package network

import (
	"net/netip"
	"strings"
	"testing"
)

func TestInternal(t *testing.T) {
	for text, internal := range map[string]bool{
		"127.0.0.1": true, "::1": true, "169.254.169.254": true, "10.1.2.3": true, "172.16.0.1": true, "192.168.1.1": true, "100.64.0.1": true,
		"0.0.0.0": true, "::": true, "fe80::1": true, "fe80::1%eth0": true, "fd00::1": true, "::ffff:10.0.0.1": true, "64:ff9b::a00:1": true, "2002:a00:1::": true,
		"224.0.0.1": true, "::7f00:1": true, "2001:0:a00:1::": true, "::ffff:0:a00:1": true, "255.255.255.255": true,
		"8.8.8.8": false, "2001:4860:4860::8888": false, "172.32.0.1": false,
	} {
		a := netip.MustParseAddr(text)
		if got := Internal(a); got != internal {
			t.Errorf("%s: internal %v", text, got)
		}
		if got := InternalHost(text); got != internal {
			t.Errorf("%s as a host: internal %v", text, got)
		}
	}
}

func TestInternalHost(t *testing.T) {
	for host, internal := range map[string]bool{
		"minio": true, "MINIO": true, "minio.": true, "localhost": true, "a.localhost": true, "localhost.": true, "": true,
		"minio.team.svc": true, "minio.team.svc.cluster.local": true, "minio.team.svc.cluster.local.": true, "minio.team.svc.cluster.example": true,
		"printer.local": true, "metadata.google.internal": true, "nas.home.arpa": true,
		"[::1]": true, "[fd00::1]": true, "127.1": true, "0x7f.1": true, "0177.0.0.1": true, "2130706433": true, "10.0.0.0x1": true,
		"example.com": false, "models.example.com": false, "s3.amazonaws.com": false, "svc.example.com": false, "local.example.com": false,
		"localhost.example.com": false, "[2001:4860:4860::8888]": false, "a.svc.example.com": false, "xn--nxasmq6b.xn--j6w193g": false, "a.0xyz": false,
	} {
		if got := InternalHost(host); got != internal {
			t.Errorf("%q: internal %v", host, got)
		}
	}
}

// FuzzInternalHost: how a host is written does not matter, and an address is what
// it is.
func FuzzInternalHost(f *testing.F) {
	for _, host := range []string{"10.0.0.1", "::1", "minio.team.svc", "Example.com", "127.1", "a.svc.cluster.local", "..", "0x"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		got := InternalHost(host)
		if a, err := netip.ParseAddr(host); err == nil && got != Internal(a) {
			t.Errorf("%q: %v as a host, %v as an address", host, got, Internal(a))
		}
		if len(host) < 1 || host[len(host)-1] == '.' || host[0] == '[' || host[len(host)-1] == ']' {
			return
		}
		if strings.ToLower(host) == strings.ToUpper(host) || isASCII(host) {
			if InternalHost(strings.ToUpper(host)) != got || InternalHost(host+".") != got && !strings.Contains(host, ":") {
				t.Errorf("%q is judged by its spelling", host)
			}
		}
	})
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > 127 }) < 0
}

func TestLocalHost(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:8080": true, "iris.default.localhost:8080": true, "127.0.0.1": true, "127.9.9.9:1": true,
		"[::1]:8080": true, "[::1]": true, "::1": true, "[::ffff:127.0.0.1]:1": true,
		"": false, "evil.example": false, "localhost.evil.example": false, "evillocalhost": false, "192.0.2.1:8080": false,
		"0.0.0.0:8080": false, "127.0.0.1.evil.example": false, "[::2]:1": false, ":8080": false,
	} {
		if got := LocalHost(host); got != want {
			t.Errorf("LocalHost(%q) = %v", host, got)
		}
	}
}

func TestServiceHost(t *testing.T) {
	for host, want := range map[string]string{
		"sink":                          "team/sink",
		"Sink.Team":                     "team/sink",
		"sink.team.svc":                 "team/sink",
		"sink.other.svc.cluster.local.": "other/sink",
		"sink.other":                    "", // may be of the internet
		"sink.svc":                      "",
		"sink.team.cluster.local":       "",
		"a.sink.team.svc":               "",
		"example.com":                   "",
		"localhost":                     "",
		"10.0.0.1":                      "",
		"2130706433":                    "",
		"::1":                           "",
		"":                              "",
		".team.svc":                     "",
	} {
		name, of, ok := ServiceHost(host, "team")
		got := ""
		if ok {
			got = of + "/" + name
		}
		if got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
}
