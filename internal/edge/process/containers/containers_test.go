package containers

import (
	"errors"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/decide/workload"
)

func TestArgs(t *testing.T) {
	debian := facts{root: true, hybrid: true, runc: true, files: 20000}
	plain := func(c workload.Container) workload.Process {
		c.Image = "example.com/iris:1"
		return workload.Process{Container: &c}
	}
	for name, c := range map[string]struct {
		engine Engine
		spec   Spec
		want   string // parts, of which each must be there, in this order
		not    string // none of these
	}{
		"least": {Engine{Name: Podman, facts: facts{systemd: true, raises: true}}, Spec{Name: "r", Process: plain(workload.Container{})},
			"run --name=r --pull=never --log-driver=none --security-opt=no-new-privileges --cap-drop=AUDIT_WRITE --cap-drop=NET_RAW --env=NVIDIA_VISIBLE_DEVICES=void example.com/iris:1",
			"--privileged --network --ulimit --cgroup-manager --runtime --rm --cap-add"},
		"root without systemd or capabilities": {Engine{Name: Podman, facts: debian}, Spec{Process: plain(workload.Container{})},
			"--cgroup-manager=cgroupfs --runtime=runc run --ulimit=nofile=20000:20000 --ulimit=nproc=32768:32768", ""},
		"docker": {Engine{Name: Docker, facts: debian}, Spec{Process: plain(workload.Container{})}, "run example.com/iris:1", "--cgroup-manager=cgroupfs --runtime=runc --ulimit"},
		"ports, loopback alone": {Engine{Name: Podman}, Spec{Host: "127.0.0.1", Ports: [][2]int{{20000, 8080}, {20001, 9000}}, Process: plain(workload.Container{})},
			"--publish=127.0.0.1:20000:8080 --publish=127.0.0.1:20001:9000", ""},
		"IPv6": {Engine{Name: Podman}, Spec{Host: "::1", Ports: [][2]int{{20000, 8080}}, Process: plain(workload.Container{})}, "--publish=[::1]:20000:8080", ""},
		"command": {Engine{Name: Podman}, Spec{Process: workload.Process{WorkingDir: "/app", Command: []string{"python3", "-m", "serve"}, Container: &workload.Container{Image: "i", Entrypoint: true}}},
			"--workdir=/app --entrypoint=python3 i -m serve", ""},
		"args": {Engine{Name: Podman}, Spec{Process: workload.Process{Command: []string{"--port=1"}, Container: &workload.Container{Image: "i"}}}, "i --port=1", "--entrypoint"},
		"limits": {Engine{Name: Podman}, Spec{Process: workload.Process{MemoryBytes: 1 << 20, Container: &workload.Container{Image: "i", CPUs: 1.5, SharedMemory: 64}}},
			"--memory=1048576 --memory-swap=1048576 --cpus=1.500 --shm-size=64", ""},
		"limits that it has not": {Engine{Name: Podman, NoMemoryLimits: "no group"}, Spec{Process: workload.Process{MemoryBytes: 1 << 20, Container: &workload.Container{Image: "i", CPUs: 1.5}}},
			"--cpus=1.500", "--memory"},
		"variables": {Engine{Name: Podman}, Spec{EnvFile: "/f/env", Inherited: []string{"CERT"}, Process: plain(workload.Container{})}, "--env-file=/f/env --env=CERT", ""},
		"volumes": {Engine{Name: Podman}, Spec{Mounts: []Bind{{"/m", "/mnt/models", true}, {"/s", "/scratch", false}},
			Process: plain(workload.Container{Mounts: []workload.Mount{{Target: "/cache", Memory: true, Size: 10}}})},
			"--volume=/m:/mnt/models:ro --volume=/s:/scratch --tmpfs=/cache:rw,nosuid,nodev,mode=1777,size=10", ""},
		"selinux": {Engine{Name: Podman, facts: facts{selinux: true}}, Spec{Process: plain(workload.Container{})}, "--security-opt=label=disable", ""},
		"user": {Engine{Name: Podman}, Spec{Process: plain(workload.Container{User: new(int64(7)), Group: new(int64(8)), ReadOnly: true, Drop: []string{"ALL"}})},
			"--cap-drop=ALL --read-only --user=7:8", "--cap-drop=MKNOD"},
		"group of the image's user": {Engine{Name: Podman}, Spec{ImageUser: "app:app", Process: plain(workload.Container{Group: new(int64(8)), Drop: []string{"cap_chown"}})}, "--cap-drop=CHOWN --user=app:8", ""},
		"GPUs by CDI":               {Engine{Name: Podman, facts: facts{cdi: true}}, Spec{GPUs: []string{"0", "GPU-1"}, Process: plain(workload.Container{})}, "--device=nvidia.com/gpu=0 --device=nvidia.com/gpu=GPU-1", "NVIDIA_VISIBLE_DEVICES --gpus"},
		"GPUs by Docker":            {Engine{Name: Docker, facts: facts{nvidiaRuntime: true, cdi: true}}, Spec{GPUs: []string{"0", "1"}, Process: plain(workload.Container{})}, `--gpus="device=0,1"`, "NVIDIA_VISIBLE_DEVICES"},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.engine.Args(c.spec)
			at := 0
			for _, w := range strings.Fields(c.want) {
				i := slices.Index(got[at:], w)
				if i < 0 {
					t.Fatalf("no %s after the first %d of %q", w, at, got)
				}
				at += i + 1
			}
			for _, w := range strings.Fields(c.not) {
				if strings.Contains(strings.Join(got, " "), w) {
					t.Errorf("%s in %q", w, got)
				}
			}
		})
	}
}

