// Command fetch is a container that fetches models, for tests: it writes the content of
// CONTENT, in Base64, as the file that the URI names into the folder. It fails for a URI
// that ends in "none", and where TOKEN is not "right".
package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("%d arguments: give the URI and the folder", len(args))
	}
	if strings.HasSuffix(args[0], "none") {
		return fmt.Errorf("%s: not in the registry", args[0])
	}
	if os.Getenv("TOKEN") != "right" {
		return fmt.Errorf("%s: the token is refused", args[0])
	}
	content, err := base64.StdEncoding.DecodeString(os.Getenv("CONTENT"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args[1], path.Base(args[0])), content, 0o644)
}
