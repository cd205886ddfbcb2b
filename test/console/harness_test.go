// Package console tests the console in a real browser, with a real `roundhouse up`.
package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// up is a running `roundhouse up`.
type up struct {
	cmd   *exec.Cmd
	data  string
	admin string // URL of the console
	base  string // of inference
	link  string // signs in once
	token string
}

// start runs `up` with manifests, and waits for what it prints.
func start(t *testing.T, manifests string) *up {
	t.Helper()
	u := &up{data: t.TempDir()}
	u.run(t, "127.0.0.1:0", "-f", manifests)
	return u
}

var printed = regexp.MustCompile(`(?s)answers at  (http://\S+).*Console +(http://[^/]+)(/#sign-in=\S+)`)

func (u *up) run(t *testing.T, admin string, args ...string) {
	t.Helper()
	program := os.Getenv("ROUNDHOUSE_BINARY")
	if program == "" {
		t.Fatal("ROUNDHOUSE_BINARY names no program: run `make test-console`")
	}
	u.cmd = exec.Command(program, append([]string{"up", "--listen", "127.0.0.1:0", "--grpc-listen", "", "--hub-cache", "off", "--admin-listen", admin, "--data-dir", u.data}, args...)...)
	var log bytes.Buffer
	u.cmd.Stderr = &log
	out, err := u.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.stop)
	var text strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		if m := printed.FindStringSubmatch(text.String()); m != nil {
			u.base, u.admin, u.link = m[1], m[2], m[2]+m[3]
			go func() { _, _ = io.Copy(io.Discard, out) }()
			token, err := os.ReadFile(filepath.Join(u.data, "admin-token"))
			if err != nil {
				t.Fatal(err)
			}
			u.token = strings.TrimSpace(string(token))
			return
		}
	}
	t.Fatalf("up printed no link:\n%s\n%s", text.String(), log.String())
}

func (u *up) stop() {
	if u.cmd == nil {
		return
	}
	_ = u.cmd.Process.Signal(syscall.SIGTERM)
	_ = u.cmd.Wait()
	u.cmd = nil
}

// call asks the admin API as its owner.
func (u *up) call(t *testing.T, method, path string, in, out any) {
	t.Helper()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, u.admin+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+u.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s %s %v", method, path, resp.Status, data, err)
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			t.Fatal(err)
		}
	}
}

// ask sends a request to a model.
func (u *up) ask(t *testing.T, path, body string, headers ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, u.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// tab is a tab of a browser of its own.
type tab struct {
	t   *testing.T
	ctx context.Context
	mu  sync.Mutex
	bad []string // what the page threw, and what its policy refused
}

// open opens a browser.
func open(t *testing.T, width, height int64, dark bool) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-sync", true))
	if os.Getenv("ROUNDHOUSE_CHROMIUM") != "" {
		options = append(options, chromedp.ExecPath(os.Getenv("ROUNDHOUSE_CHROMIUM")))
	}
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancelTab := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {})) // it does not know all events of new browsers
	t.Cleanup(cancelTab)
	ctx, cancelTime := context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancelTime)
	b := &tab{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(ev any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			b.bad = append(b.bad, ev.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if ev.Entry.Source == log.SourceSecurity || strings.Contains(ev.Entry.Text, "Content Security Policy") || strings.Contains(ev.Entry.Text, "Trusted") {
				b.bad = append(b.bad, ev.Entry.Text)
			}
		case *page.EventJavascriptDialogOpening:
			b.bad = append(b.bad, "a dialog opened: "+ev.Message)
		}
	})
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.do(log.Enable(), emulation.SetDeviceMetricsOverride(width, height, 1, width < 500),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}))
	t.Cleanup(b.clean)
	return b
}

// clean fails the test for what went wrong unseen.
func (b *tab) clean() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.bad {
		b.t.Errorf("the page: %s", text)
	}
	b.bad = nil
}

func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// text is what the page shows.
func (b *tab) text() (out string) {
	b.do(chromedp.Evaluate(`document.body.innerText`, &out))
	return out
}

