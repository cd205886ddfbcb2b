// Package document finds the blocks of code in the documentation: the commands that
// tests run, the files that readers are asked to save, and the reason where a block
// is not run.
package document

import (
	"regexp"
	"strings"
)

// Run are the pages whose commands are run, in their order, by test/e2e.
var Run = []string{"README.md", "docs/getting-started.md", "docs/tutorials/one-gpu.md", "docs/tutorials/mlserver.md", "docs/tutorials/kserve.md"}

// Block is a fenced block.
type Block struct {
	Line int // of the fence, from 1
	Lang string
	Text string
	// File is what the reader is asked to save it as; "" for nothing.
	File string
	// NotRun is why its commands are not run; "" means that they are.
	NotRun string
}

var (
	notRun   = regexp.MustCompile(`^<!-- not run: (.*) -->$`)
	saveThis = regexp.MustCompile("Save this(?: one)? as `([^`]+)`")
	asFile   = regexp.MustCompile("as `([^`]+\\.yaml)`:$")
	saveIt   = regexp.MustCompile("^Save it as `([^`]+)`")
)

// Blocks are those of a page.
func Blocks(text string) []Block {
	var out []Block
	var open *Block
	before, after := "", -1 // the line of text before a block; the block that one follows
	for i, raw := range strings.Split(text, "\n") {
		line := strings.TrimSpace(raw)
		mark, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &Block{Line: i + 1, Lang: mark}
			if m := notRun.FindStringSubmatch(before); m != nil {
				open.NotRun = m[1]
			}
			for _, r := range []*regexp.Regexp{saveThis, asFile} {
				if m := r.FindStringSubmatch(before); m != nil {
					open.File = m[1]
				}
			}
		case fence:
			out = append(out, *open)
			open, before, after = nil, "", len(out)-1
		case open != nil:
			open.Text += raw + "\n"
		case line != "":
			if m := saveIt.FindStringSubmatch(line); m != nil && after >= 0 {
				out[after].File = m[1]
			}
			before, after = line, -1
		}
	}
	return out
}
