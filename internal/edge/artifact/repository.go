package artifact

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Repository lists the models of a folder in Triton's layout, NAME/config.pbtxt
// or NAME/1. self reports that the folder is itself such a model.
func Repository(path string) (names []string, self bool) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, false
	}
	for _, e := range entries {
		if isModel(filepath.Join(path, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, len(names) == 0 && isModel(path)
}

func isModel(path string) bool {
	inside, err := os.ReadDir(path)
	return err == nil && slices.ContainsFunc(inside, func(e os.DirEntry) bool {
		_, err := strconv.ParseUint(e.Name(), 10, 63)
		return e.Name() == "config.pbtxt" || err == nil && e.IsDir()
	})
}
