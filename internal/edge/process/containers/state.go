package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// State is what an engine knows of a container.
type State struct {
	// Known: there is such a container.
	Known     bool
	ID        string
	Started   bool // it has run
	Running   bool
	PID       int // of its first process, on this machine; 0 while it has none
	ExitCode  int
	OOMKilled bool
	Error     string // why it could not be started
}

// Inspect asks for a container's state.
func (e *Engine) Inspect(ctx context.Context, name string) (State, error) {
	out, err := e.run(ctx, answerTimeout, "container", "inspect", "--format", "{{.Id}} {{json .State}}", name)
	if err != nil {
		if absent(err) {
			return State{}, nil
		}
		return State{}, err
	}
	s, err := parseState(out)
	if s.ExitCode == killed && !s.OOMKilled && !s.Running {
		s.OOMKilled = outOfMemory(s.ID)
	}
	return s, err
}

// killed is the exit code of a container that SIGKILL ended.
const killed = 128 + 9

// absent reports whether an error says that there is no such container or image.
func absent(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "no such") || strings.Contains(text, "image not known") || strings.Contains(text, "does not exist")
}

// parseState reads a container's id and its state.
func parseState(text string) (State, error) {
	var s struct {
		StartedAt time.Time
		Running   bool
		Pid       int
		ExitCode  int
		OOMKilled bool
		Error     string
	}
	id, state, _ := strings.Cut(strings.TrimSpace(text), " ")
	if err := json.Unmarshal([]byte(state), &s); err != nil {
		return State{}, fmt.Errorf("a container's state: %w", err)
	}
	return State{Known: true, ID: id, Started: s.StartedAt.Year() > 1, Running: s.Running, PID: s.Pid, ExitCode: s.ExitCode, OOMKilled: s.OOMKilled, Error: s.Error}, nil
}

// Terminate sends a container SIGTERM. One that does not run is an error.
func (e *Engine) Terminate(ctx context.Context, name string) error {
	_, err := e.run(ctx, answerTimeout, "kill", "--signal=TERM", name)
	return err
}

// Remove ends a container at once and deletes it. One that is not there is no error.
func (e *Engine) Remove(ctx context.Context, name string) error {
	_, err := e.run(ctx, removeTimeout, "rm", "--force", "--volumes", name)
	if err != nil && absent(err) {
		return nil
	}
	return err
}

// Exec runs a command in a container; an error says how it failed.
func (e *Engine) Exec(ctx context.Context, name string, command []string) error {
	_, err := e.run(ctx, removeTimeout, append([]string{"exec", name}, command...)...)
	return err
}

// RemoveAll deletes a folder that containers have written to, also what users of a
// rootless podman's containers have there, who are other users on this machine.
func (e *Engine) RemoveAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if e.Name != Podman || e.facts.root {
		return fmt.Errorf("%w (%s cannot delete what its containers wrote as other users)", err, e.Name)
	}
	if _, err := e.run(context.Background(), removeTimeout, "unshare", "rm", "-rf", "--", dir); err != nil {
		return fmt.Errorf("podman unshare rm -rf -- %s: %w", dir, err)
	}
	return nil
}