func TestFacts(t *testing.T) {
	if why := (facts{hybrid: true}).missing(Podman); !strings.Contains(why, "install runc") {
		t.Error(why)
	}
	if why := (facts{hybrid: true}).missing(Docker) + (facts{hybrid: true, runc: true}).missing(Podman) + (facts{}).missing(Podman); why != "" {
		t.Error(why)
	}
	for _, e := range []Engine{{Name: Podman}, {Name: Docker}} {
		if why := e.noGPUs(); !strings.Contains(why, "nvidia-container-toolkit") {
			t.Errorf("%s: %q", e.Name, why)
		}
		e.facts.cdi = true
		if why := e.noGPUs(); why != "" {
			t.Errorf("%s with CDI: %q", e.Name, why)
		}
	}
}

// TestNoCalls: whose containers' networks can be entered.
func TestNoCalls(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("engines have a machine of their own here")
	}
	for _, c := range []struct {
		e    Engine
		says string
	}{
		{Engine{Name: Podman, facts: facts{root: true}}, ""},
		{Engine{Name: Podman, facts: facts{rootless: true}}, ""},
		{Engine{Name: Docker, facts: facts{root: true}}, ""},
		{Engine{Name: Docker}, "only root may enter the network of docker's containers"},
	} {
		if _, err := exec.LookPath(nsenter); err != nil {
			c.says = "install util-linux"
		}
		if why := c.e.noCalls(); !strings.Contains(why, c.says) || c.says == "" && why != "" {
			t.Errorf("%s %+v: %q", c.e.Name, c.e.facts, why)
		}
	}
	// A process that is not there has no network.
	e := Engine{Name: Podman, facts: facts{root: true}}
	if l, err := e.Listen(t.Context(), 1<<22, "127.0.0.1:0", "/bin/true"); err == nil || l != nil {
		t.Errorf("%v, %v", l, err)
	}
}

