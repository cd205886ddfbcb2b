package artifact

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
)

// TestMain lets the test binary be a process that fetches and is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("ARTIFACT_TEST_DIR"); dir != "" {
		at, _ := strconv.ParseInt(os.Getenv("ARTIFACT_TEST_KILL_AT"), 10, 64)
		fetchAndDie(dir, os.Getenv("ARTIFACT_TEST_URI"), at)
	}
	os.Exit(m.Run())
}

// fetchAndDie kills its own process as soon as more than some bytes are here.
func fetchAndDie(dir, uri string, at int64) {
	fetch, err := fetcherOf(Config{Dir: dir, PieceBytes: testPiece})
	if err == nil {
		_, err = fetch(context.Background(), Request{URI: uri}, func(p Progress) {
			if p.Done > at {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		})
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
	}
	os.Exit(3)
}

// fetcherOf fetches into a store, for a place in it where the environment names one.
func fetcherOf(cfg Config) (func(context.Context, Request, func(Progress)) (string, error), error) {
	if name := os.Getenv("ARTIFACT_TEST_PLACE"); name != "" {
		s, err := OpenShared(cfg, name, nil, nil)
		if err != nil {
			return nil, err
		}
		return s.Fetch, nil
	}
	s, err := New(cfg, nil, nil)
	if err != nil {
		return nil, err
	}
	return s.Fetch, nil
}

func TestResumeAfterKill(t *testing.T) {
	data := randomBytes(200<<10, 40)
	o := newOrigin(t, data)
	hold := make(chan struct{})
	o.set(func() { o.hold = hold }) // the first byte comes, the others never
	s := newStore(t, nil)
	uri := o.URL + "/model.bin"
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "ARTIFACT_TEST_DIR="+s.cfg.Dir, "ARTIFACT_TEST_URI="+uri)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed: %v\n%s", err, out)
	}
	close(hold)
	path, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
	if err != nil || mustRead(t, path) != string(data) {
		t.Fatal(path, err)
	}
	if got := o.last().Header.Get("Range"); got != "bytes=1-" {
		t.Errorf("resumed with Range %q", got)
	}
}
