package process

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

func TestConfigValidate(t *testing.T) {
	for _, c := range []Config{
		{}, {Dir: "d", Host: "localhost"}, {Dir: "d", LogLimit: -1}, {Dir: "d", DeadLogs: -1},
		{Dir: "d", Restart: Restart{Min: -1}}, {Dir: "d", Restart: Restart{Min: 2, Max: 1}},
	} {
		if c.Validate() == nil {
			t.Errorf("%+v is valid", c)
		}
	}
	if err := (Config{Dir: "d", Host: "::1"}).Validate(); err != nil {
		t.Error(err)
	}
}

func whole(n int) residency.Need { return residency.Need{GPUs: n} }

func TestGPUPool(t *testing.T) {
	g := newGPUs([]string{"0", "1", "2"}, nil, 0)
	g.hold(service.Key{Name: "other"}, whole(2), []int{1, 7, -1})
	a, b := service.Key{Namespace: "n", Name: "a"}, service.Key{Namespace: "n", Name: "b"}
	got, free, _ := g.take(a, whole(2))
	if !slices.Equal(got, []int{0, 2}) || free != 2 || g.devices(got) != "0,2" {
		t.Errorf("took %v of %d", got, free)
	}
	none, free, retry := g.take(b, whole(1))
	if none != nil || free != 0 {
		t.Errorf("took %v of %d", none, free)
	}
	g.free(a, whole(1), []int{2})
	<-retry
	if got, _, _ = g.take(b, whole(1)); !slices.Equal(got, []int{2}) {
		t.Errorf("took %v after one came back", got)
	}
}

// TestGPUsStayWithTheirService: what a replica gives back while another of its
// service waits is that one's, however long others have waited.
func TestGPUsStayWithTheirService(t *testing.T) {
	g := newGPUs([]string{"0", "1"}, nil, 0)
	a, b := service.Key{Namespace: "n", Name: "a"}, service.Key{Namespace: "n", Name: "b"}
	held, _, _ := g.take(a, whole(2))
	g.wait(b, whole(1))
	done := g.wait(a, whole(1))
	g.free(a, whole(2), held)
	if got, free, _ := g.take(b, whole(1)); got != nil || free != 0 || g.available(a, whole(1)) != 2 {
		t.Errorf("the other took %v of %d", got, free)
	}
	if got, _, _ := g.take(a, whole(1)); !slices.Equal(got, []int{0}) {
		t.Errorf("its own took %v", got)
	}
	_, _, retry := g.take(b, whole(1))
	done()
	<-retry
	if got, _, _ := g.take(b, whole(1)); !slices.Equal(got, []int{1}) {
		t.Errorf("what is left over goes to %v", got)
	}
}

func TestDiscover(t *testing.T) {
	ctx := context.Background()
	t.Setenv(devicesVariable, "3")
	if got, _ := Discover(ctx); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("told 3: %v", got)
	}
	t.Setenv(devicesVariable, "")
	for value, want := range map[string][]string{"": nil, "-1": nil, "4, 5": {"4", "5"}, "GPU-x,-1,3": {"GPU-x"}} {
		t.Setenv(visibleDevices, value)
		if got, _ := Discover(ctx); !slices.Equal(got, want) {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s: %v, want %v", value, got, want)
		}
	}
}

func TestDiscoverAsksTheDriver(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia/gpus"); err == nil {
		t.Skip("this machine has the driver itself")
	}
	bin := t.TempDir()
	script := "#!/bin/sh\necho 'GPU 0: Acme (UUID: GPU-1)'\necho 'GPU 1: Acme (UUID: GPU-2)'\n"
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Setenv(devicesVariable, "")
	if old, ok := os.LookupEnv(visibleDevices); ok {
		_ = os.Unsetenv(visibleDevices)
		defer func() { _ = os.Setenv(visibleDevices, old) }()
	}
	if got, _ := Discover(t.Context()); len(got) != 2 {
		t.Errorf("nvidia-smi lists 2: %v", got)
	}
}

