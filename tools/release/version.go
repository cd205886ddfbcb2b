package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// version is what a release is called, and the commit it is made of.
type version struct {
	semver   string    // 1.2.3, 1.2.3-rc.1, or 0.0.0-dev.<commits>.g<commit> for a commit without a tag
	pep440   string    // the same as Python spells it
	commit   string    // the whole hash
	time     time.Time // of the commit: every file of the release bears it
	snapshot bool      // the commit has no tag
}

var (
	tagPattern = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-(alpha|beta|rc)\.(\d+))?$`)
	topEntry   = regexp.MustCompile(`(?m)^## (\S+)`)
)

// readVersion takes the version from the commit's tag. A tagged commit must be
// clean and have its version as the changelog's top entry.
func readVersion(ctx context.Context, root string) (version, error) {
	git := func(args ...string) (string, error) {
		out, err := command(ctx, root, nil, "git", args...)
		return strings.TrimSpace(out), err
	}
	var v version
	var err error
	if v.commit, err = git("rev-parse", "HEAD"); err != nil {
		return v, err
	}
	stamp, err := git("log", "-1", "--format=%ct")
	if err != nil {
		return v, err
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return v, fmt.Errorf("git log: %q is not a time", stamp)
	}
	v.time = time.Unix(seconds, 0).UTC()
	count, err := git("rev-list", "--count", "HEAD")
	if err != nil {
		return v, err
	}
	changes, err := git("status", "--porcelain")
	if err != nil {
		return v, err
	}
	tags, err := git("tag", "--points-at", "HEAD", "v*")
	if err != nil {
		return v, err
	}
	changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return v, err
	}
	return v.named(tags, count, changes != "", changelog)
}

// named completes v with its names.
func (v version) named(tags, count string, changed bool, changelog []byte) (version, error) {
	tag, _, more := strings.Cut(tags, "\n")
	switch {
	case more:
		return v, fmt.Errorf("the commit has several tags of versions (%s): a release has one", strings.ReplaceAll(tags, "\n", ", "))
	case tag == "":
		v.snapshot = true
		v.semver = "0.0.0-dev." + count + ".g" + v.commit[:7]
		v.pep440 = "0.0.0.dev" + count + "+g" + v.commit[:7]
		if changed {
			v.semver, v.pep440 = v.semver+".changed", v.pep440+".changed"
		}
		return v, nil
	case changed:
		return v, fmt.Errorf("the tree has changes that the tag %s does not have: commit them and tag anew, or discard them", tag)
	}
	m := tagPattern.FindStringSubmatch(tag)
	if m == nil {
		return v, fmt.Errorf("the tag %s is not a version: v1.2.3 and v1.2.3-rc.1 are", tag)
	}
	v.semver, v.pep440 = strings.TrimPrefix(tag, "v"), m[1]
	if m[2] != "" {
		v.pep440 += map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[m[2]] + m[3]
	}
	if top := topEntry.FindSubmatch(changelog); top == nil || string(top[1]) != v.semver {
		return v, fmt.Errorf("CHANGELOG.md: the top entry is not %q, the version of the tag %s", "## "+v.semver, tag)
	}
	return v, nil
}

// command runs a program in a folder and returns what it prints. Its error
// holds what it printed to standard error.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}
