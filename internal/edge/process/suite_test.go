package process

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

func TestMain(m *testing.M) {
	platformtest.Main()
	if folder, ok := os.LookupEnv(repositoryVariable); ok {
		runRepository(folder)
	}
	_ = os.Setenv(containers.Variable, containers.Off) // replicas are processes here; test/containers has the others
	if dir, ok := os.LookupEnv(ownerVariable); ok {
		os.Exit(runOwner(dir))
	}
	os.Exit(m.Run())
}

// quick restarts failed replicas fast enough for a test.
var quick = Restart{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond, Recheck: 20 * time.Millisecond}

// open makes a platform that ends with the test.
func open(t *testing.T, cfg Config) *Platform {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if cfg.Restart == (Restart{}) {
		cfg.Restart = quick
	}
	if cfg.Devices == nil {
		cfg.Devices = []string{}
	}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := p.Close(ctx, false); err != nil {
			t.Error(err)
		}
	})
	return p
}

// revision runs s by this test binary.
func revision(k service.Key, s platformtest.Server) workload.Revision {
	sum := sha256.Sum256(fmt.Appendf(nil, "%#v", s))
	if s.Readiness == nil {
		s.Readiness = httpProbe("/healthz")
	}
	program := "roundhouse"
	if s.Program != "" {
		program = s.Program
	}
	r := workload.Revision{Service: k, Hash: hex.EncodeToString(sum[:]), Model: workload.Model{URI: s.ModelURI}}
	r.Name = k.Name + "-" + r.Hash[:5]
	roles := s.Roles
	if roles == nil {
		roles = []string{"engine"}
	}
	for _, role := range roles {
		c := workload.Component{Role: service.Role(role), Process: &workload.Process{
			Command: []string{program}, Env: s.Env(), Install: "pip install it", Readiness: s.Readiness,
			Liveness: s.Liveness, Standby: s.Standby(), GPUs: s.GPUs, MemoryBytes: s.Memory, Drain: s.Drain}}
		if s.Grace > 0 {
			c.Process.TerminationGrace = &s.Grace
		}
		if s.GRPC {
			c.Process.Env = append(c.Process.Env, corev1.EnvVar{Name: "LISTEN", Value: "{{.GRPCPort}}"})
		}
		c.Limits.StartupTimeout = s.Startup
		r.Components = append(r.Components, c)
	}
	return r
}

func httpProbe(path string) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}}}
}

func TestConformance(t *testing.T) {
	platformtest.Run(t, platformtest.Harness{
		New:      func(t *testing.T) fleet.Platform { return open(t, Config{}) },
		Revision: revision,
		Can:      platformtest.Capabilities{Runs: true, Reached: true, Logs: true, Kept: true, Fails: true, Sleeps: true},
	})
}
