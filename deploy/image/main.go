// Command image writes the container image of Roundhouse, without Docker: an
// OCI image layout in a tar, of programs built before.
//
//	go run ./deploy/image -o FILE -tag NAME DIR…
//
// Each DIR holds the programs of one architecture, roundhouse among them, and with
// -tree in DIR/root the files that go to the image's root besides, such as
// libraries.
package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"roundhouse.dev/roundhouse/internal/edge/image"
)

func main() {
	output := flag.String("o", "roundhouse-image.tar", "the `file` to write")
	tag := flag.String("tag", "roundhouse:dev", "the image's `name`")
	trees := flag.Bool("tree", false, "put what is in root of each DIR into the image")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *output, *tag, *trees, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, output, tag string, trees bool, folders []string) error {
	release := image.Release{Tag: tag, Roots: roots()}
	for _, folder := range folders {
		// Glob sorts: roundhouse comes before roundhouse-server.
		programs, err := filepath.Glob(filepath.Join(folder, "roundhouse*"))
		if err != nil {
			return err
		}
		if len(programs) == 0 || filepath.Base(programs[0]) != "roundhouse" {
			return fmt.Errorf("%s holds no program roundhouse", folder)
		}
		release.Programs = append(release.Programs, programs)
		if trees {
			release.Trees = append(release.Trees, filepath.Join(folder, "root"))
		}
	}
	whole := output + ".part"
	f, err := os.Create(whole)
	if err != nil {
		return err
	}
	if err := errors.Join(image.WriteRelease(ctx, f, release), f.Close()); err != nil {
		return errors.Join(err, os.Remove(whole))
	}
	return os.Rename(whole, output)
}

// roots are the certificates of the authorities that Mozilla trusts, as a
// pinned module has them: an image does not depend on the machine it is made on.
// Those that are trusted under conditions, which PEM cannot say, are left out.
func roots() []byte {
	var text bytes.Buffer
	for r := range bundle.Roots() {
		if r.Constraint == nil {
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}) // a buffer takes all
		}
	}
	return text.Bytes()
}
