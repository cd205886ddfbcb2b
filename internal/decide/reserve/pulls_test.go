package reserve

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func nodes(n int) (out []Node) {
	for i := range n {
		name := fmt.Sprintf("n%03d", i)
		out = append(out, Node{Name: name, UID: "uid-" + name, Ready: true, Created: start.Add(time.Duration(i) * time.Second), Images: map[string]bool{}})
	}
	return out
}

// TestPullsStart: few nodes at a time, the youngest first, one image on each, and
// nothing that is there.
func TestPullsStart(t *testing.T) {
	all := nodes(4)
	all[3].Images[Canonical("a")] = true
	all[1].Ready = false
	in := PullInput{Images: []string{"a", "b"}, Nodes: all, AtOnce: 2}
	p := PlanPulls(in, &History{}, start)
	if got := strings.Join(names(p.Start), ", "); got != "n002 a, n003 b" {
		t.Errorf("starts %s", got)
	}
	if p.Wanted != 8 || p.Present != 1 || p.Pulling != 2 || p.Failed != 0 || !p.Again.IsZero() {
		t.Errorf("%+v", p)
	}
	// Both run: nothing else starts.
	in.Running = []Running{{Pull: Pull{"n002", "a"}, Job: "1"}, {Pull: Pull{"n003", "b"}, Job: "2"}}
	if p := PlanPulls(in, &History{}, start); len(p.Start)+len(p.End) != 0 || p.Pulling != 2 {
		t.Errorf("%+v", p)
	}
	// Another Reserve pulls there.
	in.Running, in.Busy = nil, map[string]bool{"n003": true, "n002": true}
	if got := strings.Join(names(PlanPulls(in, &History{}, start).Start), ", "); got != "n000 a" {
		t.Errorf("starts %s", got)
	}
}

// TestPullsEnd: the job of a node that is gone ends, and that of an image that
// nobody wants.
func TestPullsEnd(t *testing.T) {
	in := PullInput{Images: []string{"a"}, Nodes: nodes(1), AtOnce: 2, Running: []Running{
		{Pull: Pull{"n000", "old"}, Job: "unwanted"}, {Pull: Pull{"gone", "a"}, Job: "gone"}, {Pull: Pull{"n000", "docker.io/library/a:latest"}, Job: "kept"}}}
	p := PlanPulls(in, &History{}, start)
	if got := strings.Join(p.End, ", "); got != "unwanted, gone" || len(p.Start) != 0 || p.Pulling != 1 {
		t.Errorf("%+v", p)
	}
}

// TestPullsFail: an image that no node can pull costs one attempt at a time, with
// pauses that double; one that fails on a single node waits there alone.
func TestPullsFail(t *testing.T) {
	h, all, now, attempts := &History{}, nodes(100), start, 0
	in := PullInput{Images: []string{"missing"}, Nodes: all, AtOnce: 10}
	for now.Before(start.Add(24 * time.Hour)) {
		p := PlanPulls(in, h, now)
		if attempts > 0 && len(p.Start) > 1 {
			t.Fatalf("after %v it starts %d at once", now.Sub(start), len(p.Start))
		}
		attempts += len(p.Start)
		for _, s := range p.Start {
			i := slices.IndexFunc(all, func(n Node) bool { return n.Name == s.Node })
			h.Note(&all[i], s.Image, false, now)
		}
		if next := PlanPulls(in, h, now).Again; next.After(now) {
			now = next
		} else {
			t.Fatalf("after %v nothing is due: %v", now.Sub(start), next)
		}
	}
	if attempts < 20 || attempts > 45 {
		t.Errorf("%d attempts in a day on 100 nodes", attempts)
	}

	h, all = &History{}, nodes(2)
	in = PullInput{Images: []string{"a"}, Nodes: all, AtOnce: 2}
	h.Note(&all[0], "a", false, start)
	h.Note(&all[1], "a", true, start)
	if p := PlanPulls(in, h, start.Add(FirstRetry-1)); len(p.Start) != 0 || p.Failed != 1 || p.Present != 1 || !p.Again.Equal(start.Add(FirstRetry)) {
		t.Errorf("%+v", p)
	}
	if p := PlanPulls(in, h, start.Add(FirstRetry)); len(p.Start) != 1 {
		t.Errorf("%+v", p)
	}
}

// TestPullsOnce: what the node's own garbage collection removed is not pulled
// again, and what is known of a node goes with it.
func TestPullsOnce(t *testing.T) {
	h, all := &History{}, nodes(1)
	in := PullInput{Images: []string{"a"}, Nodes: all, AtOnce: 1}
	h.Note(&all[0], "a", true, start)
	if p := PlanPulls(in, h, start.Add(time.Hour)); len(p.Start) != 0 || p.Present != 1 {
		t.Errorf("%+v", p)
	}
	h.Forget(all, map[string]bool{Canonical("a"): true})
	if p := PlanPulls(in, h, start); p.Present != 1 {
		t.Errorf("forgotten: %+v", p)
	}
	h.Forget(nil, map[string]bool{})
	if p := PlanPulls(in, h, start); len(p.Start) != 1 || len(h.pulls)+len(h.images) != 0 {
		t.Errorf("%+v, %+v", p, h)
	}
}

// TestPullsAll: everything is pulled once in the end, never on more nodes at once
// than allowed, never two images on one.
func TestPullsAll(t *testing.T) {
	h, all, images := &History{}, nodes(30), []string{"a", "b", "c"}
	in := PullInput{Images: images, Nodes: all, AtOnce: 4}
	total := 0
	for round := 0; ; round++ {
		p := PlanPulls(in, h, start)
		for _, s := range p.Start {
			in.Running = append(in.Running, Running{Pull: s, Job: s.Node + s.Image})
			total++
		}
		busy := map[string]bool{}
		for _, r := range in.Running {
			if busy[r.Node] {
				t.Fatalf("two images at once on %s", r.Node)
			}
			busy[r.Node] = true
		}
		if len(in.Running) > 4 {
			t.Fatalf("%d at once", len(in.Running))
		}
		if len(in.Running) == 0 {
			if p.Present != p.Wanted || total != 90 {
				t.Fatalf("%d pulls, %+v", total, p)
			}
			return
		}
		done := in.Running[round%len(in.Running)]
		i := slices.IndexFunc(all, func(n Node) bool { return n.Name == done.Node })
		h.Note(&all[i], done.Image, true, start)
		in.Running = slices.DeleteFunc(slices.Clone(in.Running), func(r Running) bool { return r == done })
	}
}
