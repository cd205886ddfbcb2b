// Command release writes what a release page holds: archives, Debian and RPM
// packages, Python wheels, the image, the chart, the install script, a Homebrew
// formula, checksums, SBOMs, licence texts and provenance. The same commit and
// the same Go give the same bytes.
//
//	go run . -root ../.. -out ../../dist
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "push" {
		if err := pushMain(ctx, os.Args[2:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	var r release
	flag.StringVar(&r.root, "root", ".", "folder of the repository")
	flag.StringVar(&r.out, "out", "dist", "`folder` to write to; what it holds is removed")
	flag.StringVar(&r.url, "url", "", "`URL` of the folder that the files will be published in (default: https://roundhouse.dev/releases/VERSION)")
	list := flag.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "platforms to build for")
	flag.Parse()
	if err := r.run(ctx, *list); err != nil {
		log.Fatal(err)
	}
}

// platform is a pair of GOOS and GOARCH.
type platform struct{ os, arch string }

// release is one release as it is made.
type release struct {
	root, out, url string
	version        version
	platforms      []platform
	build          string // folder of the built programs: build/OS_ARCH/PROGRAM
	extras         string // folder of the man pages and completions
	modules        []module
	key            *signer // nil: nothing is signed
}

func (r *release) run(ctx context.Context, list string) error {
	var err error
	if r.platforms, err = parsePlatforms(list); err != nil {
		return err
	}
	if r.key, err = signerFromEnv(); err != nil {
		return err
	}
	if r.version, err = readVersion(ctx, r.root); err != nil {
		return err
	}
	if r.url == "" {
		r.url = "https://roundhouse.dev/releases/" + r.version.semver
	}
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "roundhouse-release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	r.build, r.extras = filepath.Join(work, "build"), filepath.Join(work, "extras")
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"programs", r.compile},
		{"man pages and completions", r.writeExtras},
		{"licences", r.readModules},
		{"archives", r.writeArchives},
		{"packages", r.writePackages},
		{"wheels", r.writeWheels},
		{"image", r.writeImage},
		{"chart", r.writeChart},
		{"SBOMs", r.writeSBOMs},
		{"install script and formula", r.writeInstallers},
		{"checksums and provenance", r.seal},
	} {
		start := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		log.Printf("%s: %.1f s", step.what, time.Since(start).Seconds())
	}
	return nil
}

func parsePlatforms(list string) ([]platform, error) {
	var all []platform
	for _, p := range strings.Split(list, ",") {
		goos, arch, ok := strings.Cut(strings.TrimSpace(p), "/")
		if !ok || (goos != "linux" && goos != "darwin") || (arch != "amd64" && arch != "arm64") {
			return nil, fmt.Errorf("-platforms: %q is not a platform: linux/amd64, linux/arm64, darwin/amd64 and darwin/arm64 are", p)
		}
		all = append(all, platform{goos, arch})
	}
	return all, nil
}

// path returns the path of a file of the release.
func (r *release) path(name string) string { return filepath.Join(r.out, name) }

// programs returns the folder of a platform's programs.
func (r *release) programs(p platform) string { return filepath.Join(r.build, p.os+"_"+p.arch) }

// linux returns the platforms that run Linux.
func (r *release) linux() []platform {
	var some []platform
	for _, p := range r.platforms {
		if p.os == "linux" {
			some = append(some, p)
		}
	}
	return some
}
