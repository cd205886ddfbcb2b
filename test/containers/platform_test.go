package containers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/process"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// port is where the suite's server listens in its container.
const port = 9000

// open makes a platform that ends with the test, and whose containers are gone then.
func open(t *testing.T, dir string) *process.Platform {
	t.Helper()
	cfg := process.Config{Dir: dir, Containers: engine(t), Devices: []string{},
		Restart: process.Restart{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond, Recheck: 20 * time.Millisecond}}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	p, err := process.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Close(ctx, false); err != nil {
			t.Error(err)
		}
		if left := ask(t, "ps", "--all", "--filter", "label=roundhouse.dev/replica", "--format", "{{.Names}}"); left != "" {
			t.Errorf("containers are left: %s", left)
		}
	})
	return p
}

// revision runs s in a container of an image.
func revision(name string) func(k service.Key, s platformtest.Server) workload.Revision {
	return func(k service.Key, s platformtest.Server) workload.Revision {
		sum := sha256.Sum256(fmt.Appendf(nil, "%#v", s))
		r := workload.Revision{Service: k, Hash: hex.EncodeToString(sum[:])}
		r.Name = k.Name + "-" + r.Hash[:5]
		if s.Roles == nil {
			s.Roles = []string{"engine"}
		}
		for _, role := range s.Roles {
			c := workload.Component{Role: service.Role(role), Process: &workload.Process{
				Env: append(s.Env(), corev1.EnvVar{Name: "HOST", Value: "0.0.0.0"}), Liveness: s.Liveness, Standby: s.Standby(),
				MemoryBytes: s.Memory,
				Readiness:   &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(port)}}},
				Container:   &workload.Container{Image: name, Pull: corev1.PullIfNotPresent, Port: port}}}
			if s.Grace > 0 {
				c.Process.TerminationGrace = &s.Grace
			}
			c.Limits.StartupTimeout = s.Startup
			r.Components = append(r.Components, c)
		}
		return r
	}
}

func TestConformance(t *testing.T) {
	name := made(t, "suite:1", "roundhouse.dev/roundhouse/test/kubernetes/node/server")
	platformtest.Run(t, platformtest.Harness{
		New:      func(t *testing.T) fleet.Platform { return open(t, t.TempDir()) },
		Revision: revision(name),
		Can:      platformtest.Capabilities{Runs: true, Reached: true, Logs: true, Kept: true, Fails: true, Sleeps: true},
		Crash:    3 * time.Second,
	})
}

// await waits for one replica that is as wanted.
func await(s platformtest.Subject, k service.Key, what string, is func(replica.Replica) bool) replica.Replica {
	return s.Await(k, what, func(rs []replica.Replica) bool { return len(rs) == 1 && is(rs[0]) })[0]
}

func TestOutOfMemory(t *testing.T) {
	name := made(t, "suite:1", "roundhouse.dev/roundhouse/test/kubernetes/node/server")
	p := open(t, t.TempDir())
	s, k := platformtest.On(t, p), platformtest.Key("hungry")
	s.MustApply(revision(name)(k, platformtest.Server{EatMB: 200, Memory: 64 << 20}))
	s.MustScale(k, 1)
	if h, err := p.Host(t.Context()); err != nil {
		t.Fatal(err)
	} else if why := h.Containers.NoMemoryLimits; why != "" {
		await(s, k, "with a warning", func(r replica.Replica) bool {
			return r.Phase == replica.Ready && r.Message == "its memory limit of 64 MiB is not enforced: "+why
		})
		t.Skip(why)
	}
	r := await(s, k, "out of memory", func(r replica.Replica) bool { return r.Phase == replica.Failed })
	if r.Reason != "OOMKilled" || !strings.Contains(r.Message, "64 MiB") {
		t.Errorf("%s: %s", r.Reason, r.Message)
	}
}

