package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/selection"
)

const (
	// checkTimeout bounds one check. An interpreter that takes long to start is not
	// one that lacks something: on a busy machine 5 s were not enough.
	checkTimeout = 15 * time.Second
	// checksAtOnce bounds how many checks run at once.
	checksAtOnce = 4
	// Answers are good for as long as their program's file stays, and at the
	// most for so long: packages come and go beside it. What is lacking may
	// come at any time.
	answerAge  = time.Minute
	lackingAge = time.Second
	// maxAnswers bounds the answers kept.
	maxAnswers = 256
)

// checks answers what selection asks of this machine, by running interpreters
// and programs, and remembers the answers for a while.
type checks struct {
	executable string

	mu      sync.Mutex
	answers map[selection.Check]*answered
	slots   chan struct{}
}

// answered is an answer, or one on its way.
type answered struct {
	done   chan struct{}
	answer selection.Answer // valid after done, as what follows
	at     time.Time
	stamp  time.Time // of the program's file
}

// answer answers all there are, side by side. One that ctx cut short is left
// out.
func (c *checks) answer(ctx context.Context, ask []selection.Check) map[selection.Check]selection.Answer {
	if len(ask) == 0 {
		return nil
	}
	asked := make([]*answered, len(ask))
	for i, q := range ask {
		asked[i] = c.get(q)
	}
	out := make(map[selection.Check]selection.Answer, len(ask))
	for i, a := range asked {
		select {
		case <-a.done:
			out[ask[i]] = a.answer
		case <-ctx.Done():
		}
	}
	return out
}

// get is the answer that is known and good still, else a new one.
func (c *checks) get(q selection.Check) *answered {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil {
		c.answers, c.slots = map[selection.Check]*answered{}, make(chan struct{}, checksAtOnce)
	}
	if a := c.answers[q]; a != nil && a.good() {
		return a
	}
	if len(c.answers) >= maxAnswers {
		clear(c.answers) // whoever waits for one has it
	}
	a := &answered{done: make(chan struct{})}
	c.answers[q] = a
	go func() {
		defer close(a.done)
		c.slots <- struct{}{}
		defer func() { <-c.slots }()
		a.answer = c.run(q)
		a.at, a.stamp = time.Now(), changed(a.answer.Program)
	}()
	return a
}

// good reports whether an answer can be given again.
func (a *answered) good() bool {
	select {
	case <-a.done:
	default:
		return true // it is being found
	}
	age := answerAge
	if a.answer.Lacks != "" {
		age = lackingAge
	}
	return time.Since(a.at) < age && changed(a.answer.Program).Equal(a.stamp)
}

// changed is when a file was, zero without one.
func changed(path string) time.Time {
	if st, err := os.Stat(path); err == nil {
		return st.ModTime()
	}
	return time.Time{}
}

// findModules prints the modules among its arguments that are not there. It
// looks for them and imports none, which may take long.
const findModules = `import importlib.util, sys
print(*[m for m in sys.argv[1:] if importlib.util.find_spec(m) is None])`

// run finds an answer.
func (c *checks) run(q selection.Check) selection.Answer {
	env := lastOfEach(append(machineEnvironment(), strings.Split(q.Env, "\n")...))
	words := strings.Fields(q.Command)
	if q.Modules != "" {
		words = words[:min(len(words), 1)]
		if len(words) == 0 {
			words = []string{interpreter(env)}
		}
	}
	program, err := c.find(words[0], variable(env, "PATH"))
	if err != nil {
		return selection.Answer{Lacks: words[0] + " is not on PATH"}
	}
	a := selection.Answer{Program: program}
	args := words[1:]
	if q.Modules != "" {
		args = append([]string{"-c", findModules}, strings.Fields(q.Modules)...)
	} else if len(args) == 0 {
		return a
	}
	out, err := output(program, args, env, q.Dir)
	missing := strings.Fields(out)
	switch {
	case err != nil:
		a.Lacks = "fails: " + oneLine(err.Error())
	case q.Modules != "" && len(missing) > 0:
		a.Lacks = "lacks " + strings.Join(missing, ", ")
	}
	return a
}

// find looks a program up as a replica's would be; those of this product lie
// beside it.
func (c *checks) find(name, path string) (string, error) {
	if strings.HasPrefix(name, ownName+"-") {
		if sibling := filepath.Join(filepath.Dir(c.executable), name); runnable(sibling) {
			return sibling, nil
		}
	}
	if strings.Contains(name, "/") {
		return exec.LookPath(name)
	}
	for _, dir := range filepath.SplitList(path) {
		if file := filepath.Join(dir, name); dir != "" && runnable(file) {
			return file, nil
		}
	}
	return "", exec.ErrNotFound
}

func runnable(file string) bool {
	_, err := exec.LookPath(file)
	return err == nil
}

// interpreter is the one that replicas with an environment use.
func interpreter(env []string) string {
	if p := variable(env, "ROUNDHOUSE_PYTHON"); p != "" {
		return p
	}
	return "python3"
}

func variable(env []string, name string) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// output runs a program to its end and returns what it printed. An error ends
// with the last line of its complaint.
func output(program string, args, env []string, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir = env, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out, complaint bounded
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("no answer within %s", checkTimeout)
	case err != nil:
		if lines := strings.Split(strings.TrimSpace(string(complaint)), "\n"); lines[len(lines)-1] != "" {
			err = errors.New(lines[len(lines)-1])
		}
		return "", err
	}
	return string(out), nil
}

// bounded keeps the last of what is written to it, up to probeBody bytes.
type bounded []byte

func (b *bounded) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	*b = (*b)[max(0, len(*b)-probeBody):]
	return len(p), nil
}

// ownName is the program name that stands for this binary.
const ownName = "roundhouse"

// serverName is the program of the model server, which "roundhouse serve" stands
// for.
const serverName = "roundhouse-server"

// programs is the set of program names on PATH, kept until a directory of
// PATH changes.
type programs struct {
	mu      sync.Mutex
	looked  time.Time
	path    string
	changed map[string]time.Time // by directory
	names   map[string]bool
}

// lookInterval bounds how often PATH's directories are looked at.
const lookInterval = time.Second

// list returns the names found on PATH. The caller owns the map.
func (p *programs) list(now time.Time) map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	path := os.Getenv("PATH")
	if p.names == nil || path != p.path || now.Sub(p.looked) >= lookInterval || now.Before(p.looked) {
		p.refresh(path)
		p.looked = now
	}
	return maps.Clone(p.names)
}

func (p *programs) refresh(path string) {
	changed := map[string]time.Time{}
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			continue // the working directory is no place to find servers in
		}
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			changed[dir] = st.ModTime()
		}
	}
	if p.names != nil && path == p.path && maps.Equal(changed, p.changed) {
		return
	}
	p.path, p.changed, p.names = path, changed, map[string]bool{ownName: true}
	for dir := range changed {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			// Links are followed when the program is started; here a name
			// that may be a program is enough, and costs no stat.
			if !e.IsDir() {
				p.names[e.Name()] = true
			}
		}
	}
}
