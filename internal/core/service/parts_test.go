package service

import (
	"fmt"
	"testing"
)

func TestParts(t *testing.T) {
	for _, c := range []struct {
		paths []string
		want  string // root, where each lies below it, and whether two overlap
	}{
		{nil, "/mnt/models [] false"},
		{[]string{"/mnt/models", "/mnt/models"}, "/mnt/models [. .] true"},
		{[]string{"/mnt/models/base", "/mnt/models/adapters/a"}, "/mnt/models [base adapters/a] false"},
		{[]string{"/mnt/models/base"}, "/mnt/models [base] false"},
		{[]string{"/mnt/models", "/mnt/models/x"}, "/mnt/models [. x] true"},
		{[]string{"/mnt/models-2/a", "/mnt/models/b"}, "/mnt [models-2/a models/b] false"},
		{[]string{"/opt/m/a", "/opt/m/b"}, "/opt/m [a b] false"},
		{[]string{"/opt/m"}, "/opt/m [.] false"},
		{[]string{"/opt/m", "/srv"}, "/ [opt/m srv] false"},
	} {
		var p Parts
		for _, at := range c.paths {
			p = append(p, Part{Path: at})
		}
		var below []string
		for _, part := range p {
			below = append(below, p.Below(part))
		}
		_, _, overlap := p.Overlap()
		if got := fmt.Sprintf("%s %v %v", p.Root(), below, overlap); got != c.want {
			t.Errorf("%v: %s, want %s", c.paths, got, c.want)
		}
	}
}