func TestStops(t *testing.T) {
	name := made(t, "suite:1", "roundhouse.dev/roundhouse/test/kubernetes/node/server")
	s, k := platformtest.On(t, open(t, t.TempDir())), platformtest.Key("stubborn")
	s.MustApply(revision(name)(k, platformtest.Server{IgnoreTerm: true, Spawn: true, Grace: time.Second}))
	s.MustScale(k, 1)
	s.AwaitReady(k, 1)
	began := time.Now()
	s.MustScale(k, 0)
	s.AwaitNone(k)
	if took := time.Since(began); took < time.Second || took > 20*time.Second {
		t.Errorf("it ignores SIGTERM, has a grace of 1 s, and took %s", took)
	}
}

func TestMissingImage(t *testing.T) {
	s, k := platformtest.On(t, open(t, t.TempDir())), platformtest.Key("nowhere")
	r := revision("127.0.0.1:1/nobody/nothing:1")(k, platformtest.Server{})
	s.MustApply(r)
	s.MustScale(k, 1)
	got := await(s, k, "told of its image", func(r replica.Replica) bool { return r.Phase == replica.Failed })
	if got.Reason != "ErrImagePull" || !strings.Contains(got.Message, `image "127.0.0.1:1/nobody/nothing:1" cannot be pulled`) || !strings.Contains(got.Message, "connection refused") {
		t.Errorf("%s: %s", got.Reason, got.Message)
	}
	r = revision("localhost/roundhouse-test/never:1")(k, platformtest.Server{Salt: "never"})
	r.Components[0].Process.Container.Pull = corev1.PullNever
	s.MustApply(r)
	got = await(s, k, "told of its policy", func(r replica.Replica) bool { return r.Reason == "ErrImageNeverPull" })
	if !strings.Contains(got.Message, "imagePullPolicy") {
		t.Error(got.Message)
	}
}

// TestPull pulls an image from a registry that asks for a login: without one the
// replica says why it has no image, with the engine's own login it runs.
func TestPull(t *testing.T) {
	name := made(t, "suite:1", "roundhouse.dev/roundhouse/test/kubernetes/node/server")
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "team" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"log in first"}]}`, http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	var insecure []string // Docker takes any registry on loopback for one without TLS
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	if engine(t) == "podman" {
		insecure = []string{"--tls-verify=false"}
		t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(dir, "auth.json"))
		conf := filepath.Join(dir, "registries.conf")
		if err := os.WriteFile(conf, []byte("[[registry]]\nlocation = \""+host+"\"\ninsecure = true\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("CONTAINERS_REGISTRIES_CONF", conf)
	}
	remote := host + "/team/suite:1"
	login := func() {
		ask(t, append(append([]string{"login", "--username", "team", "--password", "secret"}, insecure...), host)...)
	}
	login()
	ask(t, "tag", name, remote)
	ask(t, append(append([]string{"push"}, insecure...), remote)...)
	ask(t, "rmi", remote)
	ask(t, "logout", host)
	t.Cleanup(func() { ask(t, "rmi", "--force", remote) }) // after the platform's

	s, k := platformtest.On(t, open(t, t.TempDir())), platformtest.Key("private")
	s.MustApply(revision(remote)(k, platformtest.Server{}))
	s.MustScale(k, 1)
	got := await(s, k, "told of the login", func(r replica.Replica) bool { return r.Phase == replica.Failed })
	if got.Reason != "ErrImagePull" || !strings.Contains(got.Message, remote) || !strings.Contains(got.Message, engine(t)+" login") {
		t.Errorf("%s: %s", got.Reason, got.Message)
	}
	login()
	await(s, k, "run from the registry", func(r replica.Replica) bool { return r.Phase == replica.Ready })
}

func TestNoSuchProgram(t *testing.T) {
	name := made(t, "suite:1", "roundhouse.dev/roundhouse/test/kubernetes/node/server")
	s, k := platformtest.On(t, open(t, t.TempDir())), platformtest.Key("typo")
	r := revision(name)(k, platformtest.Server{})
	r.Components[0].Process.Command, r.Components[0].Process.Container.Entrypoint = []string{"/servre"}, true
	s.MustApply(r)
	s.MustScale(k, 1)
	got := await(s, k, "told", func(r replica.Replica) bool { return r.Phase == replica.Failed })
	if got.Reason != replica.ReasonCannotExecute || !strings.Contains(got.Message, "/servre") {
		t.Errorf("%s: %s", got.Reason, got.Message)
	}
}
