// Package image makes container images of folders that `roundhouse serve`
// serves: as a Dockerfile for docker or buildah, or as an OCI image layout
// written here, without any of them.
//
// Every image is laid out alike. The folder is in /opt/mlserver, the working
// directory; the server serves /mnt/models, where a volume may be mounted, and
// while nothing is there the folder. The settings at the folder's root are
// variables of the image, so that variables and settings files from outside
// win over them. Files belong to group 0, whose members may do what the owner
// may, so that any user id works with that group.
package image

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Where things are in an image.
const (
	// HomeDir holds the folder.
	HomeDir = "/opt/mlserver"
	// ModelsDir is where models are mounted, as KServe and Seldon do.
	ModelsDir = "/mnt/models"
	// Program is the server.
	Program = "/usr/local/bin/roundhouse-server"

	user  = 1000
	group = 0
)

// Plan is what an image of a folder holds. ReadFolder makes one.
type Plan struct {
	Folder string // absolute
	Name   string // the folder's own, and so the model's that states none
	Files  []File // in the order of their paths
	// Conda and Pip are the environment files found at the root, "" for none.
	Conda, Pip string
	// Defaults are the variables ("NAME=value") that stand for the settings
	// files at the root, which are not among Files.
	Defaults []string
	// Needs are the reasons why the native engines do not suffice; empty if
	// they do.
	Needs []string
	// Ignore is the text of the folder's .dockerignore, or what stands for it.
	Ignore string
}

// File is one file, folder or link of a Plan.
type File struct {
	Path string // below the folder, with slashes
	Mode fs.FileMode
	Size int64  // of a file, in bytes
	Link string // where a link leads, as it is written
}

// env is the environment of p's image, defaults last.
func (p *Plan) env() []string {
	env := []string{"HOME=" + HomeDir, "MLSERVER_HOST=0.0.0.0", "MLSERVER_MODELS_DIR=" + ModelsDir}
	if len(p.Needs) > 0 {
		// Code in the image serves models that are mounted, too.
		env = append(env, "PYTHONPATH="+HomeDir, "PYTHONUNBUFFERED=1")
	}
	return withEnv(env, p.Defaults)
}

// ports are the ports the server will listen on unless told otherwise.
func (p *Plan) ports() []string {
	ports := []string{"8080", "8081", "8082"}
	for i, name := range []string{"MLSERVER_HTTP_PORT", "MLSERVER_GRPC_PORT", "MLSERVER_METRICS_PORT"} {
		for _, d := range p.Defaults {
			if value, found := strings.CutPrefix(d, name+"="); found {
				ports[i] = value
			}
		}
	}
	return ports
}

// withEnv lays variables over others of the same names.
func withEnv(env, over []string) []string {
	out := append([]string{}, env...)
next:
	for _, pair := range over {
		name, _, _ := strings.Cut(pair, "=")
		for i := range out {
			if strings.HasPrefix(out[i], name+"=") {
				out[i] = pair
				continue next
			}
		}
		out = append(out, pair)
	}
	return out
}

// program is a file that can be an image's program.
type program struct {
	path         string
	size         int64
	architecture string // in Go's words, as OCI uses them
	static       bool   // runs where nothing else is
}

var machines = map[elf.Machine]string{
	elf.EM_X86_64:  "amd64",
	elf.EM_AARCH64: "arm64",
	elf.EM_RISCV:   "riscv64",
	elf.EM_S390:    "s390x",
	elf.EM_PPC64:   "ppc64le",
}

// openProgram checks that a file is a program for images.
func openProgram(path string) (program, error) {
	p := program{path: path}
	info, err := os.Stat(path)
	if err != nil {
		return p, err
	}
	p.size = info.Size()
	f, err := elf.Open(path)
	if err != nil {
		return p, fmt.Errorf("%s is no program for Linux (%w): name one with --binary", path, err)
	}
	defer func() { _ = f.Close() }() // only read from
	known := false
	if p.architecture, known = machines[f.Machine]; !known || f.Class != elf.ELFCLASS64 {
		return p, fmt.Errorf("%s is for %s, which images are not made for", path, f.Machine)
	}
	p.static = !slices.ContainsFunc(f.Progs, func(part *elf.Prog) bool { return part.Type == elf.PT_INTERP })
	return p, nil
}

// Static reports whether a file is a program that runs in an image of itself
// alone.
func Static(path string) bool {
	p, err := openProgram(path)
	return err == nil && p.static
}
