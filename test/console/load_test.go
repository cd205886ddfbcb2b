package console

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// many applies a thousand services beside those of the quickstart.
func many(t *testing.T, u *up) {
	t.Helper()
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "---\napiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: many-%03d}\nspec:\n  model: {format: {name: simulator}}\n  scaling: {minReplicas: 0}\n", i)
	}
	u.call(t, "POST", "/api/v1/apply", map[string]any{"files": []map[string]string{{"name": "many.yaml", "data": text.String()}}}, nil)
}

const (
	// firstPaint is how soon a thousand services are to be seen.
	firstPaint = time.Second
	// longestFrame is how long the page may stand still, and longestDelay how long a key
	// may wait for the frame that shows it, while it is told of changes.
	longestFrame = time.Second
	longestDelay = time.Second
	// updates are how many of them there are each second.
	updates = 60
)

// TestMany: the first sight of a thousand services, and whether the page keeps up
// with 60 changes a second while somebody types.
func TestMany(t *testing.T) {
	u := start(t, quickstart)
	many(t, u)
	b := signedIn(t, u, 1280, 860, false)
	b.sees("1,003 asleep")
	b.do(chromedp.Reload())
	b.sees("1,003 asleep")
	var first float64
	b.do(chromedp.Evaluate(`performance.getEntriesByName("first-contentful-paint")[0].startTime`, &first))
	u.ask(t, "/v1/chat/completions", `{"model":"chat","max_tokens":1,"messages":[]}`) // it starts
	b.do(chromedp.Evaluate(`(() => {
		const seen = window.seen = {frame: 0, delay: 0, keys: 0, told: 0}
		let last = performance.now()
		const frame = now => { seen.frame = Math.max(seen.frame, now - last); last = now; requestAnimationFrame(frame) }
		requestAnimationFrame(frame)
		const search = document.querySelector("input[type=search]")
		search.addEventListener("keydown", e => requestAnimationFrame(() => setTimeout(() => { seen.keys++; seen.delay = Math.max(seen.delay, performance.now() - e.timeStamp) })))
		search.focus()
		const es = new EventSource("/api/v1/watch?kinds=service,request")
		for (const kind of ["service", "request"]) es.addEventListener(kind, () => seen.told++)
	})()`, nil))
	b.until(`window.seen.told > 1000`) // the second stream has told what there is
	b.do(chromedp.Evaluate(`Object.assign(window.seen, {frame: 0, delay: 0, keys: 0, told: 0})`, nil))
	const seconds = 5
	var sending sync.WaitGroup
	sending.Add(1)
	go func() {
		defer sending.Done()
		tick := time.NewTicker(time.Second / updates)
		defer tick.Stop()
		for i := range updates * seconds {
			<-tick.C
			if i%3 == 0 { // a service changes
				u.call(t, "POST", fmt.Sprintf("/api/v1/services/default/many-%03d/actions", i), map[string]any{"do": "scale", "max": 2 + i%5}, nil)
				continue
			}
			sending.Go(func() {
				u.ask(t, "/v1/chat/completions", fmt.Sprintf(`{"model":"chat","max_tokens":1,"messages":[{"role":"user","content":"%d"}]}`, i))
			})
		}
	}()
	for i := range 4 * seconds {
		b.do(chromedp.KeyEvent([]string{"m", "a", kb.Backspace, kb.Backspace}[i%4]), chromedp.Sleep(200*time.Millisecond))
	}
	sending.Wait()
	b.until(fmt.Sprintf(`window.seen.told >= %d`, updates*seconds))
	var seen struct {
		Frame, Delay float64
		Keys, Told   int
	}
	b.do(chromedp.Evaluate(`window.seen`, &seen))
	t.Logf("1,003 services: first paint after %.0f ms; with %d updates in about %d s the longest time without a frame was %.0f ms, and of %d keys the slowest was seen after %.0f ms", first, seen.Told, seconds, seen.Frame, seen.Keys, seen.Delay)
	if first > float64(firstPaint.Milliseconds()) {
		t.Errorf("the first paint came after %.0f ms", first)
	}
	if seen.Frame > float64(longestFrame.Milliseconds()) || seen.Delay > float64(longestDelay.Milliseconds()) || seen.Keys < 4*seconds {
		t.Errorf("the page stands still while it is told of changes: %+v", seen)
	}
	b.picture("many")
}

// inMemory is what a tab holds once its garbage is collected.
type inMemory struct {
	heap  float64 // bytes
	nodes int64
}

func (b *tab) memory() (m inMemory) {
	b.t.Helper()
	b.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		for range 2 { // the first has finalizers run
			if err = heapprofiler.CollectGarbage().Do(ctx); err != nil {
				return err
			}
		}
		if m.heap, _, _, _, err = runtime.GetHeapUsage().Do(ctx); err != nil {
			return err
		}
		_, m.nodes, _, err = memory.GetDOMCounters().Do(ctx)
		return err
	}))
	return m
}

// A day of changes, one each second, and by how much a tab may grow in it.
const (
	day       = 86_400
	dayGrowth = 50 << 20
)

// TestDay: a tab that is told of as much as a day brings grows no more than it may.
func TestDay(t *testing.T) {
	u := start(t, quickstart)
	busy(t, u)
	b := signedIn(t, u, 1280, 860, false)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	t.Cleanup(client.CloseIdleConnections)
	ask := func(n int) {
		t.Helper()
		var senders sync.WaitGroup
		for i := range 8 {
			senders.Go(func() {
				for range n / 8 {
					resp, err := client.Post(u.base+"/v2/models/nowhere/infer", "application/json", strings.NewReader(`{"inputs":[]}`))
					if err != nil {
						t.Errorf("sender %d: %v", i, err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			})
		}
		senders.Wait()
	}
	pages := []string{"#/requests", "#/", "#/services/default/chat", "#/events"}
	visit := func(n int) {
		t.Helper()
		for _, p := range pages {
			b.visit(p)
			ask(n / len(pages))
		}
		b.visit("#/")
		b.sees("Services")
	}
	visit(8000) // what the page keeps is full
	b.do(chromedp.Evaluate(`(() => { window.told = 0; const es = new EventSource("/api/v1/watch?kinds=request"); es.addEventListener("request", () => window.told++) })()`, nil))
	b.until(`window.told > 0`)
	before, began := b.memory(), time.Now()
	visit(day)
	after := b.memory()
	var told int
	b.do(chromedp.Evaluate(`window.told`, &told))
	t.Logf("%d updates in %s: the heap went from %.1f to %.1f MiB, the page from %d to %d nodes", told, time.Since(began).Round(time.Second), before.heap/(1<<20), after.heap/(1<<20), before.nodes, after.nodes)
	if told < day*9/10 {
		t.Errorf("the page was told of %d of %d", told, day)
	}
	if after.heap-before.heap > dayGrowth {
		t.Errorf("the heap grew by %.1f MiB", (after.heap-before.heap)/(1<<20))
	}
	if after.nodes > 2*before.nodes {
		t.Errorf("%d nodes became %d", before.nodes, after.nodes)
	}
}
