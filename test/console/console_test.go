package console

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const quickstart = "../../examples/quickstart"

// signedIn is a browser that followed a link of an up.
func signedIn(t *testing.T, u *up, width, height int64, dark bool) *tab {
	t.Helper()
	b := open(t, width, height, dark)
	b.do(chromedp.Navigate(u.newLink(t, "owner")))
	b.sees("Overview", "Services")
	return b
}

func (u *up) newLink(t *testing.T, role string) string {
	var out struct{ Path string }
	u.call(t, "POST", "/api/v1/console?role="+role, nil, &out)
	return u.admin + out.Path
}

// busy sends requests of each kind: such as are answered, and such as are not.
func busy(t *testing.T, u *up) {
	t.Helper()
	for i := range 12 {
		if got := u.ask(t, "/v1/chat/completions", fmt.Sprintf(`{"model":"chat","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hello %d"}]}`, 10+i, i)); got != 200 {
			t.Fatal(got)
		}
	}
	u.ask(t, "/v2/models/iris/infer", `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`)
	u.ask(t, "/v2/models/nowhere/infer", `{}`)
}

// TestPages visits each page, light, dark and narrow: what it shows is there,
// nothing is wider than the window, and axe finds nothing.
func TestPages(t *testing.T) {
	u := start(t, quickstart)
	busy(t, u)
	for _, look := range []struct {
		name          string
		width, height int64
		dark          bool
	}{{"light", 1280, 860, false}, {"dark", 1280, 860, true}, {"narrow", 360, 780, false}} {
		t.Run(look.name, func(t *testing.T) {
			b := signedIn(t, u, look.width, look.height, look.dark)
			for _, p := range []struct{ name, hash, shows string }{
				{"overview", "#/", "Memory"},
				{"requests", "#/requests", "iris"},
				{"events", "#/events", "Runtime selected"},
				{"logs", "#/logs/default/chat", "Live"},
				{"why", "#/why/default/iris", "Runs on"},
				{"playground", "#/playground/default/iris", "Input of iris"},
				{"chat", "#/playground/default/chat", "Compare with"},
				{"models", "#/models", "iris.ubj"},
				{"routes", "#/routes", "Pools"},
				{"apply", "#/apply", "To be created"},
				{"keys", "#/keys", "There is no key."},
				{"service", "#/services/default/chat", "What it runs on"},
			} {
				b.visit(p.hash)
				b.sees(p.shows)
				b.picture(p.name + "-" + look.name)
				var wide int
				b.do(chromedp.Evaluate(`document.documentElement.scrollWidth - window.innerWidth`, &wide))
				if wide > 0 {
					t.Errorf("%s is %d px wider than the window", p.name, wide)
				}
				b.axe(p.name)
			}
		})
	}
}

// TestSignIn: a link works once, a wrong token not at all, a viewer changes nothing.
func TestSignIn(t *testing.T) {
	u := start(t, quickstart)
	b := open(t, 1000, 700, false)
	b.do(chromedp.Navigate(u.link)) // the one that up printed
	b.sees("Signed in as owner")
	var at, cookies string
	b.do(chromedp.Location(&at), chromedp.Evaluate(`document.cookie`, &cookies))
	if strings.Contains(at, "sign-in") || cookies != "" {
		t.Errorf("at %s, scripts see the cookies %q", at, cookies)
	}
	b.do(chromedp.Reload())
	b.sees("Signed in as owner")
	b.press("Sign out")
	b.sees("prints a link")
	b.axe("sign in")

	again := open(t, 1000, 700, false)
	again.do(chromedp.Navigate(u.link))
	again.sees("This token does not sign in")
	again.do(chromedp.SendKeys(`input[name=token]`, "wrong"+kb.Enter, chromedp.ByQuery))
	again.sees("This token does not sign in")
	viewer, err := os.ReadFile(filepath.Join(u.data, "viewer-token"))
	if err != nil {
		t.Fatal(err)
	}
	again.fill("input[name=token]", strings.TrimSpace(string(viewer)))
	again.do(chromedp.KeyEvent(kb.Enter))
	again.sees("Signed in to read only")
	again.visit("#/services/default/iris")
	again.sees("Read only", "What it runs on")
	if text := again.text(); strings.Contains(text, "Delete") || strings.Contains(text, "As written") {
		t.Errorf("a viewer is offered to change: %s", text)
	}
	// The page does not offer it, and the server refuses it.
	var status int
	again.wait(`(async () => (await fetch("/api/v1/services/default/iris", {method: "DELETE", headers: {"X-Roundhouse-Csrf": localStorage.getItem("roundhouse-csrf")}})).status)()`, &status)
	if status != 403 {
		t.Errorf("a viewer deletes: %d", status)
	}
	again.visit("#/apply")
	again.sees("read only")
}

