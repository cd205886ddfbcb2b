package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
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
				{"copies", "#/models", "iris.ubj"},
				{"routes", "#/routes", "Pools"},
				{"apply", "#/apply", "To be created"},
				{"keys", "#/keys", "There is no key."},
				{"service", "#/services/default/chat", "What it runs on"},
			} {
				b.visit(p.hash)
				b.sees(p.shows)
				if p.name == "copies" {
					b.press("On this machine")
					b.sees("No model was downloaded")
				}
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
	copied := b.cookies()
	b.press("Sign out")
	b.sees("prints a link")
	if got := b.cookies(); len(got) > 0 {
		t.Errorf("cookies stay: %+v", got)
	}
	for _, c := range copied {
		b.do(network.SetCookie(c.Name, c.Value).WithURL(u.admin).WithHTTPOnly(true))
	}
	b.do(chromedp.Reload())
	b.sees("prints a link")
	if len(copied) != 1 {
		t.Errorf("signed in with %+v", copied)
	}
	b.axe("sign in")

	again := open(t, 1000, 700, false)
	again.do(chromedp.Navigate(u.link))
	again.sees("this token does not sign in")
	again.do(chromedp.SendKeys(`input[name=token]`, "wrong"+kb.Enter, chromedp.ByQuery))
	again.sees("this token does not sign in")
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
	u.ask(t, "/v2/models/nobody/infer", "{}")
	b.choose("How it ended", "client")
	b.sees("nobody", "404")
	b.until(`![...document.querySelectorAll("tbody tr")].some(e => e.innerText.includes("503"))`)
	b.choose("How it ended", "failed")
	b.until(`!document.querySelector("main").innerText.includes("nobody")`)
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
	b.visit("#/")
	b.sees("Evicted next", "iris would be stopped first", "requests an hour expected")
	b.axe("evicted next")
	b.visit("#/services/default/iris")
	b.sees("In flight", "iris-engine-", "Client errors", "Longest wait (time)")
	b.until(`[...document.querySelectorAll("button")].find(e => e.innerText === "Start").disabled`) // it runs
	b.press("Stop")
	b.sees("Stop iris?")
	b.until(`document.activeElement.innerText === "Cancel"`) // one more Enter does no harm
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
	b.sees("This did not work:")
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
	b.until(`document.activeElement.name === "confirm"`)
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

// TestCompletes: the editor offers what the schema has, with what it is for; by the
// keyboard alone.
func TestCompletes(t *testing.T) {
	u := start(t, quickstart)
	b := signedIn(t, u, 1280, 860, false)
	b.visit("#/apply")
	b.sees("Can be applied")
	const tree = `document.querySelector(".editor").shadowRoot`
	b.until(`Boolean(document.querySelector(".editor")?.shadowRoot?.querySelector(".cm-content"))`)
	text := func() (out string) {
		b.do(chromedp.Evaluate(`[...`+tree+`.querySelectorAll(".cm-line")].map(l => l.textContent).join("\n")`, &out))
		return out
	}
	offers := func(word string) {
		t.Helper()
		defer func() {
			if t.Failed() {
				t.Logf("typed %q", text())
			}
		}()
		b.until(`[...` + tree + `.querySelectorAll(".cm-tooltip-autocomplete li")].some(l => l.textContent.startsWith(` + quote(word) + `))`)
		b.do(chromedp.Sleep(150 * time.Millisecond)) // a list that has just opened takes no keys yet
	}
	// A key that the page handles has no character, as it has none in a browser that a
	// person uses.
	enter := chromedp.ActionFunc(func(ctx context.Context) error {
		var errs []error
		for _, what := range []input.KeyType{input.KeyRawDown, input.KeyUp} {
			errs = append(errs, input.DispatchKeyEvent(what).WithKey("Enter").WithCode("Enter").WithWindowsVirtualKeyCode(13).Do(ctx))
		}
		return errors.Join(errs...)
	})
	for range 60 { // the editor is reached by Tab
		var in bool
		if b.do(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`document.activeElement?.classList.contains("editor")`, &in)); in {
			break
		}
	}
	b.do(chromedp.KeyEvent("a", chromedp.KeyModifiers(input.ModifierCtrl)), chromedp.KeyEvent(kb.Delete))
	b.do(chromedp.KeyEvent("ki"))
	offers("kind")
	b.do(enter, chromedp.KeyEvent("Model"))
	offers("ModelService")
	b.do(enter, enter, chromedp.KeyEvent("apiV"))
	offers("apiVersion")
	b.do(enter, chromedp.KeyEvent("round"))
	offers("roundhouse.dev/v1alpha1")
	b.do(enter, enter, chromedp.KeyEvent("metadata: {name: typed}"), enter, chromedp.KeyEvent("sp"))
	offers("spec")
	b.do(enter, chromedp.KeyEvent(" ", chromedp.KeyModifiers(input.ModifierCtrl)))
	offers("scaling")
	b.do(chromedp.KeyEvent("sca"))
	offers("scaling")
	b.until(tree + `.querySelector(".cm-completionInfo")?.textContent.includes("Scaling of the engine")`)
	b.picture("apply-completion")
	b.do(enter, chromedp.KeyEvent("minR"))
	offers("minReplicas")
	b.do(enter, chromedp.KeyEvent("0"))
	if got := text(); !strings.Contains(got, "kind: ModelService\napiVersion: roundhouse.dev/v1alpha1\n") || !strings.Contains(got, "\n  scaling:\n    minReplicas: 0") {
		t.Errorf("typed:\n%s", got)
	}
	b.do(enter, chromedp.KeyEvent(kb.Backspace), chromedp.KeyEvent("model: {form"))
	offers("format")
	b.do(enter, chromedp.KeyEvent("{name: simulator}}"))
	b.sees("Can be applied")
	b.do(chromedp.KeyEvent(kb.Escape), chromedp.KeyEvent(kb.Tab))
	b.until(`!document.activeElement?.classList.contains("editor")`) // Tab leaves it
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
	b.visit("#/services/default/chat") // whose engine tells its figures
	b.until(`(() => {
		const table = [...document.querySelectorAll("table")].find(t => t.innerText.includes("In flight"))
		const column = [...(table?.querySelectorAll("th") ?? [])].findIndex(h => h.innerText.trim().toUpperCase() === "KV")
		const cells = column < 0 ? [] : [...(table.querySelector("tbody tr")?.children ?? [])].map(c => c.innerText.trim())
		return /^\d+ %$/.test(cells[column]) && /^\d+$/.test(cells[column - 1]) && /^\d+$/.test(cells[column - 2])
	})()`)
	b.picture("service-figures")
	b.visit("#/playground/default/chat")
	b.do(chromedp.SendKeys(`textarea[name=message]`, "And now?"+kb.Enter, chromedp.ByQuery))
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

// TestKeys makes a key, which is shown once, and revokes it; keys and runtimes that
// others make show too.
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
	u.call(t, "POST", "/api/v1/keys", map[string]string{"name": "bob"}, nil) // by another
	b.sees("bob")
	b.visit("#/models")
	b.press("Runtimes")
	b.sees("vllm")
	u.call(t, "POST", "/api/v1/apply", map[string]any{"files": []map[string]string{{"name": "r.yaml", "data": "apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: a-new-one}\n" +
		"spec: {supportedModelFormats: [{name: mine}], containers: [{name: kserve-container, image: example.com/i}]}\n"}}}, nil)
	b.sees("a-new-one")
	b.visit("#/events")
	b.sees("runtime a-new-one")
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
