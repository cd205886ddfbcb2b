package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// A container's network is its own: what listens on this machine's loopback is not on
// the container's. A listener can still be opened there, by a process that enters the
// network (network_namespaces(7)) and hands its socket back: the socket stays in the
// network that it was opened in, whoever accepts its connections. So a container
// reaches what it is told of at its own loopback, and nothing else of this machine.

// noCalls is why no listener can be opened inside the engine's containers, with what to
// do; "" where one can.
func (e *Engine) noCalls() string {
	if _, err := exec.LookPath(nsenter); err != nil {
		return "nsenter is not here, which opens the addresses of other components in a container's network: install util-linux"
	}
	if !e.facts.root && !e.facts.rootless {
		return "only root may enter the network of " + e.Name + "'s containers: run roundhouse as root, or use a rootless podman"
	}
	return ""
}

const nsenter = "nsenter"

// Listen opens a TCP listener at an address of a container's own network, where pid is
// the container's first process. program hands it over: it calls [Hand] with the address
// when it is run with the words given and the address. The caller closes the listener.
func (e *Engine) Listen(ctx context.Context, pid int, address string, program string, words ...string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer func() { _ = ours.Close() }()
	args := []string{"--target", strconv.Itoa(pid), "--net"}
	if e.facts.rootless && !e.facts.root { // the network is that of a user, whom only they can be
		args = append(args, "--user", "--preserve-credentials")
	}
	args = append(append(append(args, "--", program), words...), address)
	cmd := exec.CommandContext(ctx, nsenter, args...)
	cmd.Stdin, cmd.Env, cmd.WaitDelay = theirs, Environment(), time.Second
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	err = cmd.Run()
	_ = theirs.Close()
	if err != nil {
		if why := lastLine(complaint.String()); why != "" {
			err = errors.New(why)
		}
		return nil, fmt.Errorf("listen on %s inside the container: %w", address, err)
	}
	return received(ours)
}

// received is the listener that was handed over.
func received(from *os.File) (net.Listener, error) {
	c, err := net.FileConn(from)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	byUnix, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T hands no sockets over", c)
	}
	rights := make([]byte, syscall.CmsgSpace(4))
	_, n, _, _, err := byUnix.ReadMsgUnix(make([]byte, 1), rights) // sets close-on-exec
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("no socket was handed over: %w", err)
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("no socket was handed over: %w", err)
	}
	f := os.NewFile(uintptr(fds[0]), "listener")
	defer func() { _ = f.Close() }()
	return net.FileListener(f)
}

// Hand opens a TCP listener at an address of the network that this process is in, and
// hands it to whoever has the other end of standard input, a Unix socket.
func Hand(ctx context.Context, address string) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(os.Stdin)
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	defer func() { _ = c.Close() }()
	to, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("standard input is no Unix socket")
	}
	_, _, err = to.WriteMsgUnix([]byte{0}, syscall.UnixRights(int(f.Fd())), nil)
	return err
}
