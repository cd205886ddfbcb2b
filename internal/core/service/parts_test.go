package service

import (
	"fmt"
	"strings"
	"testing"
)

func TestParts(t *testing.T) {
	for _, c := range []struct {
		paths []string
		want  string // root, where each lies below it, and in which folder, + with others
	}{
		{nil, "/mnt/models [] []"},
		{[]string{"/mnt/models", "/mnt/models"}, "/mnt/models [. .] [/mnt/models+ /mnt/models+]"},
		{[]string{"/mnt/models/base", "/mnt/models/adapters/a"}, "/mnt/models [base adapters/a] [/mnt/models/base /mnt/models/adapters/a]"},
		{[]string{"/mnt/models/base"}, "/mnt/models [base] [/mnt/models/base]"},
		{[]string{"/mnt/models", "/mnt/models/x"}, "/mnt/models [. x] [/mnt/models+ /mnt/models+]"},
		{[]string{"/mnt/models-2/a", "/mnt/models/b"}, "/mnt [models-2/a models/b] [/mnt/models-2/a /mnt/models/b]"},
		{[]string{"/opt/m/a", "/opt/m/b"}, "/opt/m [a b] [/opt/m/a /opt/m/b]"},
		{[]string{"/opt/m"}, "/opt/m [.] [/opt/m]"},
		{[]string{"/opt/m", "/srv"}, "/ [opt/m srv] [/opt/m /srv]"},
		{[]string{"/m/a/b", "/m/c", "/m/a", "/m/a/b/d"}, "/m [a/b c a a/b/d] [/m/a+ /m/c /m/a+ /m/a+]"},
	} {
		var p Parts
		for _, at := range c.paths {
			p = append(p, Part{Path: at})
		}
		var below []string
		for _, part := range p {
			below = append(below, p.Below(part))
		}
		var folders []string
		for i := range p {
			folder, shared := p.Folder(i)
			if shared {
				folder += "+"
			}
			folders = append(folders, folder)
		}
		if _, _, found := p.Overlap(); found {
			t.Errorf("%v: a claim among files that are fetched", c.paths)
		}
		for i := range p {
			p[i].URI = "pvc://claim"
			claim, other, found := p.Overlap()
			if shared := strings.HasSuffix(folders[i], "+"); found != shared || found && (claim != i || other == i) {
				t.Errorf("%v: claim %d, %d, %v", c.paths, claim, other, found)
			}
			p[i].URI = ""
		}
		if got := fmt.Sprintf("%s %v %v", p.Root(), below, folders); got != c.want {
			t.Errorf("%v: %s, want %s", c.paths, got, c.want)
		}
	}
}