// TestHeals: a page whose server goes away says so, and goes on with the next one.
func TestHeals(t *testing.T) {
	u := start(t, quickstart)
	b := signedIn(t, u, 1000, 700, false)
	b.sees("iris")
	admin := strings.TrimPrefix(u.admin, "http://")
	u.stop()
	b.sees("The connection is lost")
	u.run(t, admin, "-f", quickstart)
	b.until(`!document.body.innerText.includes("The connection is lost")`)
	u.call(t, "POST", "/api/v1/apply", manifest("fresh", "format: {name: simulator}"), nil)
	b.sees("fresh", "Signed in as owner")
	b.visit("#/events")
	b.sees("Up stopped")
}

func manifest(name, model string) map[string]any {
	text := fmt.Sprintf("apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: %s}\nspec:\n  model: {%s}\n  scaling: {minReplicas: 0, maxReplicas: 2}\n", name, model)
	return map[string]any{"files": []map[string]string{{"name": "test.yaml", "data": text}}}
}

// TestHostile: nothing that a request, a manifest, a log or an error says becomes
// markup or code.
func TestHostile(t *testing.T) {
	const markup = `<img src=x onerror=alert(1)><script>alert(2)</script>`
	u := start(t, quickstart)
	b := signedIn(t, u, 1280, 860, false)
	u.ask(t, "/v1/chat/completions", `{"model":`+quote(markup)+`,"messages":[]}`, "X-Request-Id", markup)
	folder := t.TempDir()
	model := filepath.Join(folder, markup[:28]+".ubj") // a name that has no slash
	if err := os.WriteFile(model, []byte(markup), 0o600); err != nil {
		t.Fatal(err)
	}
	u.call(t, "POST", "/api/v1/apply", manifest("bad", "uri: "+quote("file://"+model)+", format: {name: xgboost}"), nil)
	u.call(t, "POST", "/api/v1/apply", manifest("odd", "uri: "+quote("file://"+folder+"/none")+", format: {name: "+quote("<b>x</b>")+"}"), nil)
	u.ask(t, "/v2/models/bad/infer", `{"inputs":[]}`)
	b.visit("#/requests")
	b.sees(markup)
	b.picture("hostile-requests")
	for _, hash := range []string{"#/", "#/events", "#/models", "#/services/default/bad", "#/services/default/odd", "#/why/default/odd", "#/logs/default/bad", "#/services/x/" + markup, "#/requests/" + markup} {
		b.visit(hash)
		time.Sleep(300 * time.Millisecond) // for what would run to run
		var bad int
		b.do(chromedp.Evaluate(`document.querySelectorAll("main script, main b, img:not([src='/icon.svg'])").length`, &bad))
		if bad > 0 {
			t.Errorf("%s: markup was made of text", hash)
		}
	}
	b.visit("#/apply")
	b.sees("Can be applied")
	var out string
	b.wait(`(async () => { const r = await fetch("/api/v1/services/default/"+encodeURIComponent(`+quote(markup)+`)); return r.headers.get("content-type") + (await r.text()) })()`, &out)
	if !strings.HasPrefix(out, "application/json") || strings.Contains(out, "<script>") {
		t.Errorf("a refusal has markup: %s", out)
	}
}

// TestActions: what the buttons do, and what is refused.
func TestActions(t *testing.T) {
	u := start(t, quickstart)
	b := signedIn(t, u, 1280, 860, false)
	b.visit("#/services/default/iris")
	b.sees("Asleep", "What it runs on")
	b.press("Start")
	b.sees("iris: started", "iris-engine-")
	b.press("Stop")
	b.sees("Stop iris?")
	b.axe("dialog")
	b.press("Stop")
	b.sees("Stopped", "None runs now.")
	b.press("Start")
	b.sees("iris-engine-")
	b.press("Scale")
	b.sees("Scale iris")
	b.fill("input[name=min]", "7")
	b.fill("input[name=max]", "5")
	b.press("Scale")
	b.sees("This did not work.")
	b.fill("input[name=min]", "0")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees("0 to 5")
	b.press("Restart")
	b.sees("is restarting")
	b.press("Reselect")
	b.sees("its runtime was chosen again")
	b.press("As written")
	b.sees("kind: ModelService")
	b.press("Delete")
	b.sees("Delete iris?")
	b.do(chromedp.SendKeys(`input[name=confirm]`, "iri", chromedp.ByQuery))
	b.until(`document.querySelector("dialog button.danger").disabled`)
	b.do(chromedp.SendKeys(`input[name=confirm]`, "s"+kb.Enter, chromedp.ByQuery))
	b.sees("iris is deleted.")
	b.until(`![...document.querySelectorAll("td a")].some(a => a.innerText === "iris")`)
}

