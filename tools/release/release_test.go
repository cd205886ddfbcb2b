package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

func TestVersions(t *testing.T) {
	commit := "0123456789abcdef"
	for _, c := range []struct {
		tags      string
		changed   bool
		changelog string
		semver    string
		pep440    string
		fault     string
	}{
		{tags: "v1.2.3", changelog: "# Changelog\n\n## 1.2.3\n", semver: "1.2.3", pep440: "1.2.3"},
		{tags: "v1.2.3-rc.2", changelog: "## 1.2.3-rc.2 (2026-11-23)", semver: "1.2.3-rc.2", pep440: "1.2.3rc2"},
		{tags: "v0.1.0-alpha.1", changelog: "## 0.1.0-alpha.1", semver: "0.1.0-alpha.1", pep440: "0.1.0a1"},
		{changelog: "## Unreleased", semver: "0.0.0-dev.7.g0123456", pep440: "0.0.0.dev7+g0123456"},
		{changed: true, semver: "0.0.0-dev.7.g0123456.changed", pep440: "0.0.0.dev7+g0123456.changed"},
		{tags: "v1.2.3", changelog: "## Unreleased\n\n## 1.2.3", fault: `the top entry is not "## 1.2.3"`},
		{tags: "v1.2.3", fault: "the top entry is not"},
		{tags: "v1.2.3", changed: true, changelog: "## 1.2.3", fault: "the tree has changes"},
		{tags: "v1.2", fault: "is not a version"},
		{tags: "v1.2.3\nv1.2.4", fault: "several tags"},
	} {
		v, err := version{commit: commit}.named(c.tags, "7", c.changed, []byte(c.changelog))
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%+v: got %+v, %v", c, v, err)
			}
			continue
		}
		if err != nil || v.semver != c.semver || v.pep440 != c.pep440 || v.snapshot != (c.tags == "") {
			t.Errorf("%+v: got %+v, %v", c, v, err)
		}
	}
}

func TestArchivesDependOnTheirFilesAlone(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	folder := t.TempDir()
	write := func(name string, files []file) []byte {
		to := filepath.Join(folder, name)
		if err := writeTarGz(to, files, at); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	a, b := file{name: "a", mode: 0o644, data: []byte("a")}, file{name: "b", mode: 0o755, data: []byte("b")}
	if !bytes.Equal(write("1", []file{a, b}), write("2", []file{b, a})) {
		t.Error("the order of files changes the archive")
	}
	if err := writeTarGz(filepath.Join(folder, "3"), []file{a, a}, at); err == nil {
		t.Error("a file twice in an archive is no error")
	}
}

func TestModulesWithoutAllowedLicence(t *testing.T) {
	for licences, fault := range map[string]string{"": "no licence found", "MIT,GPL-3.0": "GPL-3.0 is not among", "MIT,Apache-2.0": ""} {
		m := module{path: "example.com/m", version: "v1.0.0", licences: strings.FieldsFunc(licences, func(r rune) bool { return r == ',' })}
		err := m.check()
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%q: %v", licences, err)
		}
	}
}

