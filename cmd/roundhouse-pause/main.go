// Command roundhouse-pause is the program of pods that do nothing: it waits for a
// signal. `roundhouse-pause copy FILE` writes it to FILE, for a container of another
// image to run. There `roundhouse-pause done` ends at once, and `roundhouse-pause await
// FILE` when FILE is there: so that image is pulled and nothing of it runs.
// `roundhouse-pause find FOLDER PATH` ends at once, with an error where there is no PATH
// in FOLDER.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "roundhouse-pause:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0:
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
		<-ended
		return nil
	case len(args) == 1 && args[0] == "done":
		return nil
	case len(args) == 2 && args[0] == "copy":
		return replicate(args[1])
	case len(args) == 2 && args[0] == "await":
		return await(args[1])
	case len(args) == 3 && args[0] == "find":
		return find(args[1], args[2])
	}
	return errors.New("give no argument to wait for a signal, done to end at once, copy FILE to write this program to FILE, await FILE to wait until FILE is there, or find FOLDER PATH to learn whether PATH is in FOLDER")
}

// find returns an error where a path is not in the folder of a model, or leads out of it.
func find(folder, path string) error {
	in, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read
	_, err = in.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the model that the node keeps has no %s: correct the URI of the service's model, which names this path below that of the cache", path)
	}
	return err
}

// lookEvery is how often await looks.
const lookEvery = 50 * time.Millisecond

// await waits until a file is there, or a signal.
func await(file string) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	for look := time.NewTicker(lookEvery); ; {
		if _, err := os.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-look.C:
		case <-ended:
			return errors.New("told to end before " + file + " was there")
		}
	}
}

// replicate writes this program to a file.
func replicate(file string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // only read
	to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
