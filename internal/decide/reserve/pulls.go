package reserve

import (
	"cmp"
	"slices"
	"time"
)

// Pull is one image that is pulled onto one node.
type Pull struct {
	Node, Image string // the image as the manifest writes it
}

// Running is a Pull that is under way: a Job of a Reserve.
type Running struct {
	Pull
	Job string
	// State is what became of it.
	State   State
	Message string // why it failed
}

// State of a Running pull.
type State int

// The states.
const (
	Active State = iota
	Done
	Failed
)

// Between two attempts at one image, doubled after each failure.
const (
	FirstRetry = 30 * time.Second
	MaxRetry   = time.Hour
)

// retry is the wait after so many failures in a row.
func retry(failures int) time.Duration {
	wait := FirstRetry
	for ; failures > 1 && wait < MaxRetry; failures-- {
		wait *= 2
	}
	return min(wait, MaxRetry)
}

// outcome is what became of attempts.
type outcome struct {
	done     bool
	failures int // in a row
	last     time.Time
}

func (o outcome) until() time.Time {
	if o.failures == 0 {
		return time.Time{}
	}
	return o.last.Add(retry(o.failures))
}

// History is what became of earlier pulls: of each image on each node, by the
// node's UID, and of each image anywhere. The zero value is empty.
type History struct {
	pulls  map[string]map[string]outcome // by node, then image
	images map[string]outcome
}

// Note records a pull that ended.
func (h *History) Note(node *Node, image string, ok bool, now time.Time) {
	if h.pulls == nil {
		h.pulls, h.images = map[string]map[string]outcome{}, map[string]outcome{}
	}
	if h.pulls[node.UID] == nil {
		h.pulls[node.UID] = map[string]outcome{}
	}
	name := Canonical(image)
	for _, of := range []map[string]outcome{h.pulls[node.UID], h.images} {
		o := of[name]
		if o.last = now; ok {
			o.done, o.failures = true, 0
		} else {
			o.failures++
		}
		of[name] = o
	}
}

// Forget drops what is known of nodes that are gone, and of images that no
// Reserve wants.
func (h *History) Forget(nodes []Node, wanted map[string]bool) {
	there := map[string]bool{}
	for i := range nodes {
		there[nodes[i].UID] = true
	}
	for uid, images := range h.pulls {
		if !there[uid] {
			delete(h.pulls, uid)
			continue
		}
		for name := range images {
			if !wanted[name] {
				delete(images, name)
			}
		}
	}
	for name := range h.images {
		if !wanted[name] {
			delete(h.images, name)
		}
	}
}

// has reports whether a node has an image. One that was pulled and that the
// node's garbage collection removed counts: to pull it again would only have it
// removed again.
func (h *History) has(n *Node, image string) bool {
	return n.Images[Canonical(image)] || h.pulls[n.UID][Canonical(image)].done
}

// Plan is what is to be pulled now, and how far the pulls are.
type Plan struct {
	Start []Pull
	// End are the jobs of nodes that are gone, and of images that are not wanted
	// any more.
	End []string
	// Counts of images on nodes.
	Wanted, Present, Pulling, Failed int
	// Again is when the next attempt is due; zero where nothing waits for a time.
	Again time.Time
}

// PullInput is what a plan is made of. Images are in the order in which they are
// pulled; Nodes are the selected ones. Busy are the nodes that pull for another
// Reserve.
type PullInput struct {
	Images  []string
	Nodes   []Node
	Running []Running
	Busy    map[string]bool
	AtOnce  int
}

// PlanPulls decides which images are pulled next. So that a registry is not
// flooded, no more than AtOnce nodes pull at the same time, and each node pulls one
// image. Young nodes come first: a cluster autoscaler made them for pods that wait. After a
// failure an image waits, on that node, and on every node as long as no node could
// pull it since: a name that does not exist costs one attempt at a time.
func PlanPulls(in PullInput, h *History, now time.Time) Plan {
	p := planner{in: in, h: h, now: now, busy: map[string]bool{}, trying: map[string]bool{}}
	for node := range in.Busy {
		p.busy[node] = true
	}
	return p.plan()
}

type planner struct {
	in     PullInput
	h      *History
	now    time.Time
	out    Plan
	active int
	busy   map[string]bool // nodes
	trying map[string]bool // images
}

func (p *planner) plan() Plan {
	nodes := slices.Clone(p.in.Nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Name, b.Name)) })
	p.underWay(nodes)
	for i := range nodes {
		p.node(&nodes[i])
	}
	return p.out
}

// underWay counts the jobs that there are.
func (p *planner) underWay(nodes []Node) {
	for _, r := range p.in.Running {
		there := slices.ContainsFunc(nodes, func(n Node) bool { return n.Name == r.Node })
		wanted := slices.ContainsFunc(p.in.Images, func(image string) bool { return Canonical(image) == Canonical(r.Image) })
		if !there || !wanted || r.State != Active {
			p.out.End = append(p.out.End, r.Job)
			continue
		}
		p.active++
		p.busy[r.Node], p.trying[Canonical(r.Image)] = true, true
		p.out.Pulling++
	}
}

// node counts what a node has, and starts what it lacks.
func (p *planner) node(n *Node) {
	for _, image := range p.in.Images {
		p.out.Wanted++
		if p.h.has(n, image) {
			p.out.Present++
			continue
		}
		of := p.h.pulls[n.UID][Canonical(image)]
		if of.failures > 0 {
			p.out.Failed++
		}
		if !n.Ready || n.Cordoned || p.busy[n.Name] || p.active >= p.in.AtOnce {
			continue
		}
		until := of.until()
		if all := p.h.images[Canonical(image)]; all.failures > 0 {
			if until = later(until, all.until()); p.trying[Canonical(image)] {
				continue // one node tries it
			}
		}
		if p.now.Before(until) {
			p.out.Again = earlier(p.out.Again, until)
			continue
		}
		p.out.Start = append(p.out.Start, Pull{n.Name, image})
		p.out.Pulling++
		p.active++
		p.busy[n.Name], p.trying[Canonical(image)] = true, true
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