// sees waits until the page shows each of some texts.
func (b *tab) sees(texts ...string) {
	b.t.Helper()
	for _, want := range texts {
		var ok bool
		err := chromedp.Run(b.ctx, chromedp.Poll(fmt.Sprintf(`document.body.innerText.includes(%s)`, quote(want)), &ok, chromedp.WithPollingTimeout(20*time.Second), chromedp.WithPollingInterval(50*time.Millisecond)))
		if err != nil {
			b.t.Fatalf("%q is not shown: %v\n%s", want, err, b.text())
		}
	}
}

// until waits until an expression is true.
func (b *tab) until(expression string) {
	b.t.Helper()
	var ok bool
	if err := chromedp.Run(b.ctx, chromedp.Poll(expression, &ok, chromedp.WithPollingTimeout(20*time.Second), chromedp.WithPollingInterval(50*time.Millisecond))); err != nil {
		b.t.Fatalf("never true: %s: %v\n%s", expression, err, b.text())
	}
}

func quote(s string) string {
	data, _ := json.Marshal(s)
	return string(data)
}

// visit goes to a page of the console.
func (b *tab) visit(hash string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(`location.hash = `+quote(hash), nil))
}

// press presses the button, or follows the link, that has a text: in the dialog that
// is open, else in the page, else in the menu.
func (b *tab) press(name string) {
	b.t.Helper()
	find := fmt.Sprintf(`[document.querySelector("dialog[open]") ?? document.querySelector("main"), document].flatMap(r => [...r.querySelectorAll("button, a")]).find(e => e.innerText.trim() === %s && !e.disabled)`, quote(name))
	b.until(find + ` !== undefined`)
	b.do(chromedp.Evaluate(find+`.click()`, nil))
}

// fill writes a value into a field, in place of what is there.
func (b *tab) fill(selector, value string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`document.querySelector(%s) !== null`, quote(selector)))
	b.do(chromedp.Evaluate(fmt.Sprintf(`(() => { const e = document.querySelector(%s); e.focus(); e.value = %s; e.dispatchEvent(new Event("input", {bubbles: true})) })()`, quote(selector), quote(value)), nil))
}

// cookies are those that the browser has for the page.
func (b *tab) cookies() (out []*network.Cookie) {
	b.t.Helper()
	b.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		out, err = network.GetCookies().Do(ctx)
		return err
	}))
	return out
}

// picture writes a screenshot for people to look at.
func (b *tab) picture(name string) {
	b.t.Helper()
	folder := os.Getenv("ROUNDHOUSE_SCREENSHOTS")
	if folder == "" {
		folder = b.t.TempDir()
	}
	var png []byte
	b.do(chromedp.Evaluate(`new Promise(r => requestAnimationFrame(() => setTimeout(r, 150)))`, nil, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }),
		chromedp.CaptureScreenshot(&png))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// wait evaluates an expression and waits for what it promises.
func (b *tab) wait(expression string, out any) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, out, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
}

// choose selects an option of a list by the list's label.
func (b *tab) choose(label, option string) {
	b.t.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll("label")].find(l => l.innerText.includes(%s) || l.textContent.includes(%s))?.querySelector("select")`, quote(label), quote(label))
	b.until(fmt.Sprintf(`[...(%s?.options ?? [])].some(o => o.value === %s)`, find, quote(option)))
	b.do(chromedp.Evaluate(fmt.Sprintf(`(() => { const s = %s; s.value = %s; s.dispatchEvent(new Event("change", {bubbles: true})) })()`, find, quote(option)), nil))
}

// axe checks what the page shows for accessibility, WCAG 2.2 AA.
func (b *tab) axe(name string) {
	b.t.Helper()
	source, err := os.ReadFile("../../console/node_modules/axe-core/axe.min.js")
	if err != nil {
		b.t.Fatalf("%v: run `make test-console`, which installs it", err)
	}
	var found []string
	b.do(chromedp.Evaluate(`void(window.axe || (function(){`+string(source)+`}).call(window))`, nil))
	b.wait(`axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], resultTypes: ["violations"]}).then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.html.slice(0, 160) + " " + n.failureSummary)))`, &found)
	for _, f := range found {
		b.t.Errorf("%s: axe: %s", name, f)
	}
}

// named presses the button that has a label of its own.
func (b *tab) named(label string) {
	b.t.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll("button[aria-label]")].find(e => e.ariaLabel === %s)`, quote(label))
	b.until(find + ` !== undefined`)
	b.do(chromedp.Evaluate(find+`.click()`, nil))
}
