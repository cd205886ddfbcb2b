package crds_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
)

const binaries = "../../../../bin/k8s"

// server is one API server for all tests; nil where its programs are missing.
var server *rest.Config

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	logf.SetLogger(logr.Discard())
	dir, _ := filepath.Abs(binaries)
	if missing() == "" {
		env := &envtest.Environment{BinaryAssetsDirectory: dir}
		cfg, err := env.Start()
		if err != nil {
			fmt.Fprintln(os.Stderr, "the API server does not start:", err)
			return 1
		}
		defer env.Stop()
		cfg.QPS, cfg.Burst = -1, 0
		server = cfg
	}
	return m.Run()
}

// missing names a program that is not built; "" for none.
func missing() string {
	for _, p := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(binaries, p)); err != nil {
			return p
		}
	}
	return ""
}

// connect is a client of the API server with our CRDs and, of projects, stand-ins.
func connect(t *testing.T, projects ...string) client.Client {
	t.Helper()
	if server == nil {
		t.Skipf("no bin/k8s/%[1]s: make bin/k8s/%[1]s", missing())
	}
	c, err := client.New(server, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := crds.Install(t.Context(), c, crds.Options{Foreign: projects, FieldManager: "test", Established: time.Minute}); err != nil {
		t.Fatal(err)
	}
	return c
}

// dry sends an object as kubectl does: unknown fields are errors. Nothing is
// stored.
func dry(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	return c.Create(ctx, u.DeepCopy(), client.DryRunAll, client.FieldValidation("Strict"))
}