// TestPortsOfRanks: each data-parallel rank has a port, in a row, and all are given back.
func TestPortsOfRanks(t *testing.T) {
	p := &ports{host: "127.0.0.1"}
	r := &running{}
	s := workload.Process{Command: []string{"vllm", "serve", "m", "-dp", "3", "--port", "{{.Port}}", "--events", "{{.KVEventsPort}}"}}
	if err := r.takePorts(p, s); err != nil || len(r.rankPorts) != 2 || r.rankPorts[0] != r.kvEventsPort+1 || r.rankPorts[1] != r.kvEventsPort+2 || len(p.given) != 4 {
		t.Errorf("%v: %d, %d and %v; %d are given", err, r.port, r.kvEventsPort, r.rankPorts, len(p.given))
	}
	p.free(append(r.rankPorts, r.port, r.kvEventsPort)...)
	s.Command = append(s.Command, "--data-parallel-multi-port-external-lb")
	if err := r.takePorts(p, s); err != nil || len(r.rankPorts) != 4 || r.rankPorts[0] != r.port+1 || len(p.given) != 6 {
		t.Errorf("%v: %d, %d and %v; %d are given", err, r.port, r.kvEventsPort, r.rankPorts, len(p.given))
	}
	p.free(append(r.rankPorts, r.port, r.kvEventsPort)...)
	for port := firstPort; port <= lastPort; port += 2 {
		p.hold(port)
	}
	given := len(p.given)
	if err := r.takePorts(p, s); err == nil || len(p.given) != given {
		t.Errorf("%v, %d ports are given, %d were", err, len(p.given), given)
	}
}

func TestPorts(t *testing.T) {
	p := &ports{host: "127.0.0.1"}
	seen := map[int]bool{}
	for range 100 {
		got, err := p.take(2)
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range got {
			if seen[port] {
				t.Fatalf("port %d is given twice", port)
			}
			if seen[port] = true; port < firstPort || port > lastPort {
				t.Errorf("port %d may be given to whoever asks the kernel for any", port)
			}
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(func() int {
		got, err := p.take(1)
		if err != nil {
			t.Fatal(err)
		}
		return got[0]
	}())))
	if err != nil {
		t.Fatalf("a port that was given is not free: %v", err)
	}
	_ = l.Close()
	for port := firstPort; port <= lastPort; port++ {
		p.hold(port)
	}
	if got, err := p.take(3); err != nil || slices.Min(got) <= lastPort {
		t.Errorf("the range is used up: %v, %v", got, err)
	}
	if _, err := (&ports{host: "192.0.2.1"}).take(1); err == nil {
		t.Error("a port at an address that is not ours")
	}
}

// TestPortsOfAnotherProcess: no port is given that another Roundhouse has given to
// a replica that may not listen yet; the ports of one that has ended are free.
func TestPortsOfAnotherProcess(t *testing.T) {
	const variable = "ROUNDHOUSE_TEST_PORT_FILE"
	if path := os.Getenv(variable); path != "" {
		f, err := openPortFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p := &ports{host: "127.0.0.1", file: f}
		for port := firstPort; port < lastPort; port++ {
			p.hold(port)
		}
		fmt.Println("held")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	path := filepath.Join(t.TempDir(), "ports")
	other := exec.Command(os.Args[0], "-test.run=^TestPortsOfAnotherProcess$", "-test.timeout=1m")
	other.Env = append(os.Environ(), variable+"="+path)
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the other process printed %q: %v", line, err)
	}
	f, err := openPortFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.f.Close() }()
	p := &ports{host: "127.0.0.1", file: f}
	for range 5 {
		if got, err := p.take(1); err != nil || got[0] < lastPort {
			t.Errorf("a port that the other process has given: %v, %v", got, err)
		}
	}
	_ = in.Close()
	if err := other.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, err := p.take(1); err != nil || got[0] >= lastPort {
		t.Errorf("the ports of a process that has ended are not free: %v, %v", got, err)
	}
}

func TestProgramsFollowPATH(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	put := func(dir, name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
		// A folder's time is coarse on some file systems.
		later := time.Now().Add(time.Duration(len(name)) * time.Second)
		if err := os.Chtimes(dir, later, later); err != nil {
			t.Fatal(err)
		}
	}
	put(a, "one")
	t.Setenv("PATH", a+":/no/such/folder:")
	var p programs
	now := time.Now()
	if got := p.list(now); !got["one"] || !got[ownName] || len(got) != 2 {
		t.Errorf("listed %v", got)
	}
	put(a, "three")
	if got := p.list(now.Add(lookInterval / 2)); got["three"] {
		t.Errorf("looked again too soon: %v", got)
	}
	if got := p.list(now.Add(lookInterval)); !got["three"] {
		t.Errorf("a new program is not listed: %v", got)
	}
	put(b, "four")
	t.Setenv("PATH", b)
	if got := p.list(now.Add(lookInterval)); !got["four"] || got["one"] {
		t.Errorf("with another PATH: %v", got)
	}
}

