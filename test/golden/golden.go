// Package golden compares what a test got with files under testdata. With
// -update, `go test` writes the files anew; read the difference before you
// commit it.
package golden

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Scripts runs each of testdata/*.txt as a subtest. A script is commands and the
// output that each must have. run executes one and returns it with the output
// that it had; the test fails where that differs from the file.
func Scripts(t *testing.T, run func(t *testing.T, script string) string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata/*.txt: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := difference(string(want), got); d != "" {
				t.Errorf("%s:%s\nRun with -update to accept it.", file, d)
			}
		})
	}
}

// difference tells the first line in which two texts differ, or returns "".
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		if line(w, i) != line(g, i) {
			return fmt.Sprintf("%d:\nwant %s\ngot  %s", i+1, line(w, i), line(g, i))
		}
	}
	return ""
}

func line(lines []string, i int) string {
	if i >= len(lines) {
		return "(no more lines)"
	}
	return fmt.Sprintf("%q", lines[i])
}