// TestApply: problems by line, what would change, and the change.
func TestApply(t *testing.T) {
	u := start(t, quickstart)
	b := signedIn(t, u, 1280, 860, false)
	b.visit("#/apply")
	b.sees("To be created", "Can be applied")
	b.press("Apply")
	b.sees("my-model created")
	b.visit("#/services/default/my-model")
	b.sees("roundhouse-simulator")
	b.visit("#/apply")
	b.sees("Manifest")
	b.choose("Open a service's manifest", "default/chat")
	b.sees("Unchanged")
	editor := `document.querySelector(".editor").shadowRoot.querySelector(".cm-content")`
	b.do(chromedp.Evaluate(editor+`.focus()`, nil), chromedp.KeyEvent("\nspce: x\n"))
	b.sees("Refused", "unknown field")
	b.picture("apply-problem")
	b.choose("Open a service's manifest", "default/digits")
	b.sees("Unchanged")
}

// TestPlayground chats, compares, infers from a form, and keeps to the session.
func TestPlayground(t *testing.T) {
	u := start(t, quickstart)
	u.call(t, "POST", "/api/v1/apply", manifest("second", "format: {name: simulator}"), nil)
	b := signedIn(t, u, 1280, 860, false)
	b.sees("second")
	b.visit("#/playground/default/chat")
	b.sees("Compare with")
	b.choose("Compare with", "default/second")
	b.do(chromedp.SendKeys(`textarea[name=message]`, "What is a roundhouse?"+kb.Enter, chromedp.ByQuery))
	b.until(`document.body.innerText.split("no model was run").length === 3 && document.body.innerText.includes("tokens/s")`)
	b.picture("chat-two")
	b.sees("curl -N")
	b.press("Python")
	b.sees("import urllib.request")
	b.visit("#/playground/default/iris")
	b.press("Infer") // the tab
	b.sees("sepal_length")
	for i, v := range []string{"5.1", "3.5", "1.4", "0.2"} {
		b.do(chromedp.SendKeys(fmt.Sprintf(`input[name="input-0.%d"]`, i), v, chromedp.ByQuery))
	}
	b.do(chromedp.SendKeys(`input[name="input-0.3"]`, kb.Enter, chromedp.ByQuery))
	b.sees(`"model_name": "iris"`)
	b.visit("#/requests")
	b.sees("/v2/models/iris/infer")
}

// TestKeys makes a key, which is shown once, and revokes it.
func TestKeys(t *testing.T) {
	u := start(t, quickstart)
	b := signedIn(t, u, 1280, 860, false)
	b.visit("#/keys")
	b.sees("There is no key.")
	b.do(chromedp.SendKeys(`input[name=name]`, "alice"+kb.Enter, chromedp.ByQuery))
	b.sees("Its secret is shown only now", "Valid")
	b.press("Revoke")
	b.do(chromedp.SendKeys(`input[name=confirm]`, "alice"+kb.Enter, chromedp.ByQuery))
	b.sees("alice is revoked.", "Revoked")
}

// TestKeyboard: the menu and a service can be reached by the keyboard alone.
func TestKeyboard(t *testing.T) {
	u := start(t, quickstart)
	b := signedIn(t, u, 1280, 860, false)
	b.sees("iris")
	for range 40 {
		b.do(chromedp.KeyEvent(kb.Tab))
		var on string
		b.do(chromedp.Evaluate(`document.activeElement.innerText`, &on))
		if on == "iris" {
			b.do(chromedp.KeyEvent(kb.Enter))
			b.sees("What it runs on")
			return
		}
	}
	t.Error("no 40 tabs lead to a service")
}

// TestMany: the first sight of a thousand services, and how the page keeps up with
// changes.
func TestMany(t *testing.T) {
	u := start(t, quickstart)
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "---\napiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: many-%03d}\nspec:\n  model: {format: {name: simulator}}\n  scaling: {minReplicas: 0}\n", i)
	}
	u.call(t, "POST", "/api/v1/apply", map[string]any{"files": []map[string]string{{"name": "many.yaml", "data": text.String()}}}, nil)
	b := signedIn(t, u, 1280, 860, false)
	b.sees("1,003 asleep")
	b.do(chromedp.Reload())
	b.sees("1,003 asleep")
	var first, slowest float64
	b.do(chromedp.Evaluate(`performance.getEntriesByName("first-contentful-paint")[0].startTime`, &first))
	// Requests to 60 services a second, for 3 s, while frames are timed.
	stop := make(chan bool)
	go func() {
		defer close(stop)
		for i := range 180 {
			u.ask(t, "/v1/chat/completions", fmt.Sprintf(`{"model":"chat","max_tokens":1,"messages":[{"role":"user","content":"%d"}]}`, i))
		}
	}()
	b.wait(`new Promise(done => { let last = performance.now(), worst = 0; const end = last + 3000; const frame = now => { worst = Math.max(worst, now - last); last = now; now > end ? done(worst) : requestAnimationFrame(frame) }; requestAnimationFrame(frame) })`, &slowest)
	<-stop
	t.Logf("1,003 services: first paint after %.0f ms; under load the longest time without a frame was %.0f ms", first, slowest)
	if first > 1000 {
		t.Errorf("the first paint came after %.0f ms", first)
	}
	if slowest > 1000 {
		t.Errorf("the page stood still for %.0f ms", slowest)
	}
	b.picture("many")
}