func TestNames(t *testing.T) {
	if a, b := newID("iris", "engine"), newID("iris", "engine"); a == b || !strings.HasPrefix(a, "iris-engine-") {
		t.Errorf("ids %s, %s", a, b)
	}
	if id := newID("../../etc/x y", "engine"); fileName(id) != id || strings.ContainsAny(id, "/ .") {
		t.Errorf("id %q is no file name", id)
	}
	for _, s := range []string{"", ".", "..", "a/b", "../x", "a\x00b"} {
		if f := fileName(s); f == "" || f == "." || f == ".." || strings.ContainsAny(f, "/\x00") {
			t.Errorf("%q as file name: %q", s, f)
		}
	}
}

func TestLastOfEach(t *testing.T) {
	got := lastOfEach([]string{"A=1", "B=2", "A=3", "C=", "B=2"})
	if want := fmt.Sprint([]string{"A=3", "C=", "B=2"}); fmt.Sprint(got) != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestPortTakenWords(t *testing.T) {
	for line, want := range map[string]bool{
		"listen tcp 127.0.0.1:80: bind: address already in use":                                                  true,
		"roundhouse-server: 127.0.0.1:80 is in use: stop what listens there, or choose another with --http-port": true,
		"OSError: [Errno 98] Address already in use":                                                             true,
		"Error: listen EADDRINUSE: address already in use :::3000":                                               true,
		"ERROR: [Errno 48] error while attempting to bind on address":                                            false,
		"CUDA error: all CUDA-capable devices are busy or unavailable":                                           false,
	} {
		if portTaken([]string{"x", line}) != want {
			t.Errorf("%q: want %v", line, want)
		}
	}
}

func TestProbePort(t *testing.T) {
	r := &running{port: 1000, grpcPort: 2000, metricsPort: 3000}
	for _, c := range []struct {
		port intstr.IntOrString
		want string
	}{
		{intstr.FromInt32(8080), "1000"}, {intstr.FromString("http"), "1000"}, {intstr.FromString("1000"), "1000"},
		{intstr.FromString("2000"), "2000"}, {intstr.FromInt32(2000), "2000"}, {intstr.FromString("grpc"), "2000"},
		{intstr.FromString("metrics"), "3000"}, {intstr.FromInt32(3000), "3000"},
		{intstr.FromString("h2c"), "2000"}, {intstr.IntOrString{}, "1000"},
	} {
		if got := r.probePort(c.port); got != c.want {
			t.Errorf("port %s is %s, want %s", c.port.String(), got, c.want)
		}
	}
	if got := (&running{port: 1000}).probePort(intstr.FromString("grpc")); got != "1000" {
		t.Errorf("without a gRPC port: %s", got)
	}
}

func TestEnvValue(t *testing.T) {
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	secret := func(name, key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: optional}}
	}
	yes := true
	for _, c := range []struct {
		e    corev1.EnvVar
		want string
		ok   bool
		err  bool
	}{
		{corev1.EnvVar{Value: "v"}, "v", true, false},
		{corev1.EnvVar{ValueFrom: field("metadata.name")}, "iris-1", true, false},
		{corev1.EnvVar{ValueFrom: field("metadata.namespace")}, "ns", true, false},
		{corev1.EnvVar{ValueFrom: field("status.podIP")}, "127.0.0.1", true, false},
		{corev1.EnvVar{ValueFrom: field("spec.nodeName")}, "", false, true},
		{corev1.EnvVar{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Optional: &yes}}}, "", false, false},
		{corev1.EnvVar{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Optional: &yes}}}, "", false, false},
		{corev1.EnvVar{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}}, "", false, true},
		{corev1.EnvVar{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "k"}}}, "", false, true},
		{corev1.EnvVar{ValueFrom: secret("hub", "token", nil)}, "t0ken", true, false},
		{corev1.EnvVar{ValueFrom: secret("hub", "other", nil)}, "", false, true},
		{corev1.EnvVar{ValueFrom: secret("hub", "other", &yes)}, "", false, false},
		{corev1.EnvVar{ValueFrom: secret("none", "token", nil)}, "", false, true},
	} {
		u := &unit{id: "iris-1", o: &owner{key: service.Key{Namespace: "ns", Name: "iris"}}, p: &Platform{cfg: Config{Secret: func(k service.Key) (*service.Secret, bool) {
			return &service.Secret{Data: map[string]service.Hidden{"token": service.Hide("t0ken")}}, k == service.Key{Namespace: "ns", Name: "hub"}
		}}}}
		got, ok, err := u.value(c.e, "127.0.0.1")
		if got != c.want || ok != c.ok || (err != nil) != c.err {
			t.Errorf("%+v: %q, %v, %v", c.e, got, ok, err)
		}
	}
}
