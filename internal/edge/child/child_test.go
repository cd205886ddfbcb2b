package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sh starts a shell script as a child.
func sh(t *testing.T, script, output string) *Process {
	t.Helper()
	p, err := Start(Spec{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: os.Environ(), Output: output})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	return p
}

// awaitLine waits until the file holds n lines and returns them.
func awaitLine(t *testing.T, path string, n int) []string {
	t.Helper()
	l, err := Log{Path: path}.Open(t.Context(), ReadOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var out []string
	for s := bufio.NewScanner(l); len(out) < n; out = append(out, s.Text()) {
		if !s.Scan() {
			t.Fatalf("%q, then %v", out, s.Err())
		}
	}
	return out
}

func TestExit(t *testing.T) {
	for script, want := range map[string]Exit{
		"exit 0":       {Known: true},
		"exit 7":       {Known: true, Code: 7},
		"kill -9 $$":   {Known: true, Code: -1, Signal: syscall.SIGKILL},
		"kill -TERM 0": {Known: true, Code: -1, Signal: syscall.SIGTERM},
	} {
		e := sh(t, script, "").Exit()
		if e.At.IsZero() {
			t.Errorf("%s: no time", script)
		}
		if e.At = want.At; e != want {
			t.Errorf("%s: %+v, want %+v", script, e, want)
		}
	}
}

func TestStartFails(t *testing.T) {
	for _, s := range []Spec{
		{Path: "/no/such/program", Args: []string{"x"}},
		{Path: "/bin/sh", Args: []string{"sh"}, Dir: "/no/such/folder"},
		{Path: "/bin/sh", Args: []string{"sh"}, Output: "/no/such/folder/log"},
	} {
		if p, err := Start(s); err == nil {
			p.Kill()
			t.Errorf("%+v started", s)
		}
	}
}

func TestStopEndsTheGroup(t *testing.T) {
	if err := BecomeReaper(); err != nil {
		t.Log(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	// A grandchild that ignores SIGTERM, under a child that obeys it.
	p := sh(t, `sh -c 'trap "" TERM; echo $$; while :; do sleep 1; done' & echo leader; wait`, out)
	lines := awaitLine(t, out, 2)
	e := p.Stop(t.Context(), 10*time.Second)
	if e.Signal != syscall.SIGTERM {
		t.Errorf("the leader %s", e)
	}
	for _, l := range lines {
		if pid, err := strconv.Atoi(l); err == nil && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			t.Errorf("grandchild %d is left, or a zombie", pid)
		}
	}
	if err := syscall.Kill(-p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the group is left: %v", err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("signal to one that ended: %v", err)
	}
}

func TestStopKillsAfterGrace(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	script := `trap "" TERM; echo on; while :; do sleep 0.1; done`
	p := sh(t, script, out)
	awaitLine(t, out, 1)
	start := time.Now()
	if e := p.Stop(t.Context(), 100*time.Millisecond); e.Signal != syscall.SIGKILL || time.Since(start) < 100*time.Millisecond {
		t.Errorf("%s after %s", e, time.Since(start))
	}
	q := sh(t, script, out)
	awaitLine(t, out, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e := q.Stop(ctx, time.Hour); e.Signal != syscall.SIGKILL {
		t.Errorf("with its context at an end: %s", e)
	}
}

func TestAdopt(t *testing.T) {
	p := sh(t, "sleep 60", "")
	a, err := Adopt(p.Identity())
	if err != nil {
		t.Fatal(err)
	}
	if e := a.Stop(t.Context(), 10*time.Second); e.Known {
		t.Errorf("an adopted process's exit is known: %+v", e)
	}
	<-p.Done()
	if _, err := Adopt(p.Identity()); !errors.Is(err, ErrGone) {
		t.Errorf("adopted one that ended: %v", err)
	}
}

func TestAdoptNoStranger(t *testing.T) {
	p := sh(t, "sleep 60", "")
	for name, change := range map[string]func(*Identity){
		"another start": func(id *Identity) { id.Start++ },
		"another boot":  func(id *Identity) { id.Boot = "0" },
		"no start":      func(id *Identity) { id.Start = 0 },
		"init":          func(id *Identity) { id.PID = 1 },
		"ourselves":     func(id *Identity) { *id, _ = identify(os.Getpid()) },
		"no process":    func(id *Identity) { id.PID = 0 },
		"all processes": func(id *Identity) { id.PID = -1 },
	} {
		id := p.Identity()
		change(&id)
		if a, err := Adopt(id); !errors.Is(err, ErrGone) {
			t.Errorf("%s: adopted %+v, %v", name, a, err)
		}
	}
	// A process that leads no group of its own was not started by us.
	out := filepath.Join(t.TempDir(), "out")
	q := sh(t, "sleep 60 & echo $!; wait", out)
	pid, err := strconv.Atoi(awaitLine(t, out, 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	if id, err := identify(pid); err != nil {
		t.Error(err)
	} else if _, err := Adopt(id); !errors.Is(err, ErrGone) {
		t.Errorf("adopted a member of group %d: %v", q.PID(), err)
	}
}

func TestLogTrim(t *testing.T) {
	l := Log{Path: filepath.Join(t.TempDir(), "out"), Limit: 1000}
	if err := l.Trim(); err != nil {
		t.Errorf("nothing there yet: %v", err)
	}
	w, err := openOutput(l.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	for i := range 1000 {
		if _, err := fmt.Fprintf(w, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			if err := l.Trim(); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := readAll(t, l, ReadOptions{})
	if len(got) > 2200 || len(got) < 1000 {
		t.Errorf("%d bytes are kept", len(got))
	}
	var want strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if !strings.HasSuffix(want.String(), got) {
		t.Errorf("what is kept is not the end of what was written: %q", got)
	}
	if err := l.Retire(); err != nil {
		t.Fatal(err)
	}
	if prev := readAll(t, l.Previous(), ReadOptions{}); prev != got || readAll(t, l, ReadOptions{}) != "" {
		t.Errorf("after Retire: previous %q", prev)
	}
	if err := l.Remove(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(l.Path + "*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func readAll(t *testing.T, l Log, o ReadOptions) string {
	t.Helper()
	r, err := l.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	var out strings.Builder
	if _, err := bufio.NewReader(r).WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestLogTail(t *testing.T) {
	for _, c := range []struct{ old, file string }{
		{"", ""}, {"", "a"}, {"", "a\n"}, {"", "a\nb"}, {"", "a\nb\n"}, {"a\nb\n", "c\nd\n"}, {"a\n", ""},
		{"", "\n\n\n"}, {"x\ny\n", strings.Repeat(strings.Repeat("z", 99)+"\n", 1000)},
	} {
		l := Log{Path: filepath.Join(t.TempDir(), "out")}
		for path, text := range map[string]string{l.Path: c.file, l.Path + oldSuffix: c.old} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []int{0, 1, 2, 3, 4, 5, 700, 2000} {
			lines := strings.SplitAfter(c.old+c.file, "\n")
			if lines[len(lines)-1] == "" {
				lines = lines[:len(lines)-1]
			}
			if n > 0 && n < len(lines) {
				lines = lines[len(lines)-n:]
			}
			if got, want := readAll(t, l, ReadOptions{Tail: n}), strings.Join(lines, ""); got != want {
				t.Errorf("last %d lines of %.20q + %.20q: %.40q, want %.40q", n, c.old, c.file, got, want)
			}
		}
	}
}

func TestLogFollow(t *testing.T) {
	l := Log{Path: filepath.Join(t.TempDir(), "out"), Limit: 10}
	ended := make(chan struct{})
	r, err := l.Open(t.Context(), ReadOptions{Follow: true, Ended: ended})
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(r)
	expect := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, %v; want %q", lines.Text(), lines.Err(), want)
		}
	}
	say := func(s string) {
		t.Helper()
		w, err := openOutput(l.Path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintln(w, s); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	say("the first line")
	expect("the first line")
	if err := l.Trim(); err != nil {
		t.Fatal(err)
	}
	say("truncated")
	expect("truncated")
	if err := l.Retire(); err != nil {
		t.Fatal(err)
	}
	say("a new process")
	expect("a new process")
	say("the end")
	close(ended)
	expect("the end")
	if lines.Scan() {
		t.Errorf("more: %q", lines.Text())
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	waits, err := l.Open(t.Context(), ReadOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*time.Millisecond, func() { _ = waits.Close() })
	var out strings.Builder
	if _, err := bufio.NewReader(waits).WriteTo(&out); err != nil && !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed while it waits: %v", err)
	}
}

func TestLastLines(t *testing.T) {
	l := Log{Path: filepath.Join(t.TempDir(), "out")}
	text := "one\n\n  \n\x1b[31mred\x1b[0m\ttab\n" + strings.Repeat("y", 500) + "\nlast"
	if err := os.WriteFile(l.Path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := l.LastLines(3)
	if len(got) != 3 || got[0] != "red tab" || len(got[1]) > 410 || got[2] != "last" {
		t.Errorf("%q", got)
	}
}

func TestReapOrphans(t *testing.T) {
	if err := BecomeReaper(); err != nil {
		t.Skip(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	// The middle process ends first, so its child comes to us, and ends too.
	p := sh(t, `sh -c 'sh -c "echo \$\$; exec sleep 0.05" &' ; sleep 60`, out)
	pid, err := strconv.Atoi(awaitLine(t, out, 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil; ReapOrphans() {
		if time.Now().After(deadline) {
			t.Fatal("the orphan stays a zombie")
		}
		<-time.After(time.Millisecond)
	}
	if e := p.Stop(t.Context(), time.Second); !e.Known || e.Signal != syscall.SIGTERM {
		t.Errorf("the leader's status was taken: %s", e)
	}
}
