// Command server is the server of the platform's conformance suite, in a pod.
package main

import (
	"fmt"
	"os"

	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

func main() {
	platformtest.Main()
	fmt.Fprintln(os.Stderr, "server: only the suite starts this, by its variables")
	os.Exit(2)
}
