// Package clustertest holds the platform of a cluster to the contract of
// fleet.Platform, on whatever cluster a test has.
package clustertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// Options are the cluster and what to run the tests with.
type Options struct {
	REST *rest.Config
	// Image is run with Command; its program calls platformtest.Main first.
	Image   string
	Command []string
	Can     platformtest.Capabilities
}

// Harness is the conformance suite's.
func Harness(o Options) platformtest.Harness {
	return platformtest.Harness{
		New:      func(t *testing.T) fleet.Platform { return Open(t, platform.Config{REST: o.REST}) },
		Revision: func(k service.Key, s platformtest.Server) workload.Revision { return Revision(o, k, s) },
		Can:      o.Can,
		Crash:    3 * time.Second, // probes ask once a second, and not at once
		Settles:  1500 * time.Millisecond,
	}
}

// Open makes a platform that ends with the test, and what it made with it. It
// fills in cfg.Client.
func Open(t *testing.T, cfg platform.Config) *platform.Platform {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	opts := kube.CacheOptions(nil)
	opts.Scheme = kube.Scheme()
	if err := platform.Trimmed(&opts); err != nil {
		t.Fatal(err)
	}
	c, err := cache.New(cfg.REST, opts)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Client, err = client.New(cfg.REST, client.Options{Scheme: opts.Scheme}); err != nil {
		t.Fatal(err)
	}
	MakeNamespace(t, cfg.Client, platformtest.Key("").Namespace)
	p, err := platform.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(ctx, c); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	t.Cleanup(func() {
		clean(t, p)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

// cleaning bounds the removal of what a test made.
const cleaning = time.Minute

// clean removes every service and waits for the last replica to go.
func clean(t *testing.T, p *platform.Platform) {
	ctx, stop := context.WithTimeout(context.Background(), cleaning)
	defer stop()
	keys, err := p.Services(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, k := range keys {
		if err := p.Remove(ctx, k); err != nil {
			t.Error(err)
		}
	}
	for _, k := range keys {
		for {
			rs, err := p.Observe(ctx, k)
			if err != nil {
				t.Error(err)
				return
			}
			if len(rs) == 0 {
				break
			}
			select {
			case <-p.Changed():
			case <-ctx.Done():
				t.Errorf("%s does not go: %s", k, platformtest.Describe(rs))
				return
			}
		}
	}
}

// MakeNamespace makes a namespace that may be there already.
func MakeNamespace(t *testing.T, c client.Client, name string) {
	t.Helper()
	err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// Revision runs s in a pod.
func Revision(o Options, k service.Key, s platformtest.Server) workload.Revision {
	sum := sha256.Sum256(fmt.Appendf(nil, "%#v", s))
	r := workload.Revision{Service: k, Hash: hex.EncodeToString(sum[:])[:16], Protocol: service.ProtocolV2, Model: workload.Model{URI: s.ModelURI}}
	r.Name = k.Name + "-" + r.Hash[:5]
	roles := s.Roles
	if roles == nil {
		roles = []string{string(service.RoleEngine)}
	}
	for _, role := range roles {
		c := workload.Component{Role: service.Role(role), Main: "main", Pod: pod(o, s)}
		c.Limits.StartupTimeout = s.Startup
		r.Components = append(r.Components, c)
	}
	return r
}

const port = 8080

func pod(o Options, s platformtest.Server) corev1.PodSpec {
	probe := s.Readiness
	if probe == nil {
		probe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(port)}}}
	}
	grace := int64(s.Grace.Seconds())
	if grace == 0 {
		grace = 5
	}
	c := corev1.Container{Name: "main", Image: o.Image, Command: o.Command, ReadinessProbe: probe, LivenessProbe: s.Liveness,
		ImagePullPolicy: corev1.PullIfNotPresent, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: port}},
		Env: append(s.Env(), corev1.EnvVar{Name: "HOST", Value: "0.0.0.0"}, corev1.EnvVar{Name: "PORT", Value: fmt.Sprint(port)})}
	if s.GPUs > 0 {
		c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(int64(s.GPUs), resource.DecimalSI)}
	}
	return corev1.PodSpec{Containers: []corev1.Container{c}, TerminationGracePeriodSeconds: &grace}
}
