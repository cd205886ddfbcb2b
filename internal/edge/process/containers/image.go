package containers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Image is what an engine has of an image on this machine.
type Image struct {
	Known bool
	User  string // that it runs as, "" for root
}

// Image looks for an image on this machine.
func (e *Engine) Image(ctx context.Context, image string) (Image, error) {
	out, err := e.run(ctx, answerTimeout, "image", "inspect", "--format", "{{json .Config}}", image)
	if err != nil {
		if absent(err) {
			return Image{}, nil
		}
		return Image{}, err
	}
	return parseImage([]byte(out))
}

func parseImage(text []byte) (Image, error) {
	var c struct{ User string }
	if err := json.Unmarshal(text, &c); err != nil {
		return Image{}, fmt.Errorf("an image's configuration: %w", err)
	}
	return Image{Known: true, User: c.User}, nil
}

// Root reports whether an image's user is known to be root.
func (i Image) Root() bool {
	user := i.user()
	n, err := strconv.ParseInt(user, 10, 32)
	return user == "" || user == "root" || err == nil && n == 0
}

// user is the image's user, without its group.
func (i Image) user() string {
	user, _, _ := strings.Cut(i.User, ":")
	return user
}

// MayBeRoot is why a container of the image that is to run as a user, nil for the
// image's own, may run as root; "" where it does not. As for Kubernetes, a name
// proves nothing: the image's own list of users says which number it has.
func (i Image) MayBeRoot(as *int64) string {
	switch user := i.user(); {
	case as != nil && *as == 0:
		return "its runAsUser is 0, which is root"
	case as != nil:
		return ""
	case i.Root():
		return "it runs as root"
	default:
		if n, err := strconv.ParseInt(user, 10, 32); err != nil || n < 0 {
			return fmt.Sprintf("whether its user %q is root cannot be verified, since that is no user's number", user)
		}
	}
	return ""
}

// Wanted is what a pull policy asks of an image of which here reports whether it is
// on this machine. must: without the pull the container may not start.
func Wanted(policy corev1.PullPolicy, image string, here bool) (pull, must bool) {
	switch policy {
	case corev1.PullAlways:
		return true, true
	case corev1.PullNever:
		return false, false
	case corev1.PullIfNotPresent:
		return !here, !here
	}
	// Kubernetes pulls what is called latest each time. One that is here will do
	// where no registry has it: it may have been built here.
	return !here || latest(image), !here
}

// latest reports whether an image's tag is latest, or left out.
func latest(image string) bool {
	if strings.Contains(image, "@") {
		return false
	}
	name := image[strings.LastIndexByte(image, '/')+1:]
	_, tag, _ := strings.Cut(name, ":")
	return tag == "" || tag == "latest"
}

// pullTimeout bounds a pull: images of engines have layers of
// many GB, and clients say nothing while one is fetched.
const pullTimeout = 2 * time.Hour

// Pull pulls an image, with the login of the engine (`podman login`, `docker login`).
// progress is told how many parts were begun, and how many are known to be complete.
func (e *Engine) Pull(ctx context.Context, image string, progress func(done, begun int)) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.Path, append(e.facts.global(e.Name), "pull", image)...)
	cmd.Env = Environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	said, err := cmd.StderrPipe() // where podman tells its progress
	if err != nil {
		return err
	}
	cmd.Stdout = cmd.Stderr // Docker's; StderrPipe has set it to the pipe's writing end
	if err := cmd.Start(); err != nil {
		return err
	}
	var p pulling
	lines := bufio.NewScanner(said)
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		if p.heard(lines.Text()) {
			progress(p.done, p.begun)
		}
	}
	if err := cmd.Wait(); err != nil {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case p.complaint != "":
			return errors.New(p.complaint)
		}
		return err
	}
	return nil
}

// pulling follows what a client says while it pulls.
type pulling struct {
	done, begun int
	blobs       map[string]bool
	complaint   string
}

// heard takes in a line; true where the progress has changed.
func (p *pulling) heard(line string) bool {
	line = strings.TrimSpace(line)
	if p.blobs == nil {
		p.blobs = map[string]bool{}
	}
	begin := func(blob string, complete bool) bool {
		was, known := p.blobs[blob]
		if !known {
			p.begun++
		}
		if complete && !was {
			p.done++
		}
		p.blobs[blob] = was || complete
		return !known || complete && !was
	}
	if blob, ok := strings.CutPrefix(line, "Copying blob "); ok { // podman
		blob, rest, _ := strings.Cut(strings.TrimPrefix(blob, "sha256:"), " ")
		return begin(blob[:min(12, len(blob))], strings.Contains(rest, "done") || strings.Contains(rest, "skipped"))
	}
	if blob, what, ok := strings.Cut(line, ": "); ok && len(blob) == 12 && !strings.Contains(blob, " ") { // Docker
		switch what {
		case "Pulling fs layer":
			return begin(blob, false)
		case "Pull complete", "Already exists":
			return begin(blob, true)
		}
		return false
	}
	for _, prefix := range []string{"Error: ", "Error response from daemon: "} {
		if why, ok := strings.CutPrefix(line, prefix); ok {
			p.complaint = why
		}
	}
	return false
}