func TestSigning(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(keyVariable, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	signing, err := signerFromEnv()
	if err != nil {
		t.Fatal(err)
	}
	r := release{out: t.TempDir(), key: signing, version: version{semver: "1.0.0", commit: "0123"}}
	if err := os.WriteFile(r.path("file"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "SHA256SUMS", "provenance.intoto.jsonl"} {
		sig, err := os.ReadFile(r.path(name + ".sig"))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(sig)))
		if err != nil {
			t.Fatal(err)
		}
		// openssl reads what we wrote, as it reads what cosign writes.
		if err := os.WriteFile(r.path("raw"), raw, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := command(context.Background(), r.out, nil, "openssl", "dgst", "-sha256", "-verify", "roundhouse.pub", "-signature", "raw", name); err != nil {
			t.Error(err)
		}
	}
	var envelope dsse.Envelope
	text, err := os.ReadFile(r.path("provenance.intoto.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &envelope); err != nil || len(envelope.Signatures) != 1 {
		t.Fatalf("%v in %s", err, text)
	}
	t.Setenv(keyVariable, "nonsense")
	if _, err := signerFromEnv(); err == nil {
		t.Error("nonsense is taken for a key")
	}
}

// dist returns the folder of a release that `make test-release` has made.
func dist(t *testing.T) string {
	folder := os.Getenv("ROUNDHOUSE_DIST")
	if folder == "" {
		t.Skip("there is no release to install: run make test-release")
	}
	return folder
}

func find(t *testing.T, pattern string) string {
	path, err := one(dist(t), pattern)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := command(t.Context(), dir, env, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSumsCoverTheRelease(t *testing.T) {
	folder := dist(t)
	run(t, folder, nil, "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums, err := os.ReadFile(filepath.Join(folder, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "SHA256SUMS" && !strings.HasSuffix(e.Name(), ".sig") && e.Name() != "roundhouse.pub" && !strings.Contains(string(sums), "  "+e.Name()+"\n") {
			t.Errorf("SHA256SUMS lacks %s", e.Name())
		}
	}
}

func TestInstallScript(t *testing.T) {
	folder, home := dist(t), t.TempDir()
	script := filepath.Join(folder, "install.sh")
	env := []string{"HOME=" + home}
	out := run(t, home, env, "sh", script, "--from", folder)
	if !strings.Contains(out, ".local/bin") {
		t.Errorf("it says %q", out)
	}
	if out := run(t, home, env, filepath.Join(home, ".local/bin/roundhouse"), "version"); !strings.Contains(out, "Version  ") {
		t.Errorf("version: %q", out)
	}
	for _, name := range []string{"bin/roundhouse-server", "bin/roundhouse-onnx", "share/man/man1/roundhouse-up.1", "share/bash-completion/completions/roundhouse"} {
		if _, err := os.Stat(filepath.Join(home, ".local", name)); err != nil {
			t.Error(err)
		}
	}
	// Again over itself, elsewhere, and with an archive that was tampered with.
	run(t, home, env, "sh", script, "--from", folder)
	run(t, home, env, "sh", script, "--from", folder, "--to", filepath.Join(home, "with space"))
	forged := t.TempDir()
	if err := os.WriteFile(filepath.Join(forged, filepath.Base(find(t, "roundhouse_*_linux_amd64.tar.gz"))), []byte("forged"), 0o644); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(home, "forged")
	if _, err := command(t.Context(), home, env, "sh", script, "--from", forged, "--to", to); err == nil || !strings.Contains(err.Error(), "nothing was installed") {
		t.Errorf("a forged archive: %v", err)
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("a forged archive left files")
	}
	for _, args := range [][]string{{"--to"}, {"--to", "relative"}, {"--what"}} {
		if _, err := command(t.Context(), home, env, "sh", append([]string{script}, args...)...); err == nil {
			t.Errorf("%q is no error", args)
		}
	}
}

func TestWheel(t *testing.T) {
	wheel := find(t, "roundhouse-*-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
	venv := filepath.Join(t.TempDir(), "venv")
	run(t, ".", nil, "python3", "-m", "venv", venv)
	// The dependencies are the user's: that pip finds them is not what is tested.
	run(t, ".", nil, filepath.Join(venv, "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel)
	out := run(t, ".", nil, filepath.Join(venv, "bin/roundhouse"), "version")
	shown := run(t, ".", nil, filepath.Join(venv, "bin/python"), "-c", "import roundhouse, importlib.metadata as m; assert m.version('roundhouse') == roundhouse.__version__; print(roundhouse.__version__)")
	base, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(wheel), "roundhouse-"), "-py3")
	if strings.TrimSpace(shown) != base || !strings.Contains(out, "Version  ") {
		t.Errorf("Python says %q, the file %q, the program %q", shown, base, out)
	}
	run(t, ".", nil, filepath.Join(venv, "bin/pip"), "uninstall", "--quiet", "--yes", "roundhouse")
	if _, err := os.Stat(filepath.Join(venv, "bin/roundhouse")); err == nil {
		t.Error("pip uninstall left the program")
	}
	r, err := zip.OpenReader(wheel)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for _, f := range r.File {
		if strings.Contains(f.Name, "__pycache__") {
			t.Errorf("the wheel holds %s", f.Name)
		}
	}
}

func TestDebianPackage(t *testing.T) {
	deb := find(t, "roundhouse_*_amd64.deb")
	fields := run(t, ".", nil, "dpkg-deb", "--field", deb)
	for _, want := range []string{"Package: roundhouse", "Architecture: amd64", "Depends: passwd"} {
		if !strings.Contains(fields, want) {
			t.Errorf("%q is not in\n%s", want, fields)
		}
	}
	root := os.Getenv("ROUNDHOUSE_DEBIAN_ROOT")
	if root == "" {
		t.Skip("the package is not installed: ROUNDHOUSE_DEBIAN_ROOT names no Debian root (make test-release makes one where debootstrap and root are)")
	}
	inside := func(args ...string) string { return run(t, ".", nil, "chroot", append([]string{root}, args...)...) }
	copyTo := filepath.Join(root, "tmp", "roundhouse.deb")
	data, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copyTo, data, 0o644); err != nil {
		t.Fatal(err)
	}
	inside("dpkg", "--install", "/tmp/roundhouse.deb")
	inside("dpkg", "--install", "/tmp/roundhouse.deb") // an upgrade onto itself
	if out := inside("roundhouse", "version"); !strings.Contains(out, "Version  ") {
		t.Errorf("version: %q", out)
	}
	inside("getent", "passwd", "roundhouse")
	inside("test", "-f", "/usr/lib/systemd/system/roundhouse.service")
	inside("test", "-f", "/etc/roundhouse/up.yaml")
	inside("dpkg", "--remove", "roundhouse")
	inside("test", "-f", "/etc/roundhouse/roundhouse.env") // configuration stays until purge
	inside("dpkg", "--purge", "roundhouse")
	if _, err := command(t.Context(), ".", nil, "chroot", root, "getent", "passwd", "roundhouse"); err == nil {
		t.Error("purge left the user")
	}
	for _, name := range []string{"usr/bin/roundhouse", "etc/roundhouse/roundhouse.env", "etc/roundhouse/up.yaml", "usr/share/doc/roundhouse"} {
		if _, err := os.Stat(filepath.Join(root, name)); err == nil {
			t.Errorf("purge left %s", name)
		}
	}
}

func TestRPM(t *testing.T) {
	rpm := find(t, "roundhouse-*.x86_64.rpm")
	if _, err := command(t.Context(), ".", nil, "rpm", "--version"); err != nil {
		t.Skipf("the package is not read: %v (apt-get install rpm)", err)
	}
	list := run(t, ".", nil, "rpm", "--query", "--list", "--package", rpm)
	for _, want := range []string{"/usr/bin/roundhouse", "/usr/lib/systemd/system/roundhouse.service", "/usr/share/man/man1/roundhouse-up.1"} {
		if !strings.Contains(list, want) {
			t.Errorf("%s is not in\n%s", want, list)
		}
	}
}

func TestFormula(t *testing.T) {
	formula := find(t, "roundhouse.rb")
	if _, err := command(t.Context(), ".", nil, "ruby", "--version"); err != nil {
		t.Skipf("the formula is not parsed: %v (apt-get install ruby)", err)
	}
	run(t, ".", nil, "ruby", "-c", formula)
}

// TestPush pushes to a registry on this machine, without a login and with one,
// and reads both artifacts back, the chart with Helm.
func TestPush(t *testing.T) {
	helm := os.Getenv("ROUNDHOUSE_HELM")
	folder := dist(t)
	for name, password := range map[string]string{"open": "", "with a login": "s3cret"} {
		t.Run(name, func(t *testing.T) {
			content := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				user, got, _ := r.BasicAuth()
				if password != "" && (user != "me" || got != password) {
					w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
					http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
					return
				}
				content.ServeHTTP(w, r)
			}))
			defer server.Close()
			to := strings.TrimPrefix(server.URL, "http://") + "/team"
			t.Setenv("DOCKER_CONFIG", t.TempDir())                                                           // nobody is logged in
			args := []string{"-dist", folder, "-helm", helm, "-onnx", find(t, "roundhouse-image-*.tar"), to} // any image will do
			if password != "" {
				if err := pushMain(t.Context(), args); err == nil {
					t.Error("the registry took a push without a login")
				}
				t.Setenv("ROUNDHOUSE_REGISTRY_USER", "me")
				t.Setenv("ROUNDHOUSE_REGISTRY_PASSWORD", password)
			}
			if err := pushMain(t.Context(), args); err != nil {
				t.Fatal(err)
			}
			version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(find(t, "roundhouse-image-*.tar")), "roundhouse-image-"), ".tar")
			for _, image := range []string{"/roundhouse:", "/roundhouse-onnx:"} {
				ref, err := reference(to + image + version)
				if err != nil {
					t.Fatal(err)
				}
				index, err := remote.Index(ref, credentials())
				if err != nil {
					t.Fatal(err)
				}
				manifest, err := index.IndexManifest()
				if err != nil || len(manifest.Manifests) == 0 || manifest.Manifests[0].Platform == nil {
					t.Errorf("%s: %+v, %v", image, manifest, err)
				}
			}
			if password == "" {
				out := run(t, t.TempDir(), nil, helm, "show", "chart", "oci://"+to+"/charts/roundhouse", "--version", version, "--plain-http")
				if !strings.Contains(out, "version: "+version) {
					t.Errorf("the chart: %s", out)
				}
			}
		})
	}
}