func TestParseInfo(t *testing.T) {
	for name, c := range map[string]struct {
		engine, text string
		want         info
		err          string
	}{
		"podman":              {Podman, `{"host":{"security":{"rootless":true}},"version":{"Version":"4.3.1"}}`, info{version: "4.3.1", rootless: true}, ""},
		"podman, limits":      {Podman, `{"host":{"cgroupControllers":["cpu","memory"]},"version":{"Version":"4.3.1"}}`, info{version: "4.3.1"}, ""},
		"podman, no limits":   {Podman, `{"host":{"cgroupControllers":[],"security":{"rootless":true}},"version":{"Version":"4.3.1"}}`, info{"4.3.1", true, true}, ""},
		"docker":              {Docker, `{"ServerVersion":"27.1","OSType":"linux","MemoryLimit":true,"SecurityOptions":["name=seccomp","name=rootless"]}`, info{version: "27.1", rootless: true}, ""},
		"docker, no limits":   {Docker, `{"ServerVersion":"27.1","MemoryLimit":false}`, info{version: "27.1", unlimited: true}, ""},
		"docker, not root":    {Docker, `{"ServerErrors":["Cannot connect to the Docker daemon"]}`, info{}, "Cannot connect"},
		"docker, empty":       {Docker, `{}`, info{}, "does not answer"},
		"docker, for Windows": {Docker, `{"ServerVersion":"27.1","OSType":"windows"}`, info{}, "windows"},
		"no JSON":             {Podman, `oops`, info{}, "podman info"},
	} {
		got, err := parseInfo(c.engine, []byte(c.text))
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
}

func TestParseState(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want State
	}{
		"runs":    {`ab12 {"Running":true,"Pid":42,"StartedAt":"2026-01-02T03:04:05.6Z"}`, State{Known: true, ID: "ab12", Started: true, Running: true, PID: 42}},
		"created": {`ab12 {"StartedAt":"0001-01-01T00:00:00Z","Error":"no such file"}`, State{Known: true, ID: "ab12", Error: "no such file"}},
		"memory":  {`ab12 {"ExitCode":137,"OOMKilled":true,"StartedAt":"2026-01-02T03:04:05Z"}`, State{Known: true, ID: "ab12", Started: true, ExitCode: 137, OOMKilled: true}},
	} {
		if got, err := parseState(c.text); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := parseState("oops"); err == nil {
		t.Error("no JSON is no error")
	}
	if _, err := parseImage([]byte("oops")); err == nil {
		t.Error("no JSON is no error")
	}
	for user, root := range map[string]bool{"": true, "0": true, "root:root": true, "0:5": true, "00": true, "+0:app": true, "65532": false, "app": false} {
		if got := (Image{User: user}).Root(); got != root {
			t.Errorf("%q is root: %v", user, got)
		}
	}
}

func TestWanted(t *testing.T) {
	for _, c := range []struct {
		policy           corev1.PullPolicy
		image            string
		here, pull, must bool
	}{
		{"", "iris:1", true, false, false}, {"", "iris:1", false, true, true},
		{"", "iris", true, true, false}, {"", "iris:latest", true, true, false}, {"", "iris", false, true, true},
		{"", "localhost:5000/iris", true, true, false}, {"", "localhost:5000/iris:1", true, false, false},
		{"", "iris@sha256:00", true, false, false},
		{corev1.PullAlways, "iris:1", true, true, true}, {corev1.PullNever, "iris:1", false, false, false},
		{corev1.PullIfNotPresent, "iris", true, false, false}, {corev1.PullIfNotPresent, "iris", false, true, true},
	} {
		if pull, must := Wanted(c.policy, c.image, c.here); pull != c.pull || must != c.must {
			t.Errorf("%q %s here %v: pull %v must %v", c.policy, c.image, c.here, pull, must)
		}
	}
}

func TestPulling(t *testing.T) {
	for name, c := range map[string]struct {
		lines       []string
		done, begun int
		complaint   string
	}{
		"podman": {[]string{"Trying to pull example.com/iris:1...", "Getting image source signatures", "Copying blob sha256:aaaaaaaaaaaaaaaa", "Copying blob sha256:bbbbbbbbbbbbbbbb",
			"Copying blob aaaaaaaaaaaa done", "Copying config sha256:cc"}, 1, 2, ""},
		"docker": {[]string{"1: Pulling from library/iris", "aaaaaaaaaaaa: Pulling fs layer", "bbbbbbbbbbbb: Already exists", "aaaaaaaaaaaa: Download complete", "aaaaaaaaaaaa: Pull complete"}, 2, 2, ""},
		"podman fails": {[]string{`time="x" level=warning msg="Failed, retrying in 1s ... (1/3). Error: initializing"`, "Error: initializing source docker://x: connection refused"}, 0, 0,
			"initializing source docker://x: connection refused"},
		"docker fails": {[]string{"Error response from daemon: manifest unknown"}, 0, 0, "manifest unknown"},
	} {
		var p pulling
		for _, l := range c.lines {
			p.heard(l)
		}
		if p.done != c.done || p.begun != c.begun || p.complaint != c.complaint {
			t.Errorf("%s: %d of %d, %q", name, p.done, p.begun, p.complaint)
		}
	}
}

func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{
		"Error: no such container x\n": "no such container x",
		"docker: Error response from daemon: port is already allocated.\n\nRun 'docker run --help' for more information": "port is already allocated.",
		"": "",
	} {
		if got := lastLine(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	for text, want := range map[string]bool{"no such container x": true, `No such image: "x"`: true, "inspecting object: x: image not known": true, "connection refused": false} {
		if absent(errors.New(text)) != want {
			t.Errorf("%q is absent: %v", text, !want)
		}
	}
}

func TestMode(t *testing.T) {
	t.Setenv(Variable, "")
	for given, want := range map[string]string{"": Auto, "off": Off, "podman": Podman, "docker": Docker} {
		if got, err := Mode(given); err != nil || got != want {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
	t.Setenv(Variable, "lxc")
	if _, err := Mode(""); err == nil || !strings.Contains(err.Error(), Variable) {
		t.Error(err)
	}
	if _, err := Mode("rkt"); err == nil || !strings.Contains(err.Error(), "--containers") {
		t.Error(err)
	}
}

func TestMayBeRoot(t *testing.T) {
	for _, c := range []struct {
		user string
		as   *int64
		want string // part; "" for a user that is not root
	}{
		{"65532", nil, ""}, {"65532:0", nil, ""}, {"", new(int64(7)), ""}, {"app", new(int64(7)), ""},
		{"", nil, "runs as root"}, {"0", nil, "runs as root"}, {"root", nil, "runs as root"}, {"00", nil, "runs as root"}, {"+0", nil, "runs as root"}, {"-0:5", nil, "runs as root"},
		{"app", nil, `"app" is root cannot be verified`}, {"0x0", nil, "cannot be verified"}, {"-1", nil, "cannot be verified"}, {"4294967296", nil, "cannot be verified"}, {" 0", nil, "cannot be verified"},
		{"65532", new(int64(0)), "runAsUser is 0"},
	} {
		if got := (Image{User: c.user}).MayBeRoot(c.as); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q: %q, not %q", c.user, got, c.want)
		}
	}
}
