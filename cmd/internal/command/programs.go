package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// ServerProgram is the model server, which lies beside roundhouse.
const ServerProgram = "roundhouse-server"

// ServeCommand is the first argument that `roundhouse serve` gives to the model
// server, whose help and errors then speak of the command that was typed.
const ServeCommand = "roundhouse serve"

// NameAsTyped has the help and the errors of the model server call it by
// ServeCommand if that is program, its first argument.
func NameAsTyped(server *cobra.Command, program string) {
	if program != ServeCommand {
		return
	}
	server.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: ServeCommand}
	server.Example = strings.ReplaceAll(server.Example, ServerProgram, ServeCommand)
}

// Executable is this program's file.
func Executable() string {
	exe, err := os.Executable()
	if err != nil {
		return filepath.Clean(os.Args[0])
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		return real // its companions lie beside the file, not beside a link
	}
	return exe
}

// Beside is where a program that comes with this one lies.
func Beside(name string) string { return filepath.Join(filepath.Dir(Executable()), name) }

// Server finds the model server.
func Server() (string, error) {
	path := Beside(ServerProgram)
	if _, err := exec.LookPath(path); err != nil {
		return "", fmt.Errorf("%s is not there: it comes with roundhouse and belongs beside it", path)
	}
	return path, nil
}

// Build is what a program was built from.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"` // where the build knows it
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// BuildOf is that of this program, which is of a version.
func BuildOf(version string) Build {
	b := Build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return b
}

// String is what `roundhouse version` prints of it.
func (b Build) String() string {
	text := "Version  " + b.Version + "\n"
	if b.Commit != "" {
		changed := ""
		if b.Modified {
			changed = ", with changes"
		}
		text += "Commit   " + b.Commit + changed + "\n"
	}
	return text + "Go       " + b.Go + " " + b.Platform + "\n"
}

// wanted tells the model server the version of the program that starts it.
const wanted = "ROUNDHOUSE_WANTED_VERSION"

// ForServer is the environment, as NAME=VALUE, that has the model server refuse
// to run for a program of another version than its own.
func ForServer(version string) string { return wanted + "=" + version }

// SameRelease returns an error where another version than this one was meant to
// be started. What the program starts itself is told nothing of it.
func SameRelease(version string) error {
	want, said := os.LookupEnv(wanted)
	if !said || want == version {
		return os.Unsetenv(wanted)
	}
	return fmt.Errorf("%s is version %s, and the roundhouse that starts it is version %s: install both from one release", Executable(), version, want)
}
