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
	"io/fs"
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
	// Needs says what a program alone cannot serve, one reason each; empty if
	// the native engines do.
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
