package main

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// pushMain pushes the image and the chart of a release to a registry, as
// REGISTRY/roundhouse:VERSION and REGISTRY/charts/roundhouse:VERSION, and the image
// with ONNX Runtime, if it is named, as REGISTRY/roundhouse-onnx:VERSION. It logs in
// with ROUNDHOUSE_REGISTRY_USER and ROUNDHOUSE_REGISTRY_PASSWORD, or else as
// `docker login` left it.
func pushMain(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("push", flag.ContinueOnError)
	dist := flags.String("dist", "dist", "`folder` of the release")
	helm := flags.String("helm", "helm", "Helm's `program`")
	onnx := flags.String("onnx", "", "`file` of the image with ONNX Runtime")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("push: name one registry, as in make push REGISTRY=127.0.0.1:5000")
	}
	registry := strings.TrimPrefix(strings.TrimSuffix(flags.Arg(0), "/"), "oci://")
	image, err := one(*dist, "roundhouse-image-*.tar")
	if err != nil {
		return err
	}
	chart, err := one(*dist, "roundhouse-chart-*.tgz")
	if err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), credentials()}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(image), "roundhouse-image-"), ".tar")
	if err := pushImage(registry+"/roundhouse:"+version, image, options); err != nil {
		return err
	}
	if *onnx != "" {
		if err := pushImage(registry+"/roundhouse-onnx:"+version, *onnx, options); err != nil {
			return err
		}
	}
	if err := pushChart(ctx, *helm, registry, chart); err != nil {
		return err
	}
	log.Printf("pushed %s/charts/roundhouse:%s", registry, version)
	return nil
}

func one(folder, pattern string) (string, error) {
	found, err := filepath.Glob(filepath.Join(folder, pattern))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%s holds %d files %s: run make release", folder, len(found), pattern)
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

func credentials() remote.Option {
	if user := os.Getenv("ROUNDHOUSE_REGISTRY_USER"); user != "" {
		return remote.WithAuth(&authn.Basic{Username: user, Password: os.Getenv("ROUNDHOUSE_REGISTRY_PASSWORD")})
	}
	return remote.WithAuthFromKeychain(authn.DefaultKeychain)
}

// reference reads the name of an image. Only registries on this machine may
// speak plain HTTP.
func reference(text string) (name.Reference, error) {
	if host, _, _ := strings.Cut(text, "/"); loopback(host) {
		return name.ParseReference(text, name.Insecure)
	}
	return name.ParseReference(text)
}

// loopback reports whether HOST or HOST:PORT is this machine.
func loopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// pushImage pushes an OCI layout in a tar.
func pushImage(to, from string, options []remote.Option) error {
	ref, err := reference(to)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "roundhouse-push-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := untar(from, folder); err != nil {
		return err
	}
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return err
	}
	manifests, err := index.IndexManifest()
	if err != nil {
		return err
	}
	// The layout's index names one index, that of the architectures.
	if len(manifests.Manifests) == 1 && manifests.Manifests[0].MediaType.IsIndex() {
		if index, err = index.ImageIndex(manifests.Manifests[0].Digest); err != nil {
			return err
		}
	}
	if err := remote.WriteIndex(ref, index, options...); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	log.Printf("pushed %s@%s", ref, digest)
	return nil
}

// pushChart pushes the chart with Helm.
func pushChart(ctx context.Context, helm, registry, chart string) error {
	host, _, _ := strings.Cut(registry, "/")
	args := []string{"push", chart, "oci://" + registry + "/charts"}
	if loopback(host) {
		args = append(args, "--plain-http")
	}
	if user := os.Getenv("ROUNDHOUSE_REGISTRY_USER"); user != "" {
		// A file, not flags: other users may read the arguments of processes.
		folder, err := os.MkdirTemp("", "roundhouse-push-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(folder) }()
		auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + os.Getenv("ROUNDHOUSE_REGISTRY_PASSWORD")))
		config, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{"auth": auth}}})
		if err != nil {
			return err
		}
		file := filepath.Join(folder, "config.json")
		if err := os.WriteFile(file, config, 0o600); err != nil {
			return err
		}
		args = append(args, "--registry-config", file)
	}
	_, err := command(ctx, ".", nil, helm, args...)
	return err
}

// untar unpacks a tar of plain files and folders.
func untar(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for r := tar.NewReader(in); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch head.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(filepath.Clean(head.Name), 0o755)
		case tar.TypeReg:
			err = errors.Join(root.MkdirAll(filepath.Dir(head.Name), 0o755), writeFrom(root, head.Name, r))
		}
		if err != nil {
			return err
		}
	}
}

func writeFrom(root *os.Root, name string, r io.Reader) error {
	out, err := root.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, r)
	return errors.Join(err, out.Close())
}
