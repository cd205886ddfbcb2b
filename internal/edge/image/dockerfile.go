package image

import (
	"fmt"
	"strings"
)

// Base images of Dockerfiles; --build-arg BASE_IMAGE names another. They name their
// registry, because buildah knows no registry for a name without one.
const (
	pythonImage = "docker.io/library/python:3.12-slim"
	otherImage  = "docker.io/library/debian:bookworm-slim"
	mambaImage  = "docker.io/mambaorg/micromamba:2.0-debian12-slim"
)

// condaDir is where a Conda environment is, in the stage that makes it and in
// the image: environments cannot be moved.
const condaDir = "/opt/environment"

// workerPackages are what the server's Python workers need.
const workerPackages = `numpy "pydantic>=2"`

// Dockerfile is the image as BuildKit and buildah build it, from the folder as
// their context. The program comes from the build context or image named
// roundhouse.
func (p *Plan) Dockerfile() string {
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	add(`# syntax=docker/dockerfile:1
# The image of %s, as "roundhouse build" builds it. By hand:
#   DOCKER_BUILDKIT=1 docker build --build-context roundhouse=DIR -t TAG .
# where DIR holds usr/local/bin/roundhouse-server for Linux; or leave --build-context
# out where there is an image called roundhouse that holds it.`, oneLine(p.Name))
	base := otherImage
	if len(p.Needs) > 0 && p.Conda == "" {
		base = pythonImage
	}
	add("ARG BASE_IMAGE=%s", base)
	if p.Conda != "" {
		p.condaStage(add)
	}
	add("\nFROM ${BASE_IMAGE}")
	add("USER 0:0")
	add(`# Group 0 may do what the owner may: any user id works with that group.
RUN mkdir -p %[1]s %[2]s && chown %[3]d:%[4]d %[1]s %[2]s && chmod 0775 %[1]s %[2]s
WORKDIR %[1]s`, HomeDir, ModelsDir, user, group)
	if p.Conda != "" {
		add("COPY --from=environment %[1]s %[1]s\nENV PATH=%[1]s/bin:$PATH", condaDir)
	}
	p.pip(add)
	add("COPY --from=roundhouse %s %s", Program, Program)
	add("\n# Settings that variables and files from outside win over.")
	for i, pair := range p.env() {
		name, value, _ := strings.Cut(pair, "=")
		start := "    "
		if i == 0 {
			start = "ENV "
		}
		end := " \\"
		if i == len(p.env())-1 {
			end = ""
		}
		add("%s%s=%s%s", start, name, quote(value), end)
	}
	add("\nCOPY --chown=%d:%d --chmod=0775 . .", user, group)
	add("RUN rm -f %s %s", serverSettings, modelSettings)
	add("USER %d:%d", user, group)
	add("EXPOSE %s", strings.Join(p.ports(), " "))
	add("ENTRYPOINT [%q]", Program)
	return b.String()
}

// condaStage makes the environment in a stage of its own, so that the image
// does not hold Conda.
func (p *Plan) condaStage(add func(string, ...any)) {
	add(`ARG CONDA_IMAGE=%[1]s

FROM ${CONDA_IMAGE} AS environment
USER 0:0
COPY %[2]s /tmp/environment.yaml
RUN micromamba create --yes --prefix %[3]s --file /tmp/environment.yaml && \
    micromamba install --yes --prefix %[3]s --freeze-installed --channel conda-forge pip %[4]s && \
    micromamba clean --all --yes`, mambaImage, p.Conda, condaDir, workerPackages)
}

// pip installs what the workers need and what the folder asks for.
func (p *Plan) pip(add func(string, ...any)) {
	const install = "RUN --mount=type=cache,target=/root/.cache/pip python -m pip install "
	if len(p.Needs) > 0 && p.Conda == "" {
		add("%s%s", install, workerPackages)
	}
	if p.Pip != "" {
		add("COPY %s ./", p.Pip)
		add("%s-r %s", install, p.Pip)
	}
}

var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`)

// quote makes a value of an ENV instruction, which knows variables.
func quote(s string) string { return `"` + quoted.Replace(s) + `"` }

// oneLine keeps a name in its comment.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
