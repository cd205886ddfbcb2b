package containers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// maxComplaint bounds what an error has of a container's last line, in bytes.
const maxComplaint = 1 << 10

// Once runs a container to its end, and removes it. env are variables of the client, of
// which the container has those that s names. An error ends with the container's last line.
func (e *Engine) Once(ctx context.Context, s Spec, env []string) error {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	if err := e.Remove(clean, s.Name); err != nil { // of an earlier run that was cut off
		return err
	}
	cmd := exec.CommandContext(ctx, e.Path, e.Args(s)...)
	cmd.Env = append(Environment(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var said bounded
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	ending, end := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer end()
	if removed := e.Remove(ending, s.Name); removed != nil && err == nil {
		return removed
	}
	switch why := excerpt.Of(lastLine(said.String()), maxComplaint); {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && why != "":
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("exit code %d: %s", exit.ExitCode(), why)
		}
		return fmt.Errorf("%w: %s", err, why)
	}
	return err
}

// MaxEnvLine is less than the longest line that engines read of a file of variables, in
// bytes (Docker's client: 64 KiB).
const MaxEnvLine = 60 << 10

// Variables sorts a container's variables into the lines of the file that its engine
// reads, and those that have several lines, which its client has in its own
// environment. A name that the engine would read as anything else is refused: it
// could have the engine give the container this machine's variables.
func Variables(engine string, env []string) (lines string, inherited []string, err error) {
	var b strings.Builder
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		switch {
		case !utf8.ValidString(e) || strings.Contains(value, "\x00"): // which Docker's client would print
			return "", nil, fmt.Errorf("variable %s has bytes that are no text, which %s cannot give to a container: mount them as a file, or encode them", strings.ToValidUTF8(name, "?"), engine)
		case strings.ContainsFunc(name, unicode.IsSpace):
			return "", nil, fmt.Errorf("%q is not a variable's name that %s can give to a container: names have no spaces", name, engine)
		case name == "" || strings.ContainsAny(name, "\r\n\x00") || strings.HasSuffix(name, "*") || strings.HasPrefix(strings.TrimSpace(name), "#"):
			return "", nil, fmt.Errorf("%q is not a variable's name that %s can give to a container: names have no line breaks, do not begin with # and do not end in *", name, engine)
		case !strings.ContainsAny(value, "\r\n") && len(e) < MaxEnvLine:
			b.WriteString(e + "\n")
		case clientReads(name):
			return "", nil, fmt.Errorf("variable %s is long or has several lines, which %s would take for its own: give it another name", name, engine)
		default:
			inherited = append(inherited, e)
		}
	}
	return b.String(), inherited, nil
}

// clientReads reports whether a variable may mean something to an engine's client or
// to what loads it.
func clientReads(name string) bool {
	return slices.Contains([]string{"PATH", "HOME", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "REGISTRY_AUTH_FILE"}, strings.ToUpper(name)) ||
		slices.ContainsFunc([]string{"LD_", "DOCKER_", "CONTAINER", "PODMAN_", "BUILDAH_", "XDG_", "SSL_", "STORAGE_", "GO", "DBUS_", "_"}, func(p string) bool { return strings.HasPrefix(name, p) })
}
