package child

import (
	"bytes"
	"os"
	"strconv"
)

// Marked finds every process whose environment has the variable, by the
// variable's value. Processes of other users cannot be read and are not found.
func Marked(variable string) map[string][]int {
	out := map[string][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return out
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil {
			continue
		}
		for v := range bytes.SplitSeq(env, []byte{0}) {
			if name, value, ok := bytes.Cut(v, []byte{'='}); ok && string(name) == variable {
				out[string(value)] = append(out[string(value)], pid)
			}
		}
	}
	return out
}
