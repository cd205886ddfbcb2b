package image

import (
	"debug/elf"
	"fmt"
	"os"
	"slices"
)

// program is a file that can be an image's program.
type program struct {
	path         string
	size         int64
	architecture string // in Go's words, as OCI uses them
	static       bool   // runs where nothing else is
}

var machines = map[elf.Machine]string{
	elf.EM_X86_64:  "amd64",
	elf.EM_AARCH64: "arm64",
	elf.EM_RISCV:   "riscv64",
	elf.EM_S390:    "s390x",
	elf.EM_PPC64:   "ppc64le",
}

// openProgram checks that a file is a program for images.
func openProgram(path string) (program, error) {
	p := program{path: path}
	info, err := os.Stat(path)
	if err != nil {
		return p, err
	}
	p.size = info.Size()
	f, err := elf.Open(path)
	if err != nil {
		return p, fmt.Errorf("%s is no program for Linux (%w): name one with --binary", path, err)
	}
	defer func() { _ = f.Close() }() // only read from
	known := false
	if p.architecture, known = machines[f.Machine]; !known || f.Class != elf.ELFCLASS64 {
		return p, fmt.Errorf("%s is for %s, which images are not made for", path, f.Machine)
	}
	p.static = !slices.ContainsFunc(f.Progs, func(part *elf.Prog) bool { return part.Type == elf.PT_INTERP })
	return p, nil
}

// Static reports whether a file is a program that runs in an image of itself
// alone.
func Static(path string) bool {
	p, err := openProgram(path)
	return err == nil && p.static
}
